"""Reads rows of source tables in key order, for chunks."""
