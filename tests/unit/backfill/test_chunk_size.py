"""The size of a chunk follows the pace of the one before it, within bounds."""

from __future__ import annotations

import pytest

from tidemark.backfill.chunk_size import next_chunk_rows


@pytest.mark.parametrize(
    ("last_rows", "elapsed_s", "first_rows", "expected"),
    [
        (50_000, 10.0, 50_000, 50_000),
        (50_000, 8.0, 50_000, 62_500),
        (50_000, 1.0, 50_000, 100_000),
        (50_000, 100.0, 50_000, 25_000),
        (1_500, 100.0, 50_000, 1_000),
        (300_000, 1.0, 50_000, 400_000),
        (10, 1.0, 10, 20),
        (20, 100.0, 10, 10),
        (50_000, 0.0, 50_000, 100_000),
        (1, 100.0, 1, 1),
    ],
    ids=["as wanted", "faster", "twice at most", "half at least", "the smallest", "the largest", "a small form grows",
         "a small form is its own floor", "no time at all", "one row"],
)  # fmt: skip
def test_the_next_chunk_takes_the_wanted_time(last_rows: int, elapsed_s: float, first_rows: int, expected: int) -> None:
    assert next_chunk_rows(last_rows, elapsed_s, wanted_s=10.0, first_rows=first_rows) == expected


@pytest.mark.parametrize(
    ("last_rows", "elapsed_s", "expected"),
    [(50_000, 10.0, 100_000), (400_000, 20.0, 600_000), (1_800_000, 1.0, 2_000_000)],
)
def test_a_chunk_that_is_read_by_pages_may_be_larger_and_take_longer(
    last_rows: int, elapsed_s: float, expected: int
) -> None:
    assert next_chunk_rows(last_rows, elapsed_s, wanted_s=10.0, first_rows=50_000, by_pages=True) == expected
