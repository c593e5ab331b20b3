"""Sends a pipeline's figures as gauges through Airflow's own metrics (StatsD, OpenTelemetry, Datadog).

Airflow's configuration decides where they go. Each gauge is sent twice, as Airflow's own are: `tidemark.<gauge>` with
the tag `pipeline`, and `tidemark.<pipeline>.<gauge>` for a StatsD without tags. No gauge is per table, so their number
does not grow with the tables. docs/operations.md and docs/grafana.json list the gauges; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemark_airflow.version_compat import gauge as send

if TYPE_CHECKING:
    from tidemark.observe.run_verdict import ExaminedRun

_HEALTH: Final = {"ok": 0, "warning": 1, "red": 2}


def emit(examined: ExaminedRun) -> None:
    """Send the gauges whose values are known. The others are not sent, so a metrics store keeps their last values."""
    pipeline = examined.health.pipeline
    for gauge, value in values(examined).items():
        if value is not None:
            send(f"tidemark.{gauge}", value, tags={"pipeline": pipeline})
            send(f"tidemark.{pipeline}.{gauge}", value)


def values(examined: ExaminedRun) -> dict[str, float | None]:
    """Each gauge's value, None if it is not known. docs/operations.md, Metrics, describes them."""
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
