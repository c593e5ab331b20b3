"""A ledger and a lake in which a test itself leaves what drains, readers and Spark applications would leave there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.backfills import chunk_of, claim_of, record
from tests.support.manifests import manifest_of, path_of
from tests.support.pipeline import Place
from tests.support.runs import make_plan
from tidemark.backfill.backfill_requests import RequestedTable, requested_tables
from tidemark.capture.merge_planning import Ingested, ingest
from tidemark.formats import layout
from tidemark.formats.manifest import Claim, Sweep
from tidemark.formats.merge_plan import MergePlan, PlannedTable
from tidemark.formats.merge_result import ChunkResult, Holes, PlanResult, TableResult
from tidemark.ledger.captured import backfill_marks, joins, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.reading import backfills
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.staged import batches
from tidemark.lsn import Lsn, WalPoint


@dataclass
class HandMerged(Place):
    """`book` and `lease` are those of a test that takes the parts of drain, readers and application."""

    book: Ledger
    lease: Lease
    end: int = 100

    def stage(self, *touched: str, **fields: Any) -> int:
        """The next batch; returns its end."""
        start, self.end = self.end, self.end + 100
        manifest = manifest_of(start, self.end, *touched, **fields)
        batches.register(self.book, self.lease, manifest, path_of(manifest))
        return self.end

    def claim(self, *chunks_or_claims: ReadChunk | Claim, sweeps: tuple[Sweep, ...] = (), **fields: Any) -> int:
        claims = tuple(c if isinstance(c, Claim) else claim_of(c, self.end + 99) for c in chunks_or_claims)
        return self.stage(claims={"s.a": claims}, sweeps={"s.a": sweeps}, **fields)

    def read(self, backfill: Backfill, chunk: str = "1-1", **fields: Any) -> ReadChunk:
        read = chunk_of(backfill, chunk, **fields)
        assert record(self.ledger, read, done=True)
        return read

    def plan(self) -> MergePlan:
        plan = make_plan(self.task("merge", "run1"))
        assert plan is not None
        return plan

    def planned(self, table: str = "s.a") -> PlannedTable:
        (planned_table,) = (t for t in self.plan().tables if t.table == table)
        return planned_table

    def merge(
        self,
        results: tuple[ChunkResult, ...] = (),
        swept: dict[str, int] | None = None,
        holes: Holes | None = None,
        plan: MergePlan | None = None,
    ) -> Ingested:
        """A plan, and the result of an application that reached its end."""
        self.leave(plan or self.plan(), results, swept, holes)
        return ingest(self.task())

    def leave(
        self,
        plan: MergePlan,
        results: tuple[ChunkResult, ...] = (),
        swept: dict[str, int] | None = None,
        holes: Holes | None = None,
    ) -> None:
        tables = tuple(
            TableResult(
                t.table,
                t.end_lsn,
                t.end_lsn,
                {"history": t.rows},
                holes=holes if t.table == "s.a" else None,
                chunks=results,
                swept=swept or {},
            )
            for t in plan.tables
        )
        result = PlanResult(plan.plan, plan.pipeline, plan.generation, tables)
        self.store.write_atomic(layout.result_file("shop", plan.plan), result.to_json().encode())

    def row(self, table: str = "s.a") -> TableRow:
        table_row = tables.one(self.book, table)
        assert table_row is not None
        return table_row

    def backfill(self, backfill: str = "b1") -> Backfill:
        row = backfills.one(self.book, backfill)
        assert row is not None
        return row

    def join(self, table: str = "s.a") -> None:
        row = tables.one(self.book, table)
        if row is None or row.life.awaits_its_join:
            joins.join(self.book, table, 600, WalPoint(1, Lsn(50)), backfill=None)

    def mark(self, kind: str = backfill_marks.EXISTING_ROWS, table: str = "s.a") -> None:
        self.join(table)
        backfill_marks.mark(self.book, table, kind, "rows from before")

    def requested_tables(self) -> list[RequestedTable]:
        return requested_tables(self.task())
