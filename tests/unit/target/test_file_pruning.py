"""Ranges of keys are closed where the gaps between them are smallest."""

from __future__ import annotations

from tidemark.target.driver.file_pruning import join_ranges


def test_the_smallest_gaps_are_closed_and_nothing_is_left_out() -> None:
    ranges = [(50, 60), (1, 3), (5, 7), (55, 70), (100, 100), (200, 210), (215, 220)]
    assert join_ranges(ranges, 4) == [(1, 7), (50, 70), (100, 100), (200, 220)]
    assert join_ranges(ranges, 1) == [(1, 220)]
    assert join_ranges(ranges, 9) == [(1, 3), (5, 7), (50, 70), (100, 100), (200, 210), (215, 220)]
    assert join_ranges([]) == []
