"""Sends a pipeline's figures as gauges of Airflow's own Stats, so that whatever gets its metrics has them (StatsD,
OpenTelemetry, Datadog): nothing is configured here.

Each gauge goes out twice, as Airflow's own do: `tidemark.<gauge>` with the tag `pipeline`, and, for a StatsD without
tags, `tidemark.<pipeline>.<gauge>`. There is none per table: the number of them is that of the pipelines times that of
GAUGES, however many tables there are. docs/operations.md and docs/grafana.json name them; a test holds them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemark_airflow.version_compat import gauge as send

if TYPE_CHECKING:
    from tidemark.observe.run_verdict import Examined

GAUGES: Final = {
    "health": "0: every table is exact; 1: a warning; 2: red",
    "lag_s": "age of the oldest change that is not in the Delta tables, in seconds; 0 if there is none",
    "lag_bytes": "staged WAL that is not applied; up to the source if its WAL was not read for long",
    "wal_retained_bytes": "WAL that the source keeps for the slot",
    "wal_limit_bytes": "the source's limit of retained WAL (max_slot_wal_keep_size); absent without a limit",
    "staged_changes": "changes that the last run staged",
    "unapplied_batches": "staged batches that are not in every table that they touch",
    "unapplied_changes": "the changes in them",
    "tables": "tables of the pipeline",
    "tables_exact": "tables that are exact or deferred",
    "tables_parked": "parked tables",
    "tables_unfilled": "tables that need a backfill, are being backfilled, or are built in another shape",
    "tables_behind": "tables that wait for a merge, or whose merge failed",
}
_HEALTH: Final = {"ok": 0, "warning": 1, "red": 2}


def emit(examined: Examined) -> None:
    """Send what is known; what is not is left out, and keeps its last value where that is kept."""
    pipeline = examined.health.pipeline
    for gauge, value in values(examined).items():
        if value is not None:
            send(f"tidemark.{gauge}", value, tags={"pipeline": pipeline})
            send(f"tidemark.{pipeline}.{gauge}", value)


def values(examined: Examined) -> dict[str, float | None]:
    """Each of GAUGES."""
    figures, states = examined.figures, list(examined.health.states.values())
    seen = figures.tables is not None

    def counted(*wanted: str) -> int | None:
        return sum(state.startswith(wanted) for state in states) if seen else None

    return {
        "health": _HEALTH[figures.verdict],
        "lag_s": figures.lag_s,
        "lag_bytes": figures.lag_bytes,
        "wal_retained_bytes": figures.retained_bytes,
        "wal_limit_bytes": figures.limit_bytes,
        "staged_changes": examined.changes,
        "unapplied_batches": figures.unapplied_batches,
        "unapplied_changes": figures.unapplied_changes,
        "tables": counted(""),
        "tables_exact": counted("exact", "deferred"),
        "tables_parked": counted("parked"),
        "tables_unfilled": counted("needs a backfill", "being backfilled", "another shape"),
        "tables_behind": counted("behind", "failed"),
    }
