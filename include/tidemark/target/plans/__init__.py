"""Applies whole plans: reads them, merges their tables, and writes result, positions and names in the catalogue."""
