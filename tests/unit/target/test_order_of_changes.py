"""Staged changes in R1 order, whatever order their files came in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.target.driver.change_reader import in_order


@pytest.mark.parametrize(
    "positions",
    [
        [],
        [(5, 0)],
        [(5, 0), (5, 1), (9, 0)],
        [(5, 0), (9, 0), (7, 0)],
        [(5, 1), (5, 0)],
        [(9, 0), (5, 7)],
        [(5, 0), (9, 3), (9, 2), (9, 10)],
    ],
)
def test_changes_come_in_the_order_of_their_commits_and_within_them(positions: list[tuple[int, int]]) -> None:
    changes = pa.table(
        {
            "_commit_lsn": pa.array([lsn for lsn, _ in positions], pa.int64()),
            "_ordinal": pa.array([ordinal for _, ordinal in positions], pa.int64()),
            "id": pa.array([f"{lsn}/{ordinal}" for lsn, ordinal in positions], pa.string()),
        }
    )
    halves = pa.concat_tables([changes.slice(0, 1), changes.slice(1)])
    assert in_order(halves)["id"].to_pylist() == [f"{lsn}/{ordinal}" for lsn, ordinal in sorted(positions)]
