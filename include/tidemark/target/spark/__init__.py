"""Merges the changes of a table through Spark DataFrames."""
