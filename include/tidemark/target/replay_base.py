"""Writes a replay's base: the old history up to it, and `current` rebuilt from that, before its first batch.

    history of the table before, below the base ──► history    one commit
    the rows that this history yields           ──► current    one commit, as a rebuild makes it (`target.table_replay`)

Both commits carry the base as their position, so every later driver continues behind it. If a driver dies in between,
the next one does the rest. All rows of the old history below the base are copied: a batch's rows lie at or above its
start, and the base is a batch's end. Rows that are there never change, whatever is appended meanwhile.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from tidemark import failpoints
from tidemark.errors import TableNotInLake
from tidemark.formats import layout
from tidemark.formats.merge_plan import Base, MergePlan, PlannedTable
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

# What Delta notes of a column says nothing of another table's.
_DELTAS_OWN: Final = "delta."


def take_over(session: SparkSession, plan: MergePlan, planned: PlannedTable, base: Base) -> None:
    """Bring the table's Delta tables to the base, where they are not there yet or further on. Raises what
    `is_contested` recognises if another driver was faster."""
    table = TableName.parse(planned.table)
    schema = planned.schemas[-1]
    history = delta_tables.pin(session, f"{plan.lake}/{layout.history_table(plan.pipeline, table)}")
    if history.position(_application(plan, planned, base, "history")) is None:
        internals.require(session, history.path)
        _take_history(session, plan, planned, base, history)
        failpoints.reach("replay.after_history")
    if not schema.has_current:
        return
    current = delta_tables.pin(session, f"{plan.lake}/{layout.current_table(plan.pipeline, table)}")
    if current.position(_application(plan, planned, base, "current")) is None:
        keys = {planned.table: schema.key}
        rebuild = ReplayPlan(plan.plan, plan.pipeline, plan.lake, "rebuild", keys, base.generation, "", 1)
        Rebuild(session, rebuild, planned.table).run()


def _take_history(
    session: SparkSession, plan: MergePlan, planned: PlannedTable, base: Base, history: PinnedTable
) -> None:
    before = f"{plan.lake}/{layout.history_table(plan.pipeline, TableName.parse(base.table))}"
    live = delta_tables.pin(session, before)
    if not live.exists:
        raise TableNotInLake(table=base.table, path=before)
    if not history.exists:
        shape = StructType([_without_deltas_own(field) for field in live.schema().fields])
        listed = delta_tables.with_statistics(shape, [*ROW_COLUMNS, *planned.schemas[-1].key])
        # A column's rows may call it as it was called before, which is told by its name in the files.
        mapping = {"delta.columnMapping.mode": "name"} if live.is_mapped else {}
        properties = {**TABLE_PROPERTIES, **listed, **mapping, **table_columns.had(shape)}
        delta_tables.create(session, history, shape, properties)
        history = delta_tables.pin(session, history.path)
    rows = delta_tables.rows(session, live).where(as_of_query.below(Position(base.generation, base.lsn)))
    taken = delta_tables.append(session, history, rows, _application(plan, planned, base, "history"), base.lsn)
    log.info("%s: %d rows of %s taken over, as of %s", planned.table, taken, base.table, base.lsn)


def _application(plan: MergePlan, planned: PlannedTable, base: Base, step: str) -> str:
    return f"tidemark:{plan.pipeline}:{base.generation}:{planned.table}:{step}"


def _without_deltas_own(field: StructField) -> StructField:
    metadata = {name: said for name, said in field.metadata.items() if not name.startswith(_DELTAS_OWN)}
    return StructField(field.name, field.dataType, True, metadata)
