"""Writes the base of a replay before its first batch: copies the old history, and rebuilds `current` from the copy.

    the old table's history, below the base ──► history    one commit
    the rows that this history implies      ──► current    one commit, as a rebuild makes it (`target.table_replay`)

The base is an LSN. Both commits carry it as their position, so every later driver continues behind it. If a driver dies
between the two, the next driver makes the second. All rows of the old history below the base are copied: a batch's rows
lie at or above its start, and the base is a batch's end. Commits to the old history do not matter meanwhile, since its
existing rows never change. An old history whose position is below the base lost commits, and is not copied.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from tidemark import failpoints
from tidemark.errors import PositionBelowPlan, TableNotInLake
from tidemark.formats import layout
from tidemark.formats.merge_plan import HistoryBase, MergePlan, PlannedTable
from tidemark.formats.replay_plan import ReplayPlan
from tidemark.lake import as_of_query
from tidemark.lake.moments import Position
from tidemark.names import ROW_COLUMNS, TableName
from tidemark.target.delta import delta_tables, internals
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.spark import table_columns
from tidemark.target.spark.table_shape import TABLE_PROPERTIES
from tidemark.target.table_replay import Rebuild

log = logging.getLogger(__name__)

# The prefix of Delta's own metadata of a column, which is not valid in another table.
_DELTA_PREFIX: Final = "delta."


def write_base(session: SparkSession, plan: MergePlan, planned: PlannedTable, base: HistoryBase) -> None:
    """Bring the table's Delta tables to the base, unless they have reached it already.

    Raises an error that `delta_tables.is_contested` recognises if another driver committed first.
    """
    table = TableName.parse(planned.table)
    schema = planned.schemas[-1]
    history = delta_tables.pin(session, f"{plan.lake}/{layout.history_table(plan.pipeline, table)}")
    if history.position(_application(plan, planned.table, base, "history")) is None:
        internals.require(session, history.path)
        _copy_history(session, plan, planned, base, history)
        failpoints.reach("replay.after_history")
    if not schema.has_current:
        return
    current = delta_tables.pin(session, f"{plan.lake}/{layout.current_table(plan.pipeline, table)}")
    if current.position(_application(plan, planned.table, base, "current")) is None:
        keys = {planned.table: schema.key}
        rebuild = ReplayPlan(plan.plan, plan.pipeline, plan.lake, "rebuild", keys, base.generation, "", 1)
        Rebuild(session, rebuild, planned.table).run()


def _copy_history(
    session: SparkSession, plan: MergePlan, planned: PlannedTable, base: HistoryBase, history: PinnedTable
) -> None:
    old_path = f"{plan.lake}/{layout.history_table(plan.pipeline, TableName.parse(base.table))}"
    old_history = delta_tables.pin(session, old_path)
    if not old_history.exists:
        raise TableNotInLake(table=base.table, path=old_path)
    at = old_history.position(_application(plan, base.table, base, "history"))
    if at is None or at < base.lsn:
        raise PositionBelowPlan(step="history", table=base.table, position=at or "no position", after=base.lsn)
    if not history.exists:
        shape = StructType([_without_delta_metadata(field) for field in old_history.schema().fields])
        statistics = delta_tables.with_statistics(shape, ["_generation", *ROW_COLUMNS, *planned.schemas[-1].key])
        # Older rows may name a renamed column by its old name. With column mapping, the name in the data files tells
        # which column that is.
        mapping = {"delta.columnMapping.mode": "name"} if old_history.is_mapped else {}
        properties = {**TABLE_PROPERTIES, **statistics, **mapping, **table_columns.columns_property(shape)}
        delta_tables.create(session, history, shape, properties)
        history = delta_tables.pin(session, history.path)
    rows = delta_tables.rows(old_history).where(as_of_query.below(Position(base.generation, base.lsn)))
    copied = delta_tables.append(session, history, rows, _application(plan, planned.table, base, "history"), base.lsn)
    log.info("%s: %d rows of %s taken over, as of %s", planned.table, copied, base.table, base.lsn)


def _application(plan: MergePlan, table: str, base: HistoryBase, step: str) -> str:
    return f"tidemark:{plan.pipeline}:{base.generation}:{table}:{step}"


def _without_delta_metadata(field: StructField) -> StructField:
    metadata = {name: value for name, value in field.metadata.items() if not name.startswith(_DELTA_PREFIX)}
    return StructField(field.name, field.dataType, True, metadata)
