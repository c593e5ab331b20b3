"""Debezium's embedded engine in the place of a Tidemark pipeline, with the same files."""
