"""Stores what was staged and applied: generations, batches, plans and positions."""
