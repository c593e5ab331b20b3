"""Merges staged changes and chunks into Delta, inside Spark applications: `merge` chooses the way per table."""
