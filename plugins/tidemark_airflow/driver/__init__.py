"""Submits the Spark driver of a task, and prepares the files that it reads on this machine."""
