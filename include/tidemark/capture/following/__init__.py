"""Follows the source in one run until the next run is due: the stages of every run, in cycles."""
