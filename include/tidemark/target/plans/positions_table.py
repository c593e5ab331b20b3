"""Writes one commit to `_positions` after a merge: up to which LSN each table is complete, and at which Delta versions.

A row states a fact that stays true: every change of the table below `lsn` is in these versions. If a version is NULL,
the newest version in an earlier row has them. So rows may be missing, be repeated, or come in any order, and a reader
takes the newest row. A driver that dies before this commit leaves `_positions` one merge behind. If a driver dies after
it, its retry writes the same row again. Applications that merge other tables append at the same time without conflict,
since no append reads the table.

A reader needs no Delta feature for the table, not even deletion vectors. No merge depends on it. An error here is
logged, and the result records that the rows are missing.
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
from tidemark.formats.merge_plan import MergePlan, StagedLevel
from tidemark.formats.merge_result import PlanResult
from tidemark.schema.delta_types import arrow_type
from tidemark.target.delta import data_files, delta_tables
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import condition_of, stack_frames
from tidemark.target.spark.staged_changes import metadata_ddl, struct_of
from tidemark.wording import counted, duration

log = logging.getLogger(__name__)

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
_ARROW: Final = pa.schema([(name, arrow_type(target)) for name, target in COLUMNS.items()])
_PROPERTIES: Final = {"delta.dataSkippingStatsColumns": "generation,lsn"}


def record_positions(spark: SparkSession, plan: MergePlan, result: PlanResult) -> bool:
    """Append the positions of the plan's tables, and of the tables that had nothing to merge.

    Returns whether the rows were committed.
    """
    if plan.level is None:
        return False
    started_at = time.monotonic()
    rows = list(_rows(plan, plan.level, result, datetime.now(UTC)))
    try:
        _append(table_session(spark, pool="positions", lake=plan.lake), plan, rows)
    except Exception as failed:  # its message may quote a path or a value, so it is not logged
        log.warning("_positions was not brought level (%s):\n%s", condition_of(failed), stack_frames(failed))
        return False
    log.info("_positions: %s in %s", counted(len(rows), "row"), duration(time.monotonic() - started_at))
    return True


def _rows(plan: MergePlan, level: StagedLevel, result: PlanResult, now: datetime) -> Iterator[dict[str, Any]]:
    is_same_generation = plan.generation == level.generation
    ends = {table.table: table.end_lsn for table in plan.tables}
    common = {
        "generation": plan.generation,
        "committed_at": datetime.fromisoformat(level.committed_at)
        if level.committed_at and is_same_generation
        else None,
        "plan": plan.plan,
        "noted_at": now,
    }
    # A table that is no longer captured, or that has no name for readers yet, gets no row: other changes of its
    # relation may be in another pair of tables. Its own commits carry its position.
    nameless = {table for table, source_name in level.names.items() if source_name is None}
    for table in result.tables:
        if table.error is None and table.table not in nameless:
            # The plan's end may be above `level.lsn`, if more was staged before the table's batches were listed. The
            # table's own position may be above both, if another driver merged more.
            reached = (
                ends[table.table],
                level.lsn if is_same_generation else None,
                table.current_lsn or table.history_lsn,
            )
            yield {
                **common,
                "table_name": table.table,
                "source_name": level.names.get(table.table, table.table),
                "lsn": int(max(lsn for lsn in reached if lsn is not None)),
                "exact": table.table not in level.inexact,
                "history_version": table.history_version,
                "current_version": table.current_version,
            }
    for name in sorted({*level.tables} - nameless) if is_same_generation else ():
        source_name = level.names.get(name, name)
        exact = name not in level.inexact
        yield {**common, "table_name": name, "source_name": source_name, "lsn": int(level.lsn), "exact": exact}


def _append(session: SparkSession, plan: MergePlan, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = _open_table(session, f"{plan.lake}/{layout.positions_table(plan.pipeline)}")
    data_files.add_rows(session, table, pa.Table.from_pylist(rows, _ARROW), ["lsn", "generation"])


def _open_table(session: SparkSession, path: str) -> PinnedTable:
    """Open the table, and create it if it is missing. If two drivers create it at the same time, one commit fails."""
    table = delta_tables.pin(session, path)
    if table.exists:
        return table
    try:
        delta_tables.create(session, table, struct_of(metadata_ddl(COLUMNS)), _PROPERTIES)
    except Exception as failed:
        if not delta_tables.is_contested(failed):
            raise
    return delta_tables.pin(session, path)
