"""A lake whose staging is written by hand: changes -> staged files -> a plan -> the two Delta tables, read back."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from tests.support import delta_files
from tests.support.thorough import either, thorough
from tests.target.model import Change, Row
from tidemark.formats import layout
from tidemark.formats.columns import chunk_schema, staged_schema
from tidemark.formats.manifest import Claim, StagedFile, Sweep
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.evolution import called_before, dropped_before, filled_after
from tidemark.schema.table import Column, Identity, TableSchema
from tidemark.staging.batch_writer import BatchWriter
from tidemark.storage.store import Store
from tidemark.target.plans.plan_execution import apply_plan

PIPELINE = "shop"

# A test may stage one batch anew; a file of staging is never written twice.
_attempts = itertools.count()

# Of tests that hold for both ways of folding few changes, see the fixture `way`.
both_ways = pytest.mark.parametrize("way", either(spark="spark", driver="driver"), indirect=True)
every_way = pytest.mark.parametrize(
    "way", [*either(spark="spark", driver="driver"), *thorough("public")], indirect=True
)
# Of tests of Spark's way whose promise a scenario keeps for few changes, which are the driver's.
by_spark = pytest.mark.parametrize("way", ["spark", *thorough("driver", "public")], indirect=True)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def table_schema(
    name: str,
    columns: dict[str, str],
    key: Sequence[str] = ("id",),
    identity: Identity = "default",
    version: int = 1,
    schema: str = "public",
) -> TableSchema:
    listed = tuple(Column(c, target, 25, -1, target) for c, target in columns.items())
    return TableSchema(TableName(schema, name), version, 16384, identity, tuple(key), listed)


TEXTS = {"id": "int", "n": "int", "body": "string", "note": "string"}


@dataclass
class StagedTable:
    """One table's staging: `stage` adds a batch of whole transactions, given as lists of changes, in one file or in
    files of so many changes. `clock` gives the time of a commit by its LSN."""

    lake: Path
    schema: TableSchema
    lsns: Any
    batches: list[PlannedBatch] = field(default_factory=list)
    schemas: list[TableSchema] = field(default_factory=list)
    generation: int = 1
    changes_a_file: int | None = None
    clock: Callable[[int], datetime] = lambda commit: NOON + timedelta(seconds=commit)

    def __post_init__(self) -> None:
        self._start = self.next_lsn()

    @property
    def id(self) -> str:
        return str(self.schema.table)

    def stage(self, *transactions: Iterable[Change]) -> PlannedBatch:
        commits = []
        self._start = self.next_lsn()
        for transaction in transactions:
            commit = self.next_lsn()
            commits.append((commit, commit, list(transaction)))
        return self.stage_committed(commits)

    def next_lsn(self) -> int:
        return int(next(self.lsns))

    def stage_committed(
        self,
        transactions: Sequence[tuple[int, int, list[Change]]],
        claims: tuple[Claim, ...] = (),
        sweeps: tuple[Sweep, ...] = (),
    ) -> PlannedBatch:
        """A batch of transactions given as commit LSN, transaction id and changes, and of chunks."""
        if self.schema not in self.schemas:
            self.schemas.append(self.schema)
        start, end = Lsn(self._start), Lsn(self.next_lsn())
        self._start = int(end)
        rows: list[Row] = []
        changes: list[Change] = []
        for commit, xid, transaction in transactions:
            for ordinal, change in enumerate(transaction):
                rows.append(self._row(change, commit, ordinal, xid))
                changes.append(change)
        folder = layout.batch_folder(PIPELINE, self.generation, start, f"attempt{next(_attempts)}")
        batch = PlannedBatch(
            start,
            end,
            self._write_changes(folder, rows),
            claims=claims,
            sweeps=sweeps,
            unchanged=sum(bool(c.unchanged) for c in changes),
            moved=sum(c.old_key is not None for c in changes),
            truncates=sum(c.op == "truncate" for c in changes),
        )
        self.batches.append(batch)
        return batch

    def stage_chunk(self, backfill: str, chunk: str, rows: Sequence[Row], *, snapshot: str, low: int) -> Claim:
        """A chunk's rows in their file; its watermark is still to come."""
        if self.schema not in self.schemas:
            self.schemas.append(self.schema)
        files: tuple[StagedFile, ...] = ()
        if rows:
            folder = layout.chunk_folder(PIPELINE, backfill, self.schema.table, chunk, "attempt")
            path = layout.chunk_file(folder, self.schema.table, self.schema.version, 1)
            written = self._write(path, pa.Table.from_pylist(list(rows), chunk_schema(self.schema)))
            files = (StagedFile(path, written.rows, written.bytes, written.sha256, self.schema.version),)
        when = NOON.isoformat()
        return Claim(backfill, chunk, "attempt", Lsn(0), when, Lsn(low), snapshot, None, len(rows), files)

    def _write_changes(self, folder: str, rows: Sequence[Row]) -> tuple[StagedFile, ...]:
        """As a drain does, that ends a file at its first byte."""
        writer = BatchWriter(Store(str(self.lake)), folder, row_group_bytes=1, file_bytes=1)
        each = self.changes_a_file or max(1, len(rows))
        for at in range(0, len(rows), each):
            piece = pa.RecordBatch.from_pylist(list(rows[at : at + each]), staged_schema(self.schema))
            writer.write(self.schema, piece)
        return writer.finish().get(self.schema.table, ())

    def _write(self, path: str, rows: pa.Table) -> StagedFile:
        file = self.lake / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, file)
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        return StagedFile(path, rows.num_rows, file.stat().st_size, sha256, self.schema.version)

    def _row(self, change: Change, commit: int, ordinal: int, xid: int) -> Row:
        return {
            "_generation": self.generation,
            "_commit_lsn": commit,
            "_ordinal": ordinal,
            "_xid": xid,
            "_committed_at": self.clock(commit),
            "_op": change.op,
            **change.row,
            "_old_key": change.old_key,
            "_unchanged": list(change.unchanged) or None,
            "_text": change.text and list(change.text.items()),
            "_old": change.old,
        }

    def planned(self, first: int = 0, last: int | None = None) -> PlannedTable:
        """Batches `first` to `last` (exclusive), as a plan that knows of the ones before."""
        chosen = self.batches[first:last]
        evidence = self.batches[:first] if any(b.claims or b.sweeps for b in chosen) else []
        used = {f.schema_version for b in (*chosen, *evidence) for f in b.files}
        used |= {f.schema_version for b in (*chosen, *evidence) for c in b.claims for f in c.files}
        followed = tuple(s for s in self.schemas if s.version in used) or (self.schema,)
        newest = followed[-1]
        return PlannedTable(
            self.id,
            self.batches[first - 1].end_lsn if first else None,
            followed,
            tuple(chosen),
            tuple(evidence),
            dropped=dropped_before((s for s in self.schemas if s.version <= newest.version), newest),
            ahead=filled_after((s for s in self.schemas if s.version > newest.version), newest),
            called=called_before(self.schemas, min(used, default=self.schema.version), newest),
        )


