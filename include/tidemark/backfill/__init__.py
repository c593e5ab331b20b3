"""The pure parts of a backfill: what a snapshot saw, what a watermark says, how large the next chunk is. No I/O."""
