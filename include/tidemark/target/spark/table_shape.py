"""Changes the shape of a table's history and current before a plan: adds, widens, renames and marks columns.

    versions of the plan's files + what history has ──► `settled` ──► of_history, of_current ──► the pinned tables

Each change is a metadata commit without a position. A driver that dies between the two tables leaves one of them
changed; the next driver changes the other. If a table lacks a column that it once had, somebody removed the column by
hand. Its values are lost, so TargetDiffers is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
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
from tidemark.schema.renamed_columns import NamesAhead, Naming, names_in_target
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
    """The schema that history and current get before the merge.

    `schema` is the schema version of both tables. `schemas` are the versions of the plan's files, and `schema` last.
    """

    session: SparkSession
    plan: MergePlan
    planned: PlannedTable
    schema: TableSchema
    schemas: tuple[TableSchema, ...]

    @classmethod
    def settled(
        cls, session: SparkSession, plan: MergePlan, planned: PlannedTable, history: PinnedTable
    ) -> PlannedShape:
        """Compute the schema from the plan's versions and from the columns that history has.

        A column that the source dropped stays, if the target has it or a file of the plan has it. A column that the
        target got from a chunk ahead of the stream stays too, and a column that is already wider stays wider. A table
        that was created again has no such columns.
        """
        newest = planned.schemas[-1]
        targets = {f.name: f.dataType.simpleString() for f in history.schema().fields}
        numbers_in_history = table_columns.column_numbers(history, newest, planned.called) if newest.published else {}
        numbers = {*numbers_in_history.values(), *(c.attnum for schema in planned.schemas for c in schema.columns)}
        dropped = [c for c in planned.dropped if c.attnum and c.attnum in numbers] if newest.published else []
        live = {column.attnum: column.name for column in newest.columns if column.attnum}
        names = names_in_target(numbers_in_history, live, {column.attnum: column.name for column in dropped})
        newest = newest.called(names)
        targets = {names.get(numbers_in_history.get(name, 0), name): target for name, target in targets.items()}
        fields = {number: name for name, number in numbers_in_history.items()}
        ahead = tuple(
            replace(column, name=fields.get(column.attnum, column.name))
            for column in planned.ahead
            if (column.attnum in fields if newest.published and column.attnum else column.name in targets)
        )
        schema = replace(newest, version=0, columns=newest.columns + ahead) if ahead else newest
        in_files = {*targets, *(column.name for version in planned.schemas for column in version.columns)}
        has_number = [bool(newest.published and column.attnum) for column in planned.dropped]
        by_name = [
            c for c, numbered in zip(planned.dropped, has_number, strict=True) if not numbered and c.name in in_files
        ]
        schema = schema.with_dropped([*(replace(c, name=names[c.attnum]) for c in dropped), *by_name])
        schema = schema.at_least_as_wide_as(targets)
        schemas = planned.schemas if schema is planned.schemas[-1] else (*planned.schemas, schema)
        check_versions(schemas)
        return cls(session, plan, planned, schema, schemas)

    def of_history(self, history: PinnedTable, current: PinnedTable | None) -> PinnedTable:
        """Create history or give it this shape, and pin it again. Raises TargetDiffers, TargetAhead."""
        return self._with_columns("history", history, self._history_type(), ["_generation", *ROW_COLUMNS], current)

    def of_current(self, current: PinnedTable, history: PinnedTable) -> PinnedTable:
        """Create current or give it this shape, and pin it again. Raises TargetDiffers, TargetAhead."""
        return self._with_columns("current", current, self._current_type(), (), history)

    def _with_columns(
        self,
        step: str,
        table: PinnedTable,
        schema: StructType,
        statistics: Sequence[str],
        counterpart: PinnedTable | None,
    ) -> PinnedTable:
        """Create the table, or rename, add and widen its columns, in metadata commits without a position.

        `counterpart` is the other Delta table of the pair. `statistics` are the columns that get file statistics in
        addition to the key. The key's statistics let a MERGE skip files. Statistics of other columns would only slow
        down writes.
        """
        if not table.exists:
            listed = delta_tables.with_statistics(
                schema, [*statistics, *self.schema.key]
            ) | table_columns.columns_property(schema)
            delta_tables.create(self.session, table, schema, {**TABLE_PROPERTIES, **listed})
            return self._with_marks(delta_tables.pin(self.session, table.path))
        table = self._with_names(step, table)
        types = {f.name: f.dataType for f in table.schema().fields}
        missing = [f for f in schema.fields if f.name not in types]
        addable = {ROW_HOLES, *(c.name for c in self.schema.columns if c.name not in self.schema.key)}
        differing = [f.name for f in missing if f.name not in addable]
        differing += self._removed_by_hand(step, table, [f.name for f in missing if f.name in addable], counterpart)
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

    def _removed_by_hand(
        self, step: str, table: PinnedTable, missing: Sequence[str], counterpart: PinnedTable | None
    ) -> list[str]:
        """Those of the missing columns that somebody removed by hand, so that the values of their rows are lost.

        The table's properties list the columns that it had. An older table has no such property, so its `counterpart`,
        the other table of the pair, is compared. History gets a column first, so history had every column of current.
        Current had every column that history got at a position below current's own. At or above that position, a driver
        may have died between the two tables. A column that the source dropped may be removed from the target.
        """
        if not missing:
            return []
        had = table_columns.columns_had(table, self.schema)
        if counterpart is not None and counterpart.exists:
            if step == "history":
                names = self._naming("current", counterpart, self.schema).names
                had |= {
                    names.get(f.name, f.name) for f in counterpart.schema().fields if table_columns.SOURCE in f.metadata
                }
            else:
                had |= {
                    f.name for f in counterpart.schema().fields if self._is_beyond(table, table_columns.added_when(f))
                }
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
        """Rename the table's columns to the source's present names, in one metadata commit without a position.

        Rows of current that lack a value name the column in `_holes`. They are rewritten with the new name.
        """
        relation = self.schema.relation_oid
        naming = self._naming(step, table, self.schema)
        recorded = table_columns.source_numbers(table, relation)
        are_right = all(naming.numbers.get(name) == number for name, number in recorded.items())
        # Without a recorded number a dropped column is identified by its name in older versions. A later column of the
        # same name would make that ambiguous, so the number is recorded now, even if no column is renamed.
        if not naming.names and are_right and recorded.keys() >= naming.numbers.keys() & {*self.schema.dropped}:
            return table
        log.info("%s: %s of %s renamed", self.planned.table, counted(len(naming.names), "column"), step)
        at = table.position(self.plan.application_id(self.planned.table, step))
        may_have_holes = self.planned.had_holes or self.planned.may_have_new_holes(at)
        in_rows = step == "current" and bool(self.schema.key) and may_have_holes
        table_columns.rename(self.session, table, naming, relation, in_rows=in_rows)
        return delta_tables.pin(self.session, table.path)

    def _naming(self, step: str, table: PinnedTable, schema: TableSchema) -> Naming:
        try:
            return table_columns.target_naming(table, schema, self.planned.called)
        except NamesAhead as name:
            raise TargetAhead(step=step, table=self.planned.table, column=str(name)) from None

    def _add_columns(self, step: str, table: PinnedTable, fields: list[StructField]) -> None:
        """Add columns. The present rows are older than the columns, so they get the columns' defaults.

        In current the default is written into every row. History only records it in the column's metadata.
        """
        defaults = {c.name: c for c in self.schema.columns if c.missing is not None}
        with_default = [f for f in fields if f.name in defaults]
        without_default = [f for f in fields if f.name not in defaults]
        delta_tables.enable_features(self.session, table, fields)
        table = delta_tables.pin(self.session, table.path)
        at = table.position(self.plan.application_id(self.planned.table, "history"))
        if step == "history":
            without_default = [added_at(f, self.plan.generation, at) for f in without_default]
        if without_default:
            table_columns.add_columns(table, without_default, {})
            table = delta_tables.pin(self.session, table.path)
        if not with_default:
            return
        values = {f.name: missing_value(defaults[f.name]) for f in with_default}
        if step == "current":
            log.info("%s: every row gets what %s", self.planned.table, _was_added(with_default))
            rows = None if table.files == 0 else delta_tables.rows(table)
            if table.logged is not None and rows is not None:
                with_default = [table_columns.to_fill(f, defaults[f.name].missing or "") for f in with_default]
            table_columns.add_columns(table, with_default, values, rows)
            return
        older = {f.name: older_rows(self.plan.generation, at, defaults[f.name].missing or "") for f in with_default}
        marked = [
            added_at(StructField(f.name, f.dataType, True, {**f.metadata, **older[f.name]}), self.plan.generation, at)
            for f in with_default
        ]
        table_columns.add_columns(table, marked, values)

    def _with_marks(self, table: PinnedTable) -> PinnedTable:
        """Mark dropped columns in their comments, remove the mark of columns that exist again, and copy comments."""
        comments = {
            f.name: _marked(f.metadata.get("comment", ""), is_dropped=f.name in self.schema.dropped)
            for f in table.schema().fields
            if (DROPPED in f.metadata.get("comment", "")) != (f.name in self.schema.dropped)
        }
        if comments:
            table_columns.set_comments(table, comments)
            table = delta_tables.pin(self.session, table.path)
        of_source, relation = self.planned.comments, self.schema.relation_oid
        if of_source is not None and table_columns.copy_comments(table, relation, of_source, DROPPED):
            table = delta_tables.pin(self.session, table.path)
        return table

    def _history_type(self) -> StructType:
        columns = ", ".join(f"{spark_identifier(c.name)} {c.target}" for c in self.schema.columns)
        shape = struct_of(f"{metadata_ddl(CHANGE_COLUMNS)}, {columns}, {metadata_ddl(MARK_COLUMNS)}")
        return table_columns.with_numbers(shape, self.schema)

    def _current_type(self) -> StructType:
        shape = current_type(((c.name, c.target) for c in self.schema.columns), self.schema.key)
        return table_columns.with_numbers(shape, self.schema)


def current_type(columns: Iterable[tuple[str, str]], key: Sequence[str]) -> StructType:
    """The columns of current: those of the source, given as names and types, and Tidemark's own."""
    own = [f"{spark_identifier(name)} {target}{' NOT NULL' if name in key else ''}" for name, target in columns]
    holes = {ROW_HOLES: "array<string>"} if key else {}
    return struct_of(", ".join([*own, metadata_ddl({**ROW_COLUMNS, **holes})]))


def _marked(comment: str, *, is_dropped: bool) -> str:
    """The column's comment, with DROPPED added or removed."""
    without = comment.replace(DROPPED, "").strip(". ")
    return ". ".join(part for part in (DROPPED, without) if part) if is_dropped else without


def _was_added(fields: Sequence[StructField]) -> str:
    return f"{', '.join(f.name for f in fields)} {plural(len(fields), 'was')} added with"
