"""Stores the state of each pipeline in the control schema of a PostgreSQL database."""
