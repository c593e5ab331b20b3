"""Writes one commit to `_positions` after a merge: up to which LSN each table is complete, and at which Delta versions.

A row states a fact that no later row withdraws: every change of the table below `lsn` is in these versions, or, if a
version is NULL, in the newest version before. So rows may be missing, be repeated, or come in any order. A reader takes
the newest row that it finds. A driver that dies before this commit leaves `_positions` one merge behind. A driver that
dies after it lets its retry write the same row again. Applications that merge other tables append at the same time
without conflict, since none reads the table.

The table requires nothing of a reader: no deletion vectors, no features. No merge depends on it. An error here is
logged, and the result says that the row is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark.formats import layout
from tidemark.formats.merge_plan import Level, MergePlan
from tidemark.formats.merge_result import PlanResult
from tidemark.target.delta import delta_tables
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import condition_of, told
from tidemark.target.spark import table_columns
from tidemark.target.spark.staged_changes import metadata_ddl, struct_of
from tidemark.wording import counted, duration

log = logging.getLogger(__name__)

MAX_ROUNDS: Final = 3

COLUMNS: Final = {
    "table_name": "string",
    "generation": "int",
    "lsn": "bigint",
    "committed_at": "timestamp",
    "exact": "boolean",
    "history_version": "bigint",
    "current_version": "bigint",
    "plan": "string",
    "noted_at": "timestamp",
    "source_name": "string",
}
_ARROW: Final = pa.schema(
    [
        ("table_name", pa.string()),
        ("generation", pa.int32()),
        ("lsn", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("exact", pa.bool_()),
        ("history_version", pa.int64()),
        ("current_version", pa.int64()),
        ("plan", pa.string()),
        ("noted_at", pa.timestamp("us", "UTC")),
        ("source_name", pa.string()),
    ]
)
_PROPERTIES: Final = {"delta.dataSkippingStatsColumns": "generation,lsn"}


def note(spark: SparkSession, plan: MergePlan, result: PlanResult) -> bool:
    """Append what the plan's tables reached, and which others were level meanwhile; whether it stands there now."""
    if plan.level is None:
        return False
    begun = time.monotonic()
    rows = list(_rows(plan, plan.level, result, datetime.now(UTC)))
    try:
        _append(table_session(spark, pool="positions", lake=plan.lake), plan, rows)
    except Exception as failed:  # what it says may quote a path or a value
        log.warning("_positions was not brought level (%s):\n%s", condition_of(failed), told(failed))
        return False
    log.info("_positions: %s in %s", counted(len(rows), "row"), duration(time.monotonic() - begun))
    return True


def _rows(plan: MergePlan, level: Level, result: PlanResult, now: datetime) -> Iterator[dict[str, Any]]:
    of_level = plan.generation == level.generation
    ends = {table.table: table.end_lsn for table in plan.tables}
    common = {
        "generation": plan.generation,
        "committed_at": datetime.fromisoformat(level.committed_at) if level.committed_at and of_level else None,
        "plan": plan.plan,
        "noted_at": now,
    }
    # Of a table that is captured no more, or has no name for readers yet, nobody says how far it is level: other
    # changes of the relation may stand elsewhere. What it has stands in its own commits.
    nameless = {table for table, called in level.names.items() if called is None}
    for table in result.tables:
        if table.error is None and table.table not in nameless:
            # More may have been staged before its batches were listed, and a rival may have merged more.
            reached = (ends[table.table], level.lsn if of_level else None, table.current_lsn or table.history_lsn)
            yield {
                **common,
                "table_name": table.table,
                "source_name": level.names.get(table.table, table.table),
                "lsn": int(max(lsn for lsn in reached if lsn is not None)),
                "exact": table.table not in level.inexact,
                "history_version": table.history_version,
                "current_version": table.current_version,
            }
    for name in sorted({*level.tables} - nameless) if of_level else ():
        called = level.names.get(name, name)
        exact = name not in level.inexact
        yield {**common, "table_name": name, "source_name": called, "lsn": int(level.lsn), "exact": exact}


def _append(session: SparkSession, plan: MergePlan, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = _opened(session, f"{plan.lake}/{layout.positions_table(plan.pipeline)}")
    delta_tables.add_rows(session, table, pa.Table.from_pylist(rows, _ARROW), ["lsn", "generation"])


def _opened(session: SparkSession, path: str) -> PinnedTable:
    """The table, made if it is not there, and with the columns that came later. Two that do it at the same time: one of
    them finds it done."""
    for _ in range(MAX_ROUNDS):
        table = delta_tables.pin(session, path)
        there = {field.name for field in table.schema().fields} if table.exists else set()
        if there.issuperset(COLUMNS):
            return table
        try:
            if table.exists:
                lacking = {name: type_ for name, type_ in COLUMNS.items() if name not in there}
                table_columns.add(table, struct_of(metadata_ddl(lacking)).fields, {})
            else:
                delta_tables.create(session, table, struct_of(metadata_ddl(COLUMNS)), _PROPERTIES)
        except Exception as failed:
            if not delta_tables.is_contested(failed):
                raise
    return delta_tables.pin(session, path)
