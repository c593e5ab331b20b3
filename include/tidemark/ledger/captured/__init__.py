"""Stores captured tables: their states, schema versions, relations and joins."""
