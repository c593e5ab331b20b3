"""Computes the rows of the next chunk from the last chunk's rate and the target duration. Pure."""

from __future__ import annotations

from typing import Final

SMALLEST_ROWS: Final = 1000
# A chunk grows to at most so many times the requested size.
GROWTH: Final = 8
# One that is read by pages may have more rows and take longer, because the more rows it has, the more of them share a
# page. From a disk, 400,000 of 100 million rows took 15 s, and two million 23 s.
GROWTH_BY_PAGES: Final = 40
TIME_BY_PAGES: Final = 3


def next_chunk_rows(
    last_rows: int, elapsed_s: float, *, wanted_s: float, first_rows: int, by_pages: bool = False
) -> int:
    """The rows of the next chunk. `last_rows` were read in `elapsed_s`, `first_rows` is the requested size.

    The size changes at most by a factor of 2, so that one chunk that was slow or fast by chance does not decide.
    """
    if by_pages:
        wanted_s *= TIME_BY_PAGES
    paced = last_rows * 2.0 if elapsed_s <= 0 else last_rows * wanted_s / elapsed_s
    size = int(min(max(paced, last_rows / 2), last_rows * 2.0))
    most = first_rows * (GROWTH_BY_PAGES if by_pages else GROWTH)
    return max(1, min(max(size, min(SMALLEST_ROWS, first_rows)), most))
