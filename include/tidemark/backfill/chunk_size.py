"""Computes the rows of the next chunk from the last chunk's rate and the target duration. Pure."""

from __future__ import annotations

from typing import Final

SMALLEST_ROWS: Final = 1000
# How many times the size that was asked for a chunk may grow to.
GROWTH: Final = 8


def next_chunk_rows(last_rows: int, elapsed_s: float, *, wanted_s: float, first_rows: int) -> int:
    """`last_rows` were read in `elapsed_s`, `first_rows` is what was asked for. At most twice as many as last time and
    at least half as many, so that one chunk that was slow or quick by chance does not decide."""
    paced = last_rows * 2.0 if elapsed_s <= 0 else last_rows * wanted_s / elapsed_s
    size = int(min(max(paced, last_rows / 2), last_rows * 2.0))
    return max(1, min(max(size, min(SMALLEST_ROWS, first_rows)), GROWTH * first_rows))