class Lake:
    """One lake root; every table of it stages on its own LSNs."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.uri = str(root)
        self._plans = itertools.count(1)

    def table(self, schema: TableSchema) -> StagedTable:
        return StagedTable(self.root, schema, itertools.count(0x16B374000, 0x10))

    def plan(self, *tables: PlannedTable, threads: int = 2, generation: int = 1) -> MergePlan:
        return MergePlan(f"p{next(self._plans)}", PIPELINE, generation, self.uri, threads, tables)

    def apply(self, *tables: PlannedTable, threads: int = 2, generation: int = 1) -> PlanResult:
        return apply_plan(self.spark, self.plan(*tables, threads=threads, generation=generation))

    def applied(self, *tables: PlannedTable) -> list[TableResult]:
        """Apply, and insist that no table failed."""
        result = self.apply(*tables)
        errors = {t.table: t.error.message for t in result.tables if t.error is not None}
        assert not errors, errors
        return list(result.tables)

    def path(self, step: str, table: StagedTable) -> str:
        place = layout.history_table if step == "history" else layout.current_table
        return f"{self.uri}/{place(PIPELINE, table.schema.table)}"

    def folder(self, step: str, table: StagedTable) -> Path:
        """The files of a Delta table as they are now."""
        return Path(self.path(step, table))

    def read(self, step: str, table: StagedTable) -> DataFrame:
        return self.spark.read.format("delta").load(self.path(step, table))

    def current(self, table: StagedTable) -> list[Row]:
        """The rows without metadata, in the key's order."""
        by = table.schema.key or [c.name for c in table.schema.columns]
        rows = [row for _, row in self._rows("current", table)]
        return sorted(rows, key=lambda row: str([row[k] for k in by]))

    def history(self, table: StagedTable) -> list[tuple[str, Row]]:
        """Operation and row, in R1 order, the delete of a key change before its insert."""
        return self._rows("history", table)

    def _rows(self, step: str, table: StagedTable) -> list[tuple[str, Row]]:
        maps = {c.name for c in table.schema.columns if c.target.startswith("map")}
        names = [c.name for c in table.schema.columns]
        return [
            (r.get("_op", ""), {n: dict(r[n]) if n in maps and r[n] is not None else r[n] for n in names})
            for r in self.stored(step, table)
        ]

    def stored(self, step: str, table: StagedTable) -> list[Row]:
        """The rows with metadata; those of history in R1 order. Without Spark, whose queries would be most of a test's
        time."""
        delta = delta_files.read(self.folder(step, table))
        assert delta is not None, f"there is no {step}"
        rows = delta.rows_as_stored()
        if step == "history":
            rows.sort(key=lambda r: (r["_commit_lsn"], r["_ordinal"], r["_op"]))
        return rows

    def version(self, step: str, table: StagedTable) -> int:
        logs = sorted((self.folder(step, table) / "_delta_log").glob("*.json"))
        return int(logs[-1].stem) if logs else -1


class LakeInABucket(Lake):
    """Staging is written in a folder here, and put into the bucket before a plan is applied. `put` puts an object of a
    name, `copy` brings all that lies there into a folder."""

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        uri: str,
        put: Callable[[str, bytes], object],
        copy: Callable[[Path], None],
    ) -> None:
        super().__init__(spark, root)
        self.uri = uri
        self._put_object = put
        self._copy = copy
        self._put: set[Path] = set()

    def apply(self, *tables: PlannedTable, threads: int = 2, generation: int = 1) -> PlanResult:
        for file in {path for path in self.root.rglob("*") if path.is_file()} - self._put:
            self._put_object(f"lake/{file.relative_to(self.root)}", file.read_bytes())
            self._put.add(file)
        return super().apply(*tables, threads=threads, generation=generation)

    def folder(self, step: str, table: StagedTable) -> Path:
        copied = self.root.with_name("copied")
        self._copy(copied)
        return copied / "lake" / self.path(step, table).removeprefix(f"{self.uri}/")


def with_columns(schema: TableSchema, added: dict[str, str]) -> TableSchema:
    """The next version of a schema, with columns behind the others."""
    columns = tuple(Column(c, target, 25, -1, target) for c, target in added.items())
    return replace(schema, version=schema.version + 1, columns=schema.columns + columns)
