"""Chunks that are compared with a hand-made target: staged, planned, and what came of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.target.lake import PIPELINE, Lake, StagedTable
from tests.target.model import Change, Row
from tidemark.formats import layout
from tidemark.formats.manifest import KeyPart, Purpose, Sweep
from tidemark.formats.merge_plan import PlannedTable
from tidemark.formats.merge_result import TableResult
from tidemark.lsn import Lsn
from tidemark.names import spark_identifier
from tidemark.schema.table import TableSchema

# Of a snapshot that saw every transaction.
SEEN = f"{2**40}:{2**40}:"


def row(key: int, **values: Any) -> Row:
    return {"id": key, "n": key, "body": f"body {key}", "note": None, **values}


def verify(table: StagedTable, rows: list[Row], purpose: Purpose, parts: tuple[KeyPart, ...] | None = None) -> None:
    """Stages one chunk of these rows, which is all of a verify; its snapshot saw everything."""
    number = len(table.batches)
    claim = table.stage_chunk(f"v{number}", "1-1", rows, snapshot=SEEN, low=table.next_lsn())
    claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()), purpose=purpose)
    sweeps = (Sweep(f"v{number}", SEEN, 1, purpose, parts),) if table.schema.key else ()
    table.stage_committed([], (claim,), sweeps)


def planned(table: StagedTable, first: int, *, with_evidence: bool = False) -> PlannedTable:
    """Without the older batches: a verify's snapshot saw what they hold, and a plan does not name them then. With them
    every key is one that a change has, and each row is judged by itself."""
    plan = table.planned(first)
    return plan if with_evidence else replace(plan, evidence=())


def filled(lake: Lake, schema: TableSchema, rows: list[Row]) -> StagedTable:
    table = lake.table(schema)
    table.stage([Change("insert", row) for row in rows])
    lake.applied(table.planned())
    return table


def by_hand(lake: Lake, table: StagedTable, *statements: str) -> None:
    """Statements of SQL; each {} in them is the table's current."""
    current = f"delta.{spark_identifier(lake.path('current', table))}"
    for statement in statements:
        lake.spark.sql(statement.replace("{}", current)).collect()


def differences(lake: Lake, table: StagedTable) -> list[tuple[Any, ...]]:
    path = lake.root / layout.differences_table(PIPELINE, table.schema.table)
    stored = lake.spark.read.format("delta").load(str(path)).collect()
    rows = [(r["kind"], r["columns"], r["repaired"], tuple(r["key"].items())) for r in stored]
    return sorted(rows, key=str)


def counts(result: TableResult) -> tuple[int, int, int, int, dict[str, int]]:
    """Missing, differing, extra of chunks and of the sweep, differing columns."""
    chunks = result.chunks
    columns = {name: count for c in chunks for name, count in c.columns.items()}
    differing = sum(c.repaired - c.extra for c in chunks)
    swept = sum(result.swept.values())
    return sum(c.inserted for c in chunks), differing, sum(c.extra for c in chunks), swept, columns
