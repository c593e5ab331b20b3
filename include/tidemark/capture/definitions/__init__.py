"""Follows changes of table definitions at the source (R11)."""
