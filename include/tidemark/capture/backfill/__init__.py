"""The stages of a backfill beside those of capture: plan it, read its chunks, say what became of it (R7, R9)."""
