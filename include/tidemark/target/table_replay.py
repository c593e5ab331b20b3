"""Rebuilds `current` from `history`, or writes tables as of a moment: `ReplayPlan` -> `ReplayResult`.

A rebuild is one commit of current. It removes all files, adds the rows that history implies up to its own position
(`tidemark.lake.as_of_query`), and carries that position, as every commit of a merge does (R5). It starts from a version
that was pinned before history was. So:

- A driver that dies leaves current as it was, or rebuilt. A second rebuild gives the same rows.
- A driver that outlived its lease may merge in between. That makes this commit a conflict, and both tables are read
  again.
- If a merge had died between history and current, current is complete after the rebuild, and the next plan has nothing
  to do.

Tables as of a moment are written into folders that nothing else writes. The position names the folder; writing the same
position again overwrites it.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidemark import failpoints
from tidemark.errors import HistoryBehindCurrent, MergeContested, TableNotInLake, TidemarkError
from tidemark.formats import layout
from tidemark.formats.replay_plan import ReplayedTable, ReplayPlan, ReplayResult
from tidemark.lake import as_of_query, moments
from tidemark.lake.as_of_query import Truncated
from tidemark.lake.delta_schemas import TableShape, columns_of, shape_with
from tidemark.lake.engine import OpenedTable
from tidemark.lake.lake_tables import Lake, Past
from tidemark.lake.moments import Position
from tidemark.lake.spark_engine import SparkEngine
from tidemark.lsn import Lsn
from tidemark.names import ROW_COLUMNS, ROW_HOLES, TableName, spark_identifier
from tidemark.target.delta import delta_tables, internals
from tidemark.target.delta.delta_tables import PinnedPair, PinnedTable
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import as_error, told
from tidemark.target.spark.staged_changes import struct_of
from tidemark.target.spark.table_columns import SOURCE
from tidemark.target.spark.table_shape import TABLE_PROPERTIES

log = logging.getLogger(__name__)

MAX_ROUNDS: Final = 8
HISTORY: Final = "tidemark_history"


def replay(spark: SparkSession, plan: ReplayPlan) -> ReplayResult:
    """Do the plan's step for its tables, `plan.threads` at a time; an error of one table is that table's."""

    def one(table: str) -> ReplayedTable:
        session = table_session(spark, pool=table, lake=plan.lake)
        try:
            if plan.step == "rebuild":
                return Rebuild(session, plan, table).run()
            assert pasts is not None
            return _written(session, plan, pasts[table])
        except Exception as failed:  # what it says may quote a value
            error = failed if isinstance(failed, TidemarkError) else as_error(failed, table, plan.lake)
            if not isinstance(failed, TidemarkError):
                log.error("%s failed, from the outermost place to the innermost:\n%s", table, told(failed))
            return ReplayedTable(table, error=error.record())

    pasts: dict[str, Past] | None = None
    if plan.step == "as_of":
        try:
            lake = Lake(f"{plan.lake}/{plan.pipeline}", spark=table_session(spark, pool="replay", lake=plan.lake))
            ids = {table: TableName.parse(table).exact for table in plan.keys}
            together = lake.as_of(moments.parse(plan.moment), *ids.values())
            pasts = {table: together[exact] for table, exact in ids.items()}
        except TidemarkError as refused:  # of one moment there are all tables, or none
            return ReplayResult(plan.plan, tuple(ReplayedTable(table, error=refused.record()) for table in plan.keys))
    with ThreadPoolExecutor(max_workers=max(1, plan.threads), thread_name_prefix="replay") as pool:
        return ReplayResult(plan.plan, tuple(pool.map(one, plan.keys)))


def _written(session: SparkSession, plan: ReplayPlan, one: Past) -> ReplayedTable:
    table, position = one.reading.table, one.position
    path = f"{plan.lake}/{layout.as_of_table(plan.pipeline, position.generation, position.lsn, table)}"
    frame = SparkEngine(session).frame(one.statement(HISTORY), {HISTORY: one.reading.history}).drop("_op")
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    for key, value in delta_tables.properties_for(frame.columns).items():
        writer = writer.option(key, value)
    writer.save(path)
    written = delta_tables.rows(session, delta_tables.pin(session, path)).count()
    log.info("%s as of %s: %d rows at %s", table, position, written, path)
    return ReplayedTable(str(table), path, str(position), written)


class Rebuild:
    """Of one table's current; made and run on one thread, whose session it has to itself."""

    def __init__(self, session: SparkSession, plan: ReplayPlan, table: str) -> None:
        self.session = session
        self.plan = plan
        self.table = TableName.parse(table)
        self.key = plan.keys[table]
        self.current_path = f"{plan.lake}/{layout.current_table(plan.pipeline, self.table)}"
        self.history_path = f"{plan.lake}/{layout.history_table(plan.pipeline, self.table)}"

    def run(self) -> ReplayedTable:
        for _ in range(MAX_ROUNDS):
            try:
                return self._round()
            except Exception as failed:
                if not delta_tables.is_contested(failed):
                    raise
                log.warning("%s: another writer's commit came in between; reading again", self.table)
        raise MergeContested(table=self.table, rounds=MAX_ROUNDS)

    def _round(self) -> ReplayedTable:
        """Current is pinned first: history moves first, so that it is not found behind."""
        internals.require(self.session, self.current_path)
        current = delta_tables.pin(self.session, self.current_path)
        history = delta_tables.pin(self.session, self.history_path)
        if not history.exists:
            raise TableNotInLake(table=self.table, path=self.history_path)
        reached = self._reached(PinnedPair(history, current))
        position = Position(*max(reached.items()))
        columns = columns_of(history.state.schema)
        numbers = {f.name: {SOURCE: f.metadata[SOURCE]} for f in history.schema().fields if SOURCE in f.metadata}
        shape = shape_with(columns, self.key)
        rows = self._rows(OpenedTable(self.history_path, history.version, columns, history), shape, position)
        if not current.exists:
            current = self._made(current, shape, numbers)
        missing = [field for field in rows.schema.fields if field.name not in current.schema().names]
        ordered = [
            *current.schema().fields,
            *(StructField(f.name, f.dataType, True, numbers.get(f.name)) for f in missing),
        ]
        there = set(rows.columns)  # without a key what was dropped is in no row
        frame = rows.select(
            *[
                (F.col(spark_identifier(f.name)) if f.name in there else F.lit(None)).cast(f.dataType).alias(f.name)
                for f in ordered
            ]
        )
        failpoints.reach("replay.before_commit")
        written = delta_tables.exchange_all(
            current,
            frame,
            {self._application(generation, "current"): lsn for generation, lsn in reached.items()},
            StructType(ordered) if missing else None,
        )
        failpoints.reach("replay.after_commit")
        log.info("%s: current made anew from history as of %s, %d rows", self.table, position, written)
        return ReplayedTable(str(self.table), self.current_path, str(position), written)

    def _reached(self, pair: PinnedPair) -> dict[int, Lsn]:
        """History's position in each generation that has one. Raises HistoryBehindCurrent."""
        reached: dict[int, Lsn] = {}
        for generation in range(1, self.plan.generation + 1):
            at = pair.history.position(self._application(generation, "history"))
            current = pair.current
            ahead = None if current is None else current.position(self._application(generation, "current"))
            if ahead is not None and (at is None or at < ahead):
                raise HistoryBehindCurrent(table=self.table, history_lsn=at or "no position", current_lsn=ahead)
            if at is not None:
                reached[generation] = at
        if not reached:
            raise TableNotInLake(table=self.table, path=self.history_path)
        return reached

    def _application(self, generation: int, step: str) -> str:
        return f"tidemark:{self.plan.pipeline}:{generation}:{self.table}:{step}"

    def _rows(self, history: OpenedTable, shape: TableShape, position: Position) -> DataFrame:
        engine = SparkEngine(self.session)
        listed = engine.listed(as_of_query.last_truncate(HISTORY, position), {HISTORY: history})
        truncated = next((Truncated(**row) for row in listed), None)
        statement = as_of_query.rows(engine.dialect, shape, HISTORY, position, truncated)
        return engine.frame(statement, {HISTORY: history}).drop("_op")

    def _made(self, current: PinnedTable, shape: TableShape, numbers: dict[str, dict[str, Any]]) -> PinnedTable:
        """An empty current, as the merge makes one, where somebody removed it. `numbers` say which columns of the
        source its columns are."""
        columns = [
            f"{spark_identifier(c.name)} {c.target}{' NOT NULL' if c.name in self.key else ''}" for c in shape.columns
        ]
        holes = {ROW_HOLES: "array<string>"} if self.key else {}
        added = [f"{name} {target}" for name, target in {**ROW_COLUMNS, **holes}.items()]
        made = struct_of(", ".join([*columns, *added]))
        schema = StructType([StructField(f.name, f.dataType, f.nullable, numbers.get(f.name)) for f in made.fields])
        listed = delta_tables.with_statistics(schema, self.key)
        delta_tables.create(self.session, current, schema, {**TABLE_PROPERTIES, **listed})
        return delta_tables.pin(self.session, self.current_path)
