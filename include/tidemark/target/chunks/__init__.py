"""Applies backfill chunks in the driver."""
