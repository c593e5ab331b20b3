"""Changes the shape of a table's history and current before a plan: adds, widens, renames and marks columns.

    versions of the plan's files + what history has ──► `settled` ──► of_history, of_current ──► the pinned tables

Each change is a metadata commit without a position. A driver that dies between the two tables leaves one of them ahead;
the next driver adds the rest. A column that a table had and has no more was removed by hand. Its rows lack its values,
so TargetDiffers is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from tidemark.errors import TargetAhead, TargetDiffers
from tidemark.formats.merge_plan import MergePlan, PlannedTable
from tidemark.lsn import Lsn
from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ROW_COLUMNS, ROW_HOLES, spark_identifier
from tidemark.schema.delta_types import widens
from tidemark.schema.renamed_columns import Ahead, Naming, names_in_target
from tidemark.schema.table import TableSchema
from tidemark.target.delta import delta_tables
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.spark import table_columns
from tidemark.target.spark.staged_changes import check_versions, metadata_ddl, missing_value, struct_of
from tidemark.target.spark.table_columns import added_at, older_rows
from tidemark.wording import counted, plural

log = logging.getLogger(__name__)

# The comment of a column that the source dropped.
DROPPED: Final = "Dropped at the source: NULL in every row that was written since"

TABLE_PROPERTIES: Final = {"delta.enableDeletionVectors": "true"}


@dataclass(frozen=True, slots=True)
class PlannedShape:
    """`schema` is what both tables have in the end; `schemas` are the versions of the plan's files, and it."""

    session: SparkSession
    plan: MergePlan
    planned: PlannedTable
    schema: TableSchema
    schemas: tuple[TableSchema, ...]

    @classmethod
    def settled(
        cls, session: SparkSession, plan: MergePlan, planned: PlannedTable, history: PinnedTable
    ) -> PlannedShape:
        """What the source dropped stays, where the target has it or a file of the plan brings it. So does what the
        target got from a chunk that was ahead of the stream, and a column that is wider there already. A table that
        began anew has nothing of these."""
        newest = planned.schemas[-1]
        targets = {f.name: f.dataType.simpleString() for f in history.schema().fields}
        here = table_columns.numbered(history, newest, planned.called) if newest.published else {}
        numbers = {*here.values(), *(c.attnum for schema in planned.schemas for c in schema.columns)}
        gone = [c for c in planned.dropped if c.attnum and c.attnum in numbers] if newest.published else []
        live = {column.attnum: column.name for column in newest.columns if column.attnum}
        names = names_in_target(here, live, {column.attnum: column.name for column in gone})
        newest = newest.called(names)
        targets = {names.get(here.get(name, 0), name): target for name, target in targets.items()}
        schema = newest.at_least_as_wide_as(targets)
        fields = {number: name for name, number in here.items()}
        ahead = tuple(
            replace(column, name=fields.get(column.attnum, column.name))
            for column in planned.ahead
            if (column.attnum in fields if newest.published and column.attnum else column.name in targets)
        )
        schema = replace(schema, version=0, columns=schema.columns + ahead) if ahead else schema
        in_files = {*targets, *(column.name for one in planned.schemas for column in one.columns)}
        is_told = [bool(newest.published and column.attnum) for column in planned.dropped]
        by_name = [c for c, told in zip(planned.dropped, is_told, strict=True) if not told and c.name in in_files]
        schema = schema.with_dropped([*(replace(c, name=names[c.attnum]) for c in gone), *by_name])
        schemas = planned.schemas if schema is planned.schemas[-1] else (*planned.schemas, schema)
        check_versions(schemas)
        return cls(session, plan, planned, schema, schemas)

    def of_history(self, history: PinnedTable, current: PinnedTable | None) -> PinnedTable:
        """History with this shape, made if it does not exist; pinned anew. Raises TargetDiffers, TargetAhead."""
        return self._with_columns("history", history, self._history_type(), [*ROW_COLUMNS], current)

    def of_current(self, current: PinnedTable, history: PinnedTable) -> PinnedTable:
        """Current with this shape, made if it does not exist; pinned anew. Raises TargetDiffers, TargetAhead."""
        return self._with_columns("current", current, self._current_type(), (), history)

    def _with_columns(
        self, step: str, table: PinnedTable, schema: StructType, statistics: Sequence[str], other: PinnedTable | None
    ) -> PinnedTable:
        """Create the table, or add the columns that are new and widen those that are wider now: metadata commits that
        carry no position. `other` is the other one of the two.

        `statistics` are the columns that get file statistics besides the key: those of the key prune a MERGE, those of
        all others would only cost every write.
        """
        if not table.exists:
            listed = delta_tables.with_statistics(schema, [*statistics, *self.schema.key]) | table_columns.had(schema)
            delta_tables.create(self.session, table, schema, {**TABLE_PROPERTIES, **listed})
            return self._with_marks(delta_tables.pin(self.session, table.path))
        table = self._with_names(step, table)
        types = {f.name: f.dataType for f in table.schema().fields}
        missing = [f for f in schema.fields if f.name not in types]
        followed = {ROW_HOLES, *(c.name for c in self.schema.columns if c.name not in self.schema.key)}
        differing = [f.name for f in missing if f.name not in followed]
        differing += self._taken_away(step, table, [f.name for f in missing if f.name in followed], other)
        altered = [f for f in schema.fields if f.name in types and types[f.name] != f.dataType]
        wider = [f for f in altered if widens(types[f.name].simpleString(), f.dataType.simpleString())]
        differing += [f.name for f in altered if f not in wider]
        if differing:
            raise TargetDiffers(step=step, table=self.planned.table, columns=", ".join(differing))
        if wider:
            table_columns.widen(self.session, table, wider)
            table = delta_tables.pin(self.session, table.path)
        if missing:
            self._add_columns(step, table, missing)
            table = delta_tables.pin(self.session, table.path)
        if table_columns.fill(self.session, table):
            table = delta_tables.pin(self.session, table.path)
        return self._with_marks(table)

    def _taken_away(
        self, step: str, table: PinnedTable, missing: Sequence[str], other: PinnedTable | None
    ) -> list[str]:
        """Those of the missing columns that the table had: somebody dropped them by hand, and what its rows had there
        is gone with them. The table's properties say what it had, and, of a table from before they did, the other one
        of the two: history gets a column first, so it had what current has, and current had what history got at a
        position that current has left behind; up to there, a driver may have died between the two. What the source
        has no more may go from the target too."""
        if not missing:
            return []
        had = table_columns.had_before(table, self.schema)
        if other is not None and other.exists:
            if step == "history":
                names = self._naming("current", other, self.schema).names
                had |= {names.get(f.name, f.name) for f in other.schema().fields if table_columns.SOURCE in f.metadata}
            else:
                had |= {f.name for f in other.schema().fields if self._is_beyond(table, table_columns.added_when(f))}
        return [name for name in missing if name in had and name not in self.schema.dropped]

    def _is_beyond(self, current: PinnedTable, added: tuple[int, Lsn] | None) -> bool:
        if added is None:
            return False
        generations = range(max(added[0], 1), self.plan.generation + 1)
        reached = [(number, self._position_in(number, current)) for number in generations]
        return any(at is not None and (number, at) > added for number, at in reached)

    def _position_in(self, generation: int, current: PinnedTable) -> Lsn | None:
        plan = replace(self.plan, generation=generation)
        return current.position(plan.application_id(self.planned.table, "current"))

    def _with_names(self, step: str, table: PinnedTable) -> PinnedTable:
        """The table with its columns called as the source calls them by now: one metadata commit without a position. In
        current, rows that lack a value (`_holes`) say so by its column's name, and are written anew with it."""
        relation = self.schema.relation_oid
        naming = self._naming(step, table, self.schema)
        told = table_columns.told(table, relation)
        are_told = all(naming.numbers.get(name) == number for name, number in told.items())
        # What the fields do not say is told by older versions, which a later column of the same name would confuse.
        if not naming.names and are_told and told.keys() >= naming.numbers.keys() & {*self.schema.dropped}:
            return table
        log.info("%s: %s of %s renamed", self.planned.table, counted(len(naming.names), "column"), step)
        at = table.position(self.plan.application_id(self.planned.table, step))
        may_have_holes = self.planned.had_holes or self.planned.may_have_new_holes(at)
        in_rows = step == "current" and bool(self.schema.key) and may_have_holes
        table_columns.rename(self.session, table, naming, relation, in_rows=in_rows)
        return delta_tables.pin(self.session, table.path)

    def _naming(self, step: str, table: PinnedTable, schema: TableSchema) -> Naming:
        try:
            return table_columns.named(table, schema, self.planned.called)
        except Ahead as name:
            raise TargetAhead(step=step, table=self.planned.table, column=str(name)) from None

    def _add_columns(self, step: str, table: PinnedTable, fields: list[StructField]) -> None:
        """What is there is from before the columns were added at the source: `current` gets their defaults in every
        row, history says in the columns' metadata that its rows have them."""
        defaults = {c.name: c for c in self.schema.columns if c.missing is not None}
        filled = [f for f in fields if f.name in defaults]
        others = [f for f in fields if f.name not in defaults]
        delta_tables.enable_features(self.session, table, fields)
        table = delta_tables.pin(self.session, table.path)
        at = table.position(self.plan.application_id(self.planned.table, "history"))
        if step == "history":
            others = [added_at(f, self.plan.generation, at) for f in others]
        if others:
            table_columns.add(table, others, {})
            table = delta_tables.pin(self.session, table.path)
        if not filled:
            return
        values = {f.name: missing_value(defaults[f.name]) for f in filled}
        if step == "current":
            log.info("%s: every row gets what %s", self.planned.table, _was_added(filled))
            rows = None if table.files == 0 else delta_tables.rows(self.session, table)
            if table.logged is not None and rows is not None:
                filled = [table_columns.to_fill(f, defaults[f.name].missing or "") for f in filled]
            table_columns.add(table, filled, values, rows)
            return
        older = {f.name: older_rows(self.plan.generation, at, defaults[f.name].missing or "") for f in filled}
        marked = [
            added_at(StructField(f.name, f.dataType, True, {**f.metadata, **older[f.name]}), self.plan.generation, at)
            for f in filled
        ]
        table_columns.add(table, marked, values)

    def _with_marks(self, table: PinnedTable) -> PinnedTable:
        """What the source dropped says so in the column's comment, and what it has again says nothing."""
        comments = {
            f.name: _marked(f.metadata.get("comment", ""), is_dropped=f.name in self.schema.dropped)
            for f in table.schema().fields
            if (DROPPED in f.metadata.get("comment", "")) != (f.name in self.schema.dropped)
        }
        if comments:
            table_columns.annotate(table, comments)
            table = delta_tables.pin(self.session, table.path)
        of_source, relation = self.planned.comments, self.schema.relation_oid
        if of_source is not None and table_columns.comment(table, relation, of_source, DROPPED):
            table = delta_tables.pin(self.session, table.path)
        return table

    def _history_type(self) -> StructType:
        columns = ", ".join(f"{spark_identifier(c.name)} {c.target}" for c in self.schema.columns)
        shape = struct_of(f"{metadata_ddl(CHANGE_COLUMNS)}, {columns}, {metadata_ddl(MARK_COLUMNS)}")
        return table_columns.with_numbers(shape, self.schema)

    def _current_type(self) -> StructType:
        key = self.schema.key
        columns = ", ".join(
            f"{spark_identifier(c.name)} {c.target}{' NOT NULL' if c.name in key else ''}" for c in self.schema.columns
        )
        holes = {ROW_HOLES: "array<string>"} if key else {}
        shape = struct_of(f"{columns}, {metadata_ddl({**ROW_COLUMNS, **holes})}")
        return table_columns.with_numbers(shape, self.schema)


def _marked(comment: str, *, is_dropped: bool) -> str:
    """The column's comment with DROPPED, or without it."""
    without = comment.replace(DROPPED, "").strip(". ")
    return ". ".join(part for part in (DROPPED, without) if part) if is_dropped else without


def _was_added(fields: Sequence[StructField]) -> str:
    return f"{', '.join(f.name for f in fields)} {plural(len(fields), 'was')} added with"
