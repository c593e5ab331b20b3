"""Merges staged changes and chunks into Delta, inside Spark applications: `plans` per plan, `table_merge` per table."""
