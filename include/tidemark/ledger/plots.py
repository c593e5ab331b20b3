"""The figures that runs left, for a plot over hours or days, and what they say of the present rate: rows of `runs`.

Of many runs those of one stretch of time are one point: the highest lag and WAL, the sum of changes, the longest stage.
So a peak of a minute is seen in the plot of 90 days too, and no plot has more than POINTS.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

from tidemark.ledger.connection import Ledger

POINTS: Final = 400
# Over so long a rate is of the present, and not of one run alone.
PRESENT_S: Final = 3600
FIGURES: Final = ("at", "changes_min", "lag_s", "lag_bytes", "retained_bytes", "drain_s", "merge_s", "run_s")


def over_time(ledger: Ledger, hours: int, points: int = POINTS) -> dict[str, list[Any]]:
    """By figure, oldest first; `at` is in seconds since 1970. `changes_min` is over the time since the point before."""
    rows = ledger.execute(
        """
        SELECT max(extract(epoch FROM ended_at))::bigint AS at, sum(changes)::bigint, max(lag_s), max(lag_bytes),
               max(retained_bytes), max((stages -> 'drain' ->> 's')::float8), max((stages -> 'merge' ->> 's')::float8),
               max(extract(epoch FROM ended_at - began_at))::float8
          FROM tidemark.runs
         WHERE pipeline = %(pipeline)s AND began_at > clock_timestamp() - make_interval(hours => %(hours)s)
           AND verdict IS NOT NULL
         GROUP BY date_bin(make_interval(secs => %(every_s)s), ended_at, to_timestamp(0))
         ORDER BY at
        """,
        {"pipeline": ledger.pipeline, "hours": hours, "every_s": max(1, hours * 3600 // points)},
    ).fetchall()
    columns: dict[str, list[Any]] = {name: [] for name in FIGURES}
    before = None
    for at, changes, *rest in rows:
        rate = None if before is None or changes is None or at == before else 60 * changes / (at - before)
        for name, value in zip(FIGURES, (at, rate, *rest), strict=True):
            columns[name].append(value)
        before = at
    return columns


def rates(ledger: Ledger) -> dict[str, Any]:
    """Changes per minute and WAL that the slot kept in addition, in bytes per second, of the last hour's runs; over how
    long, None where there are not two runs to tell."""
    row = ledger.execute(
        """
        SELECT sum(changes) - (array_agg(changes ORDER BY ended_at))[1], min(ended_at), max(ended_at),
               (array_agg(retained_bytes ORDER BY ended_at DESC))[1] - (array_agg(retained_bytes ORDER BY ended_at))[1]
          FROM tidemark.runs
         WHERE pipeline = %s AND began_at > clock_timestamp() - make_interval(secs => %s) AND verdict IS NOT NULL
        """,
        (ledger.pipeline, PRESENT_S),
    ).fetchone()
    assert row is not None
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
