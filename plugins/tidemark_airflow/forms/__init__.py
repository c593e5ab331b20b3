"""Builds the trigger forms of the backfill, verify and replay DAGs."""
