"""Stores and reads what people see: runs, rates, sizes, notes and alerts."""
