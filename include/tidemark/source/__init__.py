"""Reads the source database: its catalogue, its slot and the rows of its tables."""
