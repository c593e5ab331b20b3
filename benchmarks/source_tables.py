"""Tables of a source that is not there: staged files written by hand, as a drain would have written them.

So the merge is measured alone, with as many tables and as many merges in a row as no server here could make in time.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.formats import layout
from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema

PIPELINE: Final = "bench"
THREADS: Final = 4  # tables that are merged at the same time
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS: Final = {
    "id": "bigint",
    "customer": "int",
    "name": "string",
    "price": "decimal(10,2)",
    "weight": "double",
    "created": "timestamp",
    "active": "boolean",
    "note": "string",
}


@dataclass
class SourceTable:
    """What a source would do to one table, staged: `next_batch` is one batch more."""

    lake: Path
    number: int
    random: random.Random
    keys: list[int] = field(default_factory=list)
    lsn: int = 0x1000
    end_lsn: Lsn | None = None

    @property
    def schema(self) -> TableSchema:
        columns = tuple(Column(name, target, 25, -1, target) for name, target in COLUMNS.items())
        return TableSchema(TableName("public", f"t{self.number:04}"), 1, 16384, "default", ("id",), columns)

    def next_batch(self, inserts: int, updates: int = 0, deletes: int = 0, unchanged: float = 0.0) -> PlannedTable:
        """`unchanged` is the share of updates that come without their long value."""
        start = self.lsn
        rows: list[dict[str, Any]] = []
        first = max(self.keys, default=0) + 1
        for key in range(first, first + inserts):
            rows.append(self._row("insert", key))
        for key in self.random.sample(self.keys, updates + deletes) if updates + deletes else []:
            if len(rows) < inserts + updates:
                rows.append(self._row("update", key, has_note=self.random.random() >= unchanged))
            else:
                rows.append({**dict.fromkeys(self._row("delete", key)), "_op": "delete", "id": key})
                self.keys.remove(key)
        self.keys += range(first, first + inserts)
        masked = 0
        for ordinal, row in enumerate(rows):
            masked += bool(row.get("_unchanged"))
            row |= {"_generation": 1, "_commit_lsn": start, "_ordinal": ordinal, "_xid": start}
            row |= {"_committed_at": NOON + timedelta(seconds=start)}
        self.lsn += 0x10
        batch = PlannedBatch(Lsn(start), Lsn(self.lsn), (self._written(rows, Lsn(start)),), masked, 0, 0)
        after, self.end_lsn = self.end_lsn, batch.end_lsn
        return PlannedTable(str(self.schema.table), after, (self.schema,), (batch,))

    def next_changes(self, rows: int, unchanged: float = 0.1) -> PlannedTable:
        """An ordinary batch: updates for the most part, a tenth each inserts and deletes."""
        some = max(1, rows // 10)
        return self.next_batch(some, max(0, rows - 2 * some), some, unchanged)

    def _row(self, op: str, key: int, *, has_note: bool = True) -> dict[str, Any]:
        return {
            "_op": op,
            "id": key,
            "customer": self.random.randrange(5000),
            "name": f"name of {key}",
            "price": None,
            "weight": self.random.random(),
            "created": NOON + timedelta(seconds=key),
            "active": bool(key % 2),
            "note": f"a note of some length {self.random.random()}" * 4 if has_note else None,
            "_unchanged": None if has_note else ["note"],
        }

    def _written(self, rows: Sequence[dict[str, Any]], lsn: Lsn) -> StagedFile:
        folder = layout.batch_folder(PIPELINE, 1, lsn, "attempt")
        path = layout.changes_file(folder, self.schema.table, 1, 1)
        file = self.lake / path
        file.parent.mkdir(parents=True, exist_ok=True)
        shape = staged_schema(self.schema)
        pq.write_table(pa.Table.from_pylist(list(rows), shape), file, compression="zstd")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        return StagedFile(path, len(rows), file.stat().st_size, sha256, 1)


def plan_of(name: str, lake: Path, tables: Sequence[PlannedTable]) -> MergePlan:
    """A plan of these tables, with its file."""
    plan = MergePlan(name, PIPELINE, 1, str(lake), THREADS, tuple(tables))
    path = lake / layout.plan_file(PIPELINE, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(plan.to_json())
    return plan
