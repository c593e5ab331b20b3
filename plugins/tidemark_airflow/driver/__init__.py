"""Prepares and submits the Spark driver of a task."""
