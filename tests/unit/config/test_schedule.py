"""The longest time between two runs of a cron schedule."""

from __future__ import annotations

import pytest

from tidemark.config.schedule import longest_gap_s

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        ("*/5 * * * *", 5 * MINUTE),
        ("* * * * *", MINUTE),
        ("0 * * * *", HOUR),
        ("@hourly", HOUR),
        ("@daily", DAY),
        ("7,37 * * * *", 30 * MINUTE),
        ("0,50 * * * *", 50 * MINUTE),
        ("*/7 * * * *", 7 * MINUTE),
        ("0 8-18 * * *", 14 * HOUR),
        ("*/15 8-18 * * mon-fri", 2 * DAY + 13 * HOUR + 15 * MINUTE),
        ("0 0 * * 0", 7 * DAY),
        ("0 0 * * 7", 7 * DAY),
        ("0 0 1 * *", 31 * DAY),
        ("0 0 1 JAN *", 366 * DAY),
        ("0 0 1 * mon", 7 * DAY),
    ],
)
def test_the_longest_gap(schedule: str, seconds: int) -> None:
    assert longest_gap_s(schedule) == seconds


@pytest.mark.parametrize(
    "schedule", [None, "@once", "@continuous", "every hour", "0 0 * *", "61 * * * *", "*/0 * * * *", "a b c d e"]
)
def test_what_is_no_cron_expression_has_no_gap(schedule: str | None) -> None:
    assert longest_gap_s(schedule) is None
