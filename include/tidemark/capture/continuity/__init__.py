"""Decides whether the drain may continue from the slot: generations, forks, rewinds, recovery (R4, R8)."""
