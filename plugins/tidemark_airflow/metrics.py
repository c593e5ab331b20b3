"""Sends a pipeline's figures as gauges of Airflow's own Stats, so that whatever gets its metrics has them (StatsD,
OpenTelemetry, Datadog): nothing is configured here.

Each gauge goes out twice, as Airflow's own do: `tidemark.<gauge>` with the tag `pipeline`, and, for a StatsD without
tags, `tidemark.<pipeline>.<gauge>`. There is none per table: their number is the same however many tables there are.
docs/operations.md and docs/grafana.json name them; a test holds them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemark_airflow.version_compat import gauge as send

if TYPE_CHECKING:
    from tidemark.observe.run_verdict import ExaminedRun

_HEALTH: Final = {"ok": 0, "warning": 1, "red": 2}


def emit(examined: ExaminedRun) -> None:
    """Send what is known; what is not is left out, and keeps its last value where that is kept."""
    pipeline = examined.health.pipeline
    for gauge, value in values(examined).items():
        if value is not None:
            send(f"tidemark.{gauge}", value, tags={"pipeline": pipeline})
            send(f"tidemark.{pipeline}.{gauge}", value)


def values(examined: ExaminedRun) -> dict[str, float | None]:
    """Each gauge; what they mean stands in docs/operations.md, Metrics."""
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
