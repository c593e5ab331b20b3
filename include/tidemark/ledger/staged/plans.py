"""Stores plans, and ingests the results of Spark applications.

A plan's row exists before its Spark application starts; the application has no access to it (R10). This task, or that
of the next run, ingests every result beside an open plan. `ingest` is a compare-and-set on the plan's row, so of two
tasks exactly one counts a result.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from psycopg.types.json import Jsonb

from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease, of_table
from tidemark.lsn import Lsn


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """`tables`: table id -> end LSN of the plan for it."""

    plan: str
    generation: int
    tables: dict[str, Lsn]


def record(ledger: Ledger, lease: Lease, plan: MergePlan, *, run_id: str, path: str) -> None:
    """Write the plan's row. Needs the leases `table:<id>` of all its tables."""
    with ledger.transaction():
        lease.check(ledger, *(of_table(t.table) for t in plan.tables))
        _insert(ledger, plan, run_id=run_id, holder=lease.holder, path=path)


def record_from_lake(ledger: Ledger, lease: Lease, plan: MergePlan, *, path: str) -> None:
    """Write the row of a plan that the lake has and a restored ledger lacks; its result is then ingested as any
    other. Needs the lease `slot`, as registering a batch again does."""
    with ledger.transaction():
        lease.check(ledger, SLOT)
        _insert(ledger, plan, run_id="", holder=lease.holder, path=path)


def _insert(ledger: Ledger, plan: MergePlan, *, run_id: str, holder: str, path: str) -> None:
    ledger.insert(
        "plans",
        or_nothing=True,
        plan=plan.plan,
        generation=plan.generation,
        run_id=run_id,
        holder=holder,
        path=path,
        tables=Jsonb({t.table: str(t.end_lsn) for t in plan.tables}),
    )


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """`ended` is `ingested`, `abandoned`, or `open`."""

    plan: str
    created_at: datetime
    tables: int
    ended: str


def last(ledger: Ledger, number: int) -> list[PlanSummary]:
    """The last plans, newest first."""
    rows = ledger.execute(
        """
        SELECT plan, created_at, (SELECT count(*) FROM jsonb_object_keys(tables)),
               CASE WHEN ingested_at IS NOT NULL THEN 'ingested' WHEN abandoned_at IS NOT NULL THEN 'abandoned'
                    ELSE 'open' END
          FROM tidemark.plans WHERE pipeline = %s ORDER BY created_at DESC LIMIT %s
        """,
        (ledger.pipeline, number),
    )
    return [PlanSummary(*row) for row in rows]


def recorded(ledger: Ledger) -> set[str]:
    """The names of all plans, ingested and abandoned ones included."""
    rows = ledger.execute("SELECT plan FROM tidemark.plans WHERE pipeline = %s", (ledger.pipeline,))
    return {plan for (plan,) in rows}


def not_ingested(ledger: Ledger) -> list[RecordedPlan]:
    """The plans whose result was neither ingested nor abandoned, oldest first."""
    rows = ledger.execute(
        """
        SELECT plan, generation, tables FROM tidemark.plans
         WHERE pipeline = %s AND ingested_at IS NULL AND abandoned_at IS NULL ORDER BY created_at, plan
        """,
        (ledger.pipeline,),
    ).fetchall()
    return [
        RecordedPlan(plan, generation, {t: Lsn.parse(end) for t, end in tables.items()})
        for plan, generation, tables in rows
    ]


def ingest(ledger: Ledger, result: PlanResult) -> bool:
    """Store the result with its plan; True exactly once per plan. Call it first in the transaction that raises the
    positions."""
    return ledger.wrote_one(
        """
        UPDATE tidemark.plans SET result = %s, ingested_at = clock_timestamp()
         WHERE pipeline = %s AND plan = %s AND ingested_at IS NULL
        """,
        (Jsonb(json.loads(result.to_json())), ledger.pipeline, result.plan),
    )


def result_of(ledger: Ledger, plan: str) -> PlanResult | None:
    """The ingested result; None if there is none."""
    row = ledger.execute(
        "SELECT result FROM tidemark.plans WHERE pipeline = %s AND plan = %s", (ledger.pipeline, plan)
    ).fetchone()
    return None if row is None or row[0] is None else PlanResult.from_json(json.dumps(row[0]))


@dataclass(frozen=True, slots=True)
class LastMerge:
    """One merge of a table: its rows in `history`, its duration, the way and reason of each step, and the class of
    each error after which Spark took over. `planned_by` is the planning run, `<dag>/<run>`."""

    plan: str
    at: datetime
    planned_by: str
    changes: int
    seconds: float
    way: dict[str, str]
    why: dict[str, str]
    fall_backs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergedTable:
    """What the plans of one run did to a table; `first_plan` is the path of the first one's plan.json."""

    table: str
    generation: int
    first_plan: str
    rows: dict[str, int]


def merged_by(ledger: Ledger, run_id: str) -> list[MergedTable]:
    """The tables of the run's ingested plans, summed over all tries of its tasks."""
    rows = ledger.execute(
        """
        SELECT p.generation, p.path, t.value ->> 'table', t.value -> 'rows'
          FROM tidemark.plans p CROSS JOIN LATERAL jsonb_array_elements(p.result -> 'tables') t
         WHERE p.pipeline = %s AND p.run_id = %s AND p.ingested_at IS NOT NULL ORDER BY p.created_at, p.plan
        """,
        (ledger.pipeline, run_id),
    )
    first: dict[tuple[str, int], str] = {}
    counts: dict[tuple[str, int], Counter[str]] = {}
    for generation, path, table, merged in rows:
        first.setdefault((table, generation), path)
        counts.setdefault((table, generation), Counter()).update(merged or {})
    return [MergedTable(*of, path, dict(counts[of])) for of, path in first.items()]


def last_merges(ledger: Ledger, table: str) -> tuple[LastMerge, ...]:
    """The last merges of the table that did anything: at most ten, of the latest 100 ingested plans, newest first."""
    rows = ledger.execute(
        """
        SELECT p.plan, p.ingested_at, p.run_id, (t.value -> 'rows' ->> 'history')::bigint,
               (t.value ->> 'seconds')::float8, t.value -> 'way', t.value -> 'why', t.value -> 'fall_backs'
          FROM (SELECT created_at, ingested_at, plan, run_id, result FROM tidemark.plans
                 WHERE pipeline = %s AND ingested_at IS NOT NULL AND tables ? %s
                 ORDER BY created_at DESC, plan DESC LIMIT 100) p
         CROSS JOIN LATERAL jsonb_array_elements(p.result -> 'tables') t
         WHERE t.value ->> 'table' = %s AND t.value -> 'way' <> '{}'
         ORDER BY p.created_at DESC, p.plan DESC LIMIT 10
        """,
        (ledger.pipeline, table, table),
    )
    return tuple(
        LastMerge(plan, at, run, changes or 0, seconds or 0.0, way, why or {}, tuple(fall_backs or ()))
        for plan, at, run, changes, seconds, way, why, fall_backs in rows
    )


def abandon(ledger: Ledger, plan: str) -> None:
    """Stop waiting for a result. Every table of the plan is applied past it, or another plan covers it and its
    driver, if it still runs, is fenced. If it commits after all, the next plan's driver reads its positions."""
    ledger.execute(
        "UPDATE tidemark.plans SET abandoned_at = clock_timestamp() "
        "WHERE pipeline = %s AND plan = %s AND ingested_at IS NULL AND abandoned_at IS NULL",
        (ledger.pipeline, plan),
    )
