"""Stores and reads the figures for people: runs, rates, sizes, notes and alerts."""
