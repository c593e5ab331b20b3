"""Computes the rows of the next chunk from the last chunk's rate and the target duration. Pure."""

from __future__ import annotations

from typing import Final

SMALLEST_ROWS: Final = 1000
# A chunk grows to at most so many times the requested size.
GROWTH: Final = 8


def next_chunk_rows(last_rows: int, elapsed_s: float, *, wanted_s: float, first_rows: int) -> int:
    """The rows of the next chunk. `last_rows` were read in `elapsed_s`, `first_rows` is the requested size.

    The size changes at most by a factor of 2, so that one chunk that was slow or fast by chance does not decide.
    """
    paced = last_rows * 2.0 if elapsed_s <= 0 else last_rows * wanted_s / elapsed_s
    size = int(min(max(paced, last_rows / 2), last_rows * 2.0))
    return max(1, min(max(size, min(SMALLEST_ROWS, first_rows)), GROWTH * first_rows))
