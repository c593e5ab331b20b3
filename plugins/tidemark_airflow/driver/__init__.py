"""Submits the Spark driver of a task, with what it reads on this machine."""
