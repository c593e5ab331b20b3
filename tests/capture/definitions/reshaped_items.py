"""One captured table whose shape changes so that its Delta tables cannot take it: `Items`, and what changes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tidemark.capture.merge_planning import ingest
from tidemark.config import Evolve
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.ledger.captured import successors as shapes
from tidemark.ledger.captured.successors import Successor
from tidemark.ledger.captured.tables import TableRow

TYPE = "ALTER TABLE item ALTER number TYPE text USING 'number ' || number"
TYPE_BACK = "ALTER TABLE item ALTER number TYPE int USING length(number)"
KEY = "ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (number)"
IDENTITY = "ALTER TABLE item REPLICA IDENTITY USING INDEX item_number_idx"
KINDS = {"type": TYPE, "key": KEY, "identity": IDENTITY}
EACH_KIND = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "type" else pytest.mark.thorough) for kind in KINDS]
)


@dataclass
class Items:
    """One captured table with a staged row."""

    pipeline: Pipeline
    number: int = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipeline, name)

    def insert(self) -> int:
        self.number += 1
        self.pipeline.execute(f"INSERT INTO item VALUES ({self.number}, {self.number})")
        return self.number

    def ids(self, place: str = "") -> list[int]:
        return [row["id"] for row in self.pipeline.staged(f"public.item{place}")]

    def row(self, place: str = "") -> TableRow:
        return self.pipeline.table_row(f"public.item{place}")

    def kept_as(self) -> list[str]:
        return [table for (table,) in self.pipeline.ledger_query('SELECT "table" FROM tidemark.relations')]

    def shapes(self) -> dict[str, Successor]:
        with self.pipeline.ledger_connection() as book:
            return shapes.all_of(book)

    def evolve(self, how: Evolve) -> None:
        self.pipeline.config = replace(self.pipeline.config, evolve=how)

    def merge(self, *, noted: bool = True) -> MergePlan | None:
        """A plan, with the result of an application that came to its end."""
        plan = make_plan(self.pipeline.task("merge"))
        if plan is None:
            return None
        done = tuple(TableResult(t.table, t.end_lsn, t.end_lsn) for t in plan.tables)
        result = PlanResult(plan.plan, plan.pipeline, plan.generation, done, noted=noted)
        path = layout.result_file(plan.pipeline, plan.plan)
        self.pipeline.store.write_atomic(path, result.to_json().encode())
        ingest(self.pipeline.task("ingest"))
        return plan

    def fill(self, table: str) -> None:
        """As if a backfill had brought its rows."""
        self.pipeline.ledger_query(
            "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, "
            'backfill_since = NULL WHERE "table" = %s',
            table,
        )
