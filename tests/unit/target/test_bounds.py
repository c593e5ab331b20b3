"""Bounds in Delta's log: of integers and commit times, never of the source's own times."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from tidemark.target.delta.delta_tables import WrittenFile
from tidemark.target.driver.arrow_columns import bounds

TIMES = pa.timestamp("us", "UTC")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_time_of_the_source_has_none_and_need_not_be_one_of_pythons() -> None:
    rows = pa.table(
        {
            "id": pa.array([3, 1], pa.int64()),
            "valid_to": pa.array([2**63 - 1, 0], TIMES),
            "_committed_at": pa.array([NOON + timedelta(seconds=1), NOON], TIMES),
            "number": pa.array([1, None], pa.int64()),
        }
    )
    assert dict(bounds(rows, rows.column_names)) == {
        "id": (1, 3),
        "_committed_at": (NOON, NOON + timedelta(seconds=1)),
    }


@pytest.mark.parametrize(
    ("microsecond", "low", "high"),
    [(0, "000", "000"), (1, "000", "001"), (1000, "001", "001"), (998_999, "998", "999")],
)
def test_a_bound_of_a_time_is_rounded_away_from_the_values(microsecond: int, low: str, high: str) -> None:
    time = NOON.replace(microsecond=microsecond).astimezone(timezone(timedelta(hours=5)))
    action = json.loads(WrittenFile("f", 1, 1, {"_committed_at": (time, time)}).to_json(0))
    statistics = json.loads(action["add"]["stats"])
    assert statistics["minValues"] == {"_committed_at": f"2026-01-01T12:00:00.{low}Z"}
    assert statistics["maxValues"] == {"_committed_at": f"2026-01-01T12:00:00.{high}Z"}
