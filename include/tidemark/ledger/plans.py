"""Plans that were written and results that were ingested.

A plan's row exists before its Spark application starts; the application knows nothing of it (R10). Whoever comes next (this
task, or the one of the next run) ingests every result that lies beside an open plan. `ingest` is a compare-and-set on the
plan's row, so of two tasks that find one result exactly one counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidemark.ledger.leases import Lease
from tidemark.lsn import Lsn
from tidemark.target.plan import MergePlan, PlanResult


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """`path` of plan.json and `tables` (table id -> end LSN of the plan for it) as they were written."""

    plan: str
    generation: int
    run_id: str
    holder: str
    path: str
    tables: dict[str, Lsn]
    created_at: datetime


def record(connection: psycopg.Connection[Any], lease: Lease, plan: MergePlan, *, run_id: str, path: str) -> None:
    """Write the plan's row. Needs the leases `table:<id>` of all its tables."""
    ...


def not_ingested(connection: psycopg.Connection[Any], pipeline: str) -> list[RecordedPlan]:
    """The plans whose result was neither ingested nor given up, oldest first."""
    ...


def ingest(connection: psycopg.Connection[Any], pipeline: str, result: PlanResult) -> bool:
    """Keep the result with its plan; True exactly once per plan. Call it first in the transaction that raises the positions."""
    ...


def abandon(connection: psycopg.Connection[Any], pipeline: str, plan: str) -> None:
    """Stop looking for a result: every table of the plan is applied past it, or another plan covers it and a driver that still
    runs loses by its fence. Its positions, if it commits after all, are found by the next plan's driver."""
    ...
