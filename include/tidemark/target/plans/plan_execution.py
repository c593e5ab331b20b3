"""Applies a plan: merges its tables, several at the same time, and writes the result: `MergePlan` -> `PlanResult` (R6).

The largest table goes first. An error of one table goes into that table's result and stops no other table. After the
last table, the plan's positions go to `_positions` and its names to Spark's catalogue. The result follows, and then the
checkpoints that are due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace
from pyspark.sql import SparkSession

from tidemark import failpoints
from tidemark.errors import DiskFull, MergeFailed, is_of_no_table
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan, PlannedTable
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.target.delta import checkpoints
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import as_error
from tidemark.target.plans import catalogue_names, positions_table
from tidemark.target.plans.plan_files import read_plan, write_result
from tidemark.target.table_merge import TableMerge

# By their number of threads, those that no plan uses.
_idle: Final[dict[int, list[ThreadPoolExecutor]]] = {}


def apply_plan(spark: SparkSession, plan: MergePlan) -> PlanResult:
    """Apply the plan to all its tables, `plan.threads` at a time. Raises only errors that concern no single table."""

    def merge_table(table: PlannedTable) -> TableResult:
        session = table_session(spark, pool=table.table, lake=plan.lake)
        try:
            merge = TableMerge(session, plan, table)
        except Exception as failed:  # a plan that is invalid for one table is that table's error (R6)
            return TableResult(table.table, None, None, error=as_error(failed, table.table, plan.lake).record())
        return merge.run()

    largest_first = sorted(plan.tables, key=lambda t: -t.rows)
    with _threads(max(1, plan.threads)) as pool:
        results = {r.table: r for r in pool.map(merge_table, largest_first)}
    ordered = _as_table_errors([results[t.table] for t in plan.tables])
    result = PlanResult(plan.plan, plan.pipeline, plan.generation, tuple(ordered))
    noted = positions_table.record_positions(spark, plan, result)
    catalogue_names.name_tables(spark, plan, result)
    return replace(result, noted=noted)


@contextmanager
def _threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of the plan's own. A driver that applies plan after plan uses them again.

    For each thread of Python the JVM has one too, which finds methods by reflection and remembers them.
    """
    idle = _idle.setdefault(number, [])
    pool = idle.pop() if idle else ThreadPoolExecutor(max_workers=number, thread_name_prefix="merge")
    try:
        yield pool
    except BaseException:
        pool.shutdown()
        raise
    idle.append(pool)


def apply_and_write_result(spark: SparkSession, uri: str) -> PlanResult:
    """Apply the plan at the URI and write the result next to it. Raises PlanMissing if there is no plan."""
    plan = MergePlan.from_json(read_plan(spark, uri), uri)
    result = apply_plan(spark, plan)
    failpoints.reach("merge.before_result")
    write_result(spark, uri, result.to_json())
    failpoints.reach("merge.after_result")
    write_checkpoints(spark, plan, result)
    return result


def write_checkpoints(spark: SparkSession, plan: MergePlan, result: PlanResult) -> None:
    """Write the checkpoints that are due. Nobody waits for them: the result is written."""
    session = table_session(spark, pool="checkpoints", lake=plan.lake)
    names = {table.table: table.schemas[-1].table for table in plan.tables if table.schemas}
    for table in result.tables:
        for layout_of, version in (
            (layout.history_table, table.history_version),
            (layout.current_table, table.current_version),
        ):
            if version is not None and table.table in names:
                path = f"{plan.lake}/{layout_of(plan.pipeline, names[table.table])}"
                checkpoints.write_if_due(session, path, version)
    checkpoints.write_if_due(session, f"{plan.lake}/{layout.positions_table(plan.pipeline)}")


def _as_table_errors(results: Sequence[TableResult]) -> list[TableResult]:
    """Turn an error of the lake into an error of the table if another table of the plan was merged.

    The lake served that other table, so the error counts towards parking this one (R6). It does not park the table at
    once, since credentials may have expired between the two. A full disk stays an error of the lake: a smaller table
    may still have fitted.
    """
    if all(r.error is not None for r in results):
        return list(results)
    return [
        replace(r, error=replace(r.error, kind=MergeFailed.__name__, move=MergeFailed.move.value))
        if r.error is not None and is_of_no_table(r.error) and r.error.kind != DiskFull.__name__
        else r
        for r in results
    ]
