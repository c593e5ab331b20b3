"""Reads the source's catalogue: tables, columns, publications and settings."""
