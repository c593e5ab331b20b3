"""Reads the figures of runs as points of a plot, and computes present rates from them.

The runs of one period become one point (`runs.stretches`), so a plot has at most POINTS points, and a plot of 90 days
still shows a peak of one minute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations import runs

POINTS: Final = 400
# Over so long a rate is of the present, and not of one run alone.
PRESENT: Final = timedelta(hours=1)
FIGURES: Final = ("lag_s", "lag_bytes", "retained_bytes", "drain_s", "merge_s", "run_s")


def over_time(ledger: Ledger, hours: int, now: datetime, points: int = POINTS) -> dict[str, list[Any]]:
    """The points by figure, oldest first; `at` is in seconds since 1970. `changes_min` covers the time since the
    previous point."""
    every_s = max(1, hours * 3600 // points)
    stretches = runs.stretches(ledger, now - timedelta(hours=hours), every_s)
    columns: dict[str, list[Any]] = {"at": [], "changes_min": []} | {name: [] for name in FIGURES}
    before = None
    for stretch in stretches:
        at, changes = stretch["at"], stretch["changes"]
        columns["at"].append(round(at.timestamp()))
        columns["changes_min"].append(
            None if before is None or changes is None else 60 * changes / (at - before).total_seconds()
        )
        for name in FIGURES:
            columns[name].append(stretch[name])
        before = at
    return columns


def rates(ledger: Ledger, now: datetime) -> dict[str, Any]:
    """Changes per minute, and growth of the slot's retained WAL in bytes per second, from the runs of the last
    hour, and the time that they cover. None without two runs."""
    row = ledger.row(
        """
        SELECT sum(changes) - (array_agg(changes ORDER BY ended_at))[1], min(ended_at), max(ended_at),
               (array_agg(retained_bytes ORDER BY ended_at DESC))[1] - (array_agg(retained_bytes ORDER BY ended_at))[1]
          FROM tidemark.runs
         WHERE pipeline = %s AND began_at > %s AND verdict IS NOT NULL
        """,
        (ledger.pipeline, now - PRESENT),
    )
    changes, first, last, kept = row
    over_s = 0.0 if first is None else (last - first).total_seconds()
    if not over_s:
        return {"over_s": None, "changes_min": None, "retained_bytes_s": None, "as_of": None}
    return {
        "over_s": over_s,
        "changes_min": None if changes is None else float(60 * changes) / over_s,
        "retained_bytes_s": None if kept is None else kept / over_s,
        "as_of": last.astimezone(UTC).isoformat(),
    }
