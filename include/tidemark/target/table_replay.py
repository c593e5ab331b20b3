"""Rebuilds `current` from `history`, or writes tables as of a moment: `ReplayPlan` -> `ReplayResult`.

A rebuild is one commit of current. It removes all files, adds the rows that history implies up to its own position
(`tidemark.lake.as_of_query`), and carries that position, as every commit of a merge does (R5). Current is pinned before
history. So:

- A driver that dies leaves current unchanged, or rebuilt. A second rebuild writes the same rows.
- A driver that outlived its lease may merge in between. Then this commit is a conflict, and both tables are read again.
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
from tidemark.lake.lake_tables import Lake, TableAtPosition
from tidemark.lake.moments import Position
from tidemark.lake.spark_engine import SparkEngine
from tidemark.lsn import Lsn
from tidemark.names import TableName, spark_identifier
from tidemark.target.delta import delta_tables, internals
from tidemark.target.delta.delta_tables import PinnedPair, PinnedTable
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import as_error, stack_frames
from tidemark.target.spark.table_columns import SOURCE
from tidemark.target.spark.table_shape import TABLE_PROPERTIES, current_type

log = logging.getLogger(__name__)

MAX_ROUNDS: Final = 8
HISTORY: Final = "tidemark_history"


def replay(spark: SparkSession, plan: ReplayPlan) -> ReplayResult:
    """Do the plan's step for its tables, `plan.threads` at a time. An error of one table goes into its result."""

    def replay_table(table: str) -> ReplayedTable:
        session = table_session(spark, pool=table, lake=plan.lake)
        try:
            if plan.step == "rebuild":
                return Rebuild(session, plan, table).run()
            assert pasts is not None
            return _write_as_of(session, plan, pasts[table])
        except Exception as failed:  # its message may quote a value, so it is not logged
            error = failed if isinstance(failed, TidemarkError) else as_error(failed, table, plan.lake)
            if not isinstance(failed, TidemarkError):
                log.error("%s failed, from the outermost place to the innermost:\n%s", table, stack_frames(failed))
            return ReplayedTable(table, error=error.record())

    pasts: dict[str, TableAtPosition] | None = None
    if plan.step == "as_of":
        try:
            lake = Lake(f"{plan.lake}/{plan.pipeline}", spark=table_session(spark, pool="replay", lake=plan.lake))
            ids = {table: TableName.parse(table).exact for table in plan.keys}
            by_id = lake.as_of(moments.parse(plan.moment), *ids.values())
            pasts = {table: by_id[exact] for table, exact in ids.items()}
        except TidemarkError as refused:  # one moment is written for all tables or for none
            return ReplayResult(plan.plan, tuple(ReplayedTable(table, error=refused.record()) for table in plan.keys))
    with ThreadPoolExecutor(max_workers=max(1, plan.threads), thread_name_prefix="replay") as pool:
        return ReplayResult(plan.plan, tuple(pool.map(replay_table, plan.keys)))


def _write_as_of(session: SparkSession, plan: ReplayPlan, past: TableAtPosition) -> ReplayedTable:
    table, position = past.reading.table, past.position
    path = f"{plan.lake}/{layout.as_of_table(plan.pipeline, position.generation, position.lsn, table)}"
    frame = past.rows().drop("_op")
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    for key, value in delta_tables.column_mapping(frame.columns).items():
        writer = writer.option(key, value)
    writer.save(path)
    written = delta_tables.rows(delta_tables.pin(session, path)).count()
    log.info("%s as of %s: %d rows at %s", table, position, written, path)
    return ReplayedTable(str(table), path, str(position), written)


class Rebuild:
    """Rebuilds current of one table. It is created and run on one thread, and no other thread uses its session."""

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
        """Rebuild current once. Current is pinned first: merges commit to history first, so history is never behind."""
        internals.require(self.session, self.current_path)
        current = delta_tables.pin(self.session, self.current_path)
        history = delta_tables.pin(self.session, self.history_path)
        if not history.exists:
            raise TableNotInLake(table=self.table, path=self.history_path)
        positions = self._positions(PinnedPair(history, current))
        position = Position(*max(positions.items()))
        columns = columns_of(history.state.schema)
        numbers = {f.name: {SOURCE: f.metadata[SOURCE]} for f in history.schema().fields if SOURCE in f.metadata}
        shape = shape_with(columns, self.key)
        rows = self._rows(OpenedTable(self.history_path, history.version, columns, history), shape, position)
        if not current.exists:
            current = self._create_current(current, shape, numbers)
        missing = [field for field in rows.schema.fields if field.name not in current.schema().names]
        ordered = [
            *current.schema().fields,
            *(StructField(f.name, f.dataType, True, numbers.get(f.name)) for f in missing),
        ]
        row_columns = set(rows.columns)  # the rows of a table without key lack the columns that the source dropped
        frame = rows.select(
            *[
                (F.col(spark_identifier(f.name)) if f.name in row_columns else F.lit(None))
                .cast(f.dataType)
                .alias(f.name)
                for f in ordered
            ]
        )
        failpoints.reach("replay.before_commit")
        written = delta_tables.replace_all_rows(
            current,
            frame,
            {self._application(generation, "current"): lsn for generation, lsn in positions.items()},
            StructType(ordered) if missing else None,
        )
        failpoints.reach("replay.after_commit")
        log.info("%s: current made anew from history as of %s, %d rows", self.table, position, written)
        return ReplayedTable(str(self.table), self.current_path, str(position), written)

    def _positions(self, pair: PinnedPair) -> dict[int, Lsn]:
        """History's position in each generation that has one. Raises HistoryBehindCurrent and TableNotInLake."""
        positions: dict[int, Lsn] = {}
        for generation in range(1, self.plan.generation + 1):
            history_lsn = pair.history.position(self._application(generation, "history"))
            current = pair.current
            current_lsn = None if current is None else current.position(self._application(generation, "current"))
            if current_lsn is not None and (history_lsn is None or history_lsn < current_lsn):
                raise HistoryBehindCurrent(
                    table=self.table, history_lsn=history_lsn or "no position", current_lsn=current_lsn
                )
            if history_lsn is not None:
                positions[generation] = history_lsn
        if not positions:
            raise TableNotInLake(table=self.table, path=self.history_path)
        return positions

    def _application(self, generation: int, step: str) -> str:
        return f"tidemark:{self.plan.pipeline}:{generation}:{self.table}:{step}"

    def _rows(self, history: OpenedTable, shape: TableShape, position: Position) -> DataFrame:
        engine = SparkEngine(self.session)
        listed = engine.listed(as_of_query.last_truncate(HISTORY, position), {HISTORY: history})
        truncated = next((Truncated(**row) for row in listed), None)
        statement = as_of_query.rows(engine.dialect, shape, HISTORY, position, truncated)
        return engine.frame(statement, {HISTORY: history}).drop("_op")

    def _create_current(
        self, current: PinnedTable, shape: TableShape, numbers: dict[str, dict[str, Any]]
    ) -> PinnedTable:
        """Create an empty current as a merge does, after somebody removed the table.

        `numbers` is the metadata that names the source's column for each column.
        """
        struct = current_type(((c.name, c.target) for c in shape.columns), self.key)
        schema = StructType([StructField(f.name, f.dataType, f.nullable, numbers.get(f.name)) for f in struct.fields])
        listed = delta_tables.with_statistics(schema, self.key)
        delta_tables.create(self.session, current, schema, {**TABLE_PROPERTIES, **listed})
        return delta_tables.pin(self.session, self.current_path)
