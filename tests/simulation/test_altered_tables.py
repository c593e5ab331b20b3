"""Tables whose columns come, go and are renamed at random, in transactions of several sessions, beside changes, drains
and merges; seeded, and without Spark.

A merge here is a list of rows under the names that a Delta table would have: what shape it gets, what each column is
called and where a staged value goes is asked of the functions that a driver asks. A table that is marked, or built anew
beside another, gets its rows from the source, as a backfill brings them; none is ever parked. In the end each table has
the rows of its source. `make test` plays one seed; `make simulation` many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tests.simulation import altering
from tests.simulation.altering import HEAP, ITEM, Altered
from tests.simulation.flow import ENOUGH, ROW_CHANGES, Met
from tests.simulation.workload import TABLES, Workload, create_tables
from tests.support import judge
from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tidemark.capture.merge_planning import ingest
from tidemark.errors import TidemarkError
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan, PlannedTable
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.schema.table import TableSchema
from tidemark.schema.values import convert
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.spark import table_columns
from tidemark.target.spark.table_shape import PlannedShape

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "5"))  # with a key that is renamed beside what cannot be told
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
ROUNDS = 12

met = Met()  # by the plays of this session

Row = dict[str, Any]


@dataclass
class Target:
    """A history and a current of one shape: `fields` say which columns of the source they are, as in Delta."""

    fields: list[StructField] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def schema(self) -> StructType:
        return StructType(self.fields)

    def merge(self, pipeline: Pipeline, plan: MergePlan, planned: PlannedTable) -> None:
        """Raises what a driver would."""
        pinned = cast(PinnedTable, self)
        shape = PlannedShape.settled(cast(Any, None), plan, planned, pinned)
        schema, schemas = shape.schema, shape.schemas
        if self.fields:
            self._rename(table_columns.target_naming(pinned, schema, planned.called).names)
        types = {f.name: f for f in self.fields}
        for column in schema.columns:
            source = {table_columns.SOURCE: {"relation": schema.relation_oid, "attnum": column.attnum}}
            if column.name not in types:
                self.fields.append(StructField(column.name, StringType(), True, {}))
                for row in self.rows:
                    row[column.name] = _default(column.missing, column.target)
            if column.attnum:
                at = next(n for n, f in enumerate(self.fields) if f.name == column.name)
                self.fields[at] = StructField(column.name, StringType(), True, source)
        by_version = {one.version: one for one in schemas}
        for batch in planned.batches:
            staged = [(file.schema_version, row) for file in batch.files for row in _read(pipeline, file.path)]
            for version, row in sorted(staged, key=lambda one: (one[1]["_commit_lsn"], one[1]["_ordinal"])):
                self._take(row, by_version[version], schema)

    def _rename(self, names: dict[str, str]) -> None:
        self.fields = [StructField(names.get(f.name, f.name), f.dataType, True, f.metadata) for f in self.fields]
        self.rows = [{names.get(name, name): value for name, value in row.items()} for row in self.rows]

    def _take(self, change: Row, version: TableSchema, schema: TableSchema) -> None:
        if change["_op"] == "truncate":
            self.rows.clear()
            return
        new = {f.name: None for f in self.fields} | _in_names_of(change, version, schema)
        old = change["_old"] if schema.is_multiset else change["_old_key"]
        if change["_op"] != "insert":
            before = new if old is None else _in_names_of(old, version, schema)
            there = self._there(before, schema)
            if there is not None:
                self.rows.remove(there)
            marks = {column.name: column for column in version.columns}
            for name in change["_unchanged"] or ():
                own = next((c for c in schema.columns if schema.column_in(version, c) is marks[name]), None)
                if own is not None:
                    new[own.name] = None if there is None else there[own.name]
        if change["_op"] != "delete":
            self.rows.append(new)

    def _there(self, before: Row, schema: TableSchema) -> Row | None:
        """By the key, or by all that the source has still of a row."""
        names = schema.key or [c.name for c in schema.columns if c.name not in schema.dropped]
        wanted = [_stored(before.get(name)) for name in names]
        return next((row for row in self.rows if [_stored(row[name]) for name in names] == wanted), None)

    def named(self) -> dict[int, str]:
        told = [(f.metadata.get(table_columns.SOURCE, {}).get("attnum", 0), f.name) for f in self.fields]
        return {number: name for number, name in told if number}


def _in_names_of(values: Row, version: TableSchema, schema: TableSchema) -> Row:
    """As `staged_changes` reads a file of that version."""
    row = {}
    for column in schema.columns:
        own = schema.column_in(version, column)
        if own is None:
            row[column.name] = _default(column.missing, column.target)
        elif own.name in values:
            row[column.name] = values[own.name]
    return row


def _default(missing: str | None, target: str) -> Any:
    return convert(pa.array([missing], pa.string()), target).values[0].as_py()


def _stored(value: Any) -> Any:
    return value.normalize() if isinstance(value, Decimal) else value


def _read(pipeline: Pipeline, path: str) -> list[Row]:
    rows: list[Row] = pq.read_table(f"{pipeline.config.lake}/{path}").to_pylist()
    return rows


def name_of(table: str) -> str:
    return table.partition("~")[0]


def at_source(pipeline: Pipeline, table: str) -> tuple[dict[int, str], list[tuple[Any, ...]]]:
    numbers = dict(
        pipeline.query(
            f"SELECT attnum, attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum"
        )
    )
    return numbers, pipeline.query(f"SELECT {', '.join(numbers.values())} FROM {table}")


@dataclass
class Play:
    pipeline: Pipeline
    random: Random
    targets: dict[str, Target] = field(default_factory=dict)
    acts: list[str] = field(default_factory=list)

    def drain(self) -> None:
        self.pipeline.drain()
        self.acts.append("drain")

    def merge(self) -> None:
        plan = make_plan(self.pipeline.task("merge", f"run-{len(self.acts)}"))
        if plan is None:
            return
        results = tuple(self._result(plan, planned) for planned in plan.tables)
        result = PlanResult(plan.plan, plan.pipeline, plan.generation, results)
        self.pipeline.store.write_atomic(layout.result_file(plan.pipeline, plan.plan), result.to_json().encode())
        ingest(self.pipeline.task())
        self.acts.append(f"merge {[r.error.kind for r in results if r.error]}")

    def _result(self, plan: MergePlan, planned: PlannedTable) -> TableResult:
        try:
            if name_of(planned.table) in (HEAP, ITEM):
                self.targets.setdefault(planned.table, Target()).merge(self.pipeline, plan, planned)
        except TidemarkError as error:
            return TableResult(planned.table, None, None, error=error.record())
        return TableResult(planned.table, planned.end_lsn, planned.end_lsn)

    def backfill(self) -> None:
        """Of what is marked, everything that is committed; all of it is drained and merged."""
        for name in (HEAP, ITEM):
            table, target = self.newest(name)
            if not self.pipeline.table_row(table).life.needs_backfill or not target.fields:
                continue
            numbers, rows = at_source(self.pipeline, name)
            named = target.named()
            if not set(numbers) <= set(named):
                continue  # a chunk would bring the column; a later change does as well
            target.rows = [
                {f.name: None for f in target.fields} | {named[n]: v for n, v in zip(numbers, values, strict=True)}
                for values in rows
            ]
            self.pipeline.ledger_query(
                "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL,"
                ' backfill_since = NULL, columns_in_doubt = NULL WHERE "table" = %s',
                table,
            )
            self.acts.append(f"backfill {table}")

    def newest(self, name: str) -> tuple[str, Target]:
        """The table that its relation is kept as by now, and what is merged of it."""
        kept = [table for table in self.pipeline.table_rows() if name_of(table) == name]
        table = max(kept, key=lambda table: int(table.partition("~")[2] or 1))
        return table, self.targets.setdefault(table, Target())


@pytest.mark.parametrize("seed", SEEDS)
def test_altered_tables_end_equal_to_their_source(seed: int, new_pipeline: Callable[..., Pipeline]) -> None:
    random = Random(seed)
    pipeline = new_pipeline(batch_rows=random.choice([1, 5, 40, 1_000_000]), lock_timeout_s=1)
    pipeline.with_tables(*TABLES, *altering.RULES)
    pipeline.begin()
    altered = Altered(pipeline, random, only_told=random.random() < 0.5)
    altering.create(pipeline)
    create_tables(pipeline)
    workload = Workload(pipeline, random, altered=altered, alterations=0.15)
    play = Play(pipeline, random)
    play.drain()
    for _ in range(ROUNDS):
        workload.some(random.randint(1, 12))
        if random.random() < 0.8:
            play.drain()
            if random.random() < 0.7:
                play.merge()
                if random.random() < 0.4:
                    play.backfill()
    workload.settle()
    for _ in range(3):
        altered.touch()
        play.drain()
        play.merge()
    play.backfill()
    context = f"seed {seed}, {play.acts}, {altered.altered}"
    assert not [table for table, row in pipeline.table_rows().items() if row.life.is_parked], context
    for name in (HEAP, ITEM):
        table, target = play.newest(name)
        assert judge.marked(pipeline.table_row(table)) is None, f"{table}: {context}"
        numbers, rows = at_source(pipeline, name)
        named = target.named()
        assert set(numbers) <= set(named), f"{table}: {named}, {context}"
        merged = Counter(tuple(_stored(row[named[number]]) for number in numbers) for row in target.rows)
        assert merged == Counter(tuple(map(_stored, row)) for row in rows), f"{table}: {context}"
    met.add(pipeline)


@pytest.mark.thorough
def test_the_plays_before_brought_changes_of_every_kind() -> None:
    assert met.missing() == {}
    if met.plays >= ENOUGH:
        for table in (HEAP, ITEM):
            assert {kind for kind in ROW_CHANGES if met.kinds[table][kind]} == ROW_CHANGES
