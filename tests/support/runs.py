"""The record of a run (`tidemark.run`) as a test needs it."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from tidemark.capture.merge_planning import PlanScope, leased_plan
from tidemark.config import PipelineConfig
from tidemark.formats.merge_plan import MergePlan
from tidemark.run import Run

EVERYTHING: Final = PlanScope()


def a_run(
    config: PipelineConfig,
    *,
    source: str = "",
    ledger: str = "",
    run_id: str = "run",
    holder: str = "task",
    **fields: Any,
) -> Run:
    """A task of a run; what it has no need of may be left out. `fields` are the record's other fields."""
    return Run(config, source, ledger, run_id, holder, **fields)


def has_run(ledger: str) -> None:
    """As if a capture had come to its end just now: the pipeline is not new any more, but for its backfills."""
    with psycopg.connect(ledger, autocommit=True) as connection:
        connection.execute("UPDATE tidemark.generations SET heartbeat_at = clock_timestamp()")


def make_plan(run: Run, scope: PlanScope = EVERYTHING) -> MergePlan | None:
    """A plan for everything staged and not applied, whose leases are given back; None if there is nothing."""
    with leased_plan(run, scope) as plan:
        return plan
