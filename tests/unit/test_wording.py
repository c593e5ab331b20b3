"""Durations and plurals as people say them."""

from __future__ import annotations

import pytest

from tidemark.wording import counted, duration


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0, "0 s"),
        (0.38, "0.4 s"),
        (0.97, "1 s"),
        (59.6, "1 min"),
        (60, "1 min"),
        (511.04, "8 min 31 s"),
        (900, "15 min"),
        (3600, "1 h"),
        (3605, "1 h"),
        (7500.4, "2 h 5 min"),
        (86_400 * 3 + 3600 * 4 + 59, "3 d 4 h"),
        (-1, "0 s"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, message: str) -> None:
    assert duration(seconds) == message


@pytest.mark.parametrize(
    ("count", "noun", "message"),
    [(1, "chunk", "1 chunk"), (0, "chunk", "0 chunks"), (2, "batch", "2 batches"), (3, "entry", "3 entries")],
)
def test_a_noun_follows_its_number(count: int, noun: str, message: str) -> None:
    assert counted(count, noun) == message
