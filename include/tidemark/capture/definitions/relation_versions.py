"""Selects the version of each RELATION message, and marks tables whose shape changed (R6, R8, R11).

    RELATION ──► its captured table and rule (`captured_relations`)
             ──► its shape: by the event trigger's definition if it has one, or else by the catalogue
             ──► the last version, if the shape is the same
                 a new version of the table, with the differences from the versions before
                 another table, if the Delta tables cannot take the shape (`successor_shapes`)

Columns come from the message, since the stream may be older than the catalogue. A version that only a backfill's reader
has is not compared with, since the stream is older. Differences become marks (`marks`) in the manifest of the first
batch that they concern.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from tidemark.capture.definitions.captured_relations import CapturedRelations
from tidemark.capture.definitions.catalogue_readings import CatalogueReadings
from tidemark.capture.definitions.column_guarding import ChangesWithheld
from tidemark.capture.definitions.drain_versions import DrainVersions, next_number
from tidemark.capture.definitions.marks import marks_of, needs_backfill, withheld_marks
from tidemark.capture.definitions.successor_shapes import ChangedShape, SuccessorShapes
from tidemark.capture.definitions.table_definition import Catalog, catalogue_shape, define, nested_as_text, numbered
from tidemark.capture.definitions.trigger_definitions import TriggerDefinitions
from tidemark.capture.definitions.version_differences import differences_since, numbering_difference, shape_differences
from tidemark.config import TableRule
from tidemark.formats.manifest import TableMark
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.delta_types import PgType
from tidemark.schema.evolution import (
    STOPS,
    Difference,
    Verdict,
    compare_schemas,
    name_taken_by_key,
    reshaped,
)
from tidemark.schema.fingerprint import ColumnPrint
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue.catalog import CapturedTable


@dataclass(frozen=True, slots=True)
class RelationShape:
    """The shape of a relation from one message on, without a version number.

    - `differences`: the parts of it that cannot be captured, and what the trigger wrote about older rows.
    - `columns`: the relation's columns by number; empty if they are not known.
    - `dropped`: the numbers of columns that are dropped by now.
    - `same`: the last version, if the shape is its shape.
    - `by_trigger`: whether the event trigger defined the shape.
    """

    shape: TableSchema
    differences: list[Difference]
    columns: Mapping[int, ColumnPrint]
    dropped: Collection[int]
    same: TableSchema | None
    by_trigger: bool


class RelationVersions:
    """Returns the version of each RELATION message of one drain."""

    def __init__(
        self,
        relations: CapturedRelations,
        readings: CatalogueReadings,
        by_trigger: TriggerDefinitions,
        versions: DrainVersions,
        successors: SuccessorShapes,
    ) -> None:
        self._relations = relations
        self._readings = readings
        self._by_trigger = by_trigger
        self._versions = versions
        self._successors = successors
        self._table_marks: list[TableMark] = []

    def schema_for(self, sent: RelationMessage) -> TableSchema | None:
        """The schema version of the changes after this message; None if they are not staged."""
        oid = sent.relation_oid
        rule = self._relations.rule_of(sent.table)
        if rule is None:
            self._mark_other_name(sent)
            return None
        table = self._relations.table_of(oid, sent.table)
        if table is None:
            return None
        try:
            rule = self._relations.placed_rule(sent, rule)
        except ChangesWithheld as withheld:
            self._table_marks += withheld_marks(table, str(withheld))
            return None
        relation = replace(sent, table=table)
        self._readings.read_unknown(relation)
        latest = self._versions.latest(table)
        found = self._by_definition(relation, rule, latest) or self._by_catalogue(relation, rule, latest)
        if found.same is not None:
            self._settle(found, oid)
            return self._versions.use(structs.replace(found.same, relation_oid=oid), found.differences)
        ahead = self._versions.ahead(table)
        schema = self._versions.with_number(found.shape, ahead, found.dropped)
        differences, reason = found.differences, ""
        if not self._versions.has_no_shape(table):
            differences, reason = self._differences(schema, found, ahead)
        if reason and (another := self._successors.begin(oid, sent.table, reason)) is not None:
            self._readings.take_over(another, table)
            return self.schema_for(sent)
        self._settle(found, oid)
        return self._versions.add(schema, differences)

    def _settle(self, found: RelationShape, oid: int) -> None:
        if found.by_trigger:
            self._by_trigger.settled(oid)

    # --- the shape of a relation --------------------------------------------------------------------------------------

    def _by_definition(
        self, relation: RelationMessage, rule: TableRule, latest: TableSchema | None
    ) -> RelationShape | None:
        """The shape by the event trigger; None if the trigger wrote no definition that can be trusted."""
        oid = relation.relation_oid
        captured = self._by_trigger.captured(relation, rule, self._readings.table(oid), latest)
        if captured is not None:
            shape, unfit = define(relation, rule, Catalog({oid: captured}, self._types(oid)), latest)
            numbers = {column.name: column.attnum for column in captured.columns}
            columns = {column.attnum: column for column in captured.columns}
            shape = numbered(shape, relation, [numbers[c.name] for c in relation.columns], columns)
            return self._defined(shape, unfit, columns, latest)
        if latest is None or latest.relation_oid != oid or not self._is_followed(relation.table):
            return None
        if self._by_trigger.definition(oid) is None and len(relation.columns) == len(latest.published):
            shape, unfit = define(relation, rule, self._readings.catalog, latest)
            if relation.identity == "full":
                shape = structs.replace(shape, key=latest.key)
            if latest.same_shape(structs.replace(shape, published=latest.published)):
                return self._defined(latest, unfit, {}, latest)
        self._by_trigger.doubt(oid)
        return None

    def _defined(
        self, shape: TableSchema, unfit: list[str], columns: Mapping[int, ColumnPrint], latest: TableSchema | None
    ) -> RelationShape:
        dropped = self._by_trigger.gone(shape.relation_oid)
        differences = [*_parking(unfit), *self._older_by_trigger(shape.relation_oid, shape, latest)]
        same = None
        if latest is not None and self._versions.is_latest(shape):
            same = self._versions.behind_readers(latest, dropped)
        return RelationShape(shape, differences, columns, dropped, same, by_trigger=True)

    def _older_by_trigger(self, oid: int, shape: TableSchema, latest: TableSchema | None) -> list[Difference]:
        return self._by_trigger.older_values(oid, shape, latest, self._readings.recorded(shape.table))

    def _is_followed(self, table: TableName) -> bool:
        """Whether the table's last version is the trigger's last definition: the trigger has written nothing since, in
        any drain."""
        fingerprint = self._readings.recorded(table)
        return (
            fingerprint is not None
            and 0 != fingerprint.told == self._by_trigger.since
            and not self._by_trigger.is_doubted(fingerprint.relation_oid)
        )

    def _types(self, oid: int) -> dict[int, PgType]:
        return {**self._by_trigger.types(oid), **self._readings.catalog.types}

    def _by_catalogue(self, relation: RelationMessage, rule: TableRule, latest: TableSchema | None) -> RelationShape:
        """The shape by the catalogue. Its columns have numbers if these are certain."""
        readings, oid, same = self._readings, relation.relation_oid, None
        ahead = [] if latest is not None else self._versions.ahead(relation.table)
        before = latest or (ahead[-1] if ahead else None)
        shape, unfit = define(relation, rule, readings.catalog, before)
        has_other_columns = False
        if latest is not None and self._versions.is_latest(shape):
            same = latest
            has_other_columns = readings.may_have_other_columns(relation, latest)
            if relation.identity == "full":
                # Its message says nothing of the key, which the catalogue may have looked at meanwhile shows.
                shape, _ = define(relation, rule, readings.catalog, latest)
                same = latest if latest.same_shape(shape) else None
        if same is None:
            readings.read_after(relation)  # it has the columns that are new
            shape = nested_as_text(shape, readings.table(oid), before)
        elif not has_other_columns and not readings.numbers_columns_since(relation, same):
            same = self._versions.behind_readers(same, readings.dropped_beside(same))
            return RelationShape(shape, _parking(unfit), {}, (), same, by_trigger=False)
        shape = readings.with_column_numbers(relation, shape, self._versions.streamed(relation.table))
        if same is not None and not (has_other_columns and same.published == shape.published):
            same = None
        dropped = readings.dropped_beside(shape) if shape.published else ()
        return RelationShape(shape, _parking(unfit), readings.columns(oid), dropped, same, by_trigger=False)

    # --- the differences of a new version -----------------------------------------------------------------------------

    def _differences(
        self, schema: TableSchema, found: RelationShape, ahead: list[TableSchema]
    ) -> tuple[list[Difference], str]:
        """The differences from the previous version, and the reason if another table has to take the shape."""
        latest, streamed = self._versions.latest(schema.table), self._versions.streamed(schema.table)
        dropped = _names_of_dropped((streamed or ahead or [schema])[-1], schema, found.columns)
        names = dropped, self._readings.dropped_names(schema)
        taken = name_taken_by_key(streamed, schema)
        reason = reshaped([*found.differences, *shape_differences(latest, ahead, schema, *names), *taken])
        since = differences_since(latest, ahead, schema, *names)
        before = latest or next(iter(ahead), None)
        if before is not None:
            since += numbering_difference(before, schema)
        older = _older_values(schema, ahead if latest is None else [latest], found.columns)
        return [*found.differences, *self._since_merged(schema, since, dropped), *older, *taken], reason

    def _since_merged(
        self, schema: TableSchema, differences: list[Difference], dropped: Collection[str]
    ) -> list[Difference]:
        """The differences since the version that was merged last, if any of them parks the table. A parked table may
        change again, and a person needs every change, not only the last one."""
        if not any(difference.verdict in STOPS for difference in differences):
            return differences
        merged = self._versions.merged(schema.table)
        if merged is None:
            return differences
        all_of_them = [one for one in compare_schemas(merged, schema, dropped) if one.verdict in STOPS]
        others = [one for one in differences if one.verdict not in STOPS]
        return [*all_of_them, *others] if all_of_them else differences

    # --- versions without a change ------------------------------------------------------------------------------------

    def versions_by_trigger(self, end_lsn: Lsn) -> list[TableSchema]:
        """The versions that only the event trigger defined before the batch ends: no RELATION message followed, and no
        later drain reads the trigger's messages again. Begins another table if the Delta tables cannot take the shape.
        Also returns the readers' versions that the stream has passed without a change."""
        defined: list[TableSchema] = []
        for oid in self._by_trigger.pending(end_lsn):
            known = self._readings.table(oid)
            table = self._relations.captured_before(oid)
            if table is None and known is not None and self._versions.has_begun(known.table):
                table = known.table  # it began in this drain
            latest = None if table is None else self._versions.latest(table)
            if table is None or latest is None or latest.relation_oid != oid or known is None:
                continue  # What has no version yet begins with its first change.
            defined += self._defined_version(known, table, latest)
        return [*self._versions.take_passed(), *defined]

    def _defined_version(self, known: CapturedTable, table: TableName, latest: TableSchema) -> list[TableSchema]:
        """The version by the trigger's last definition, or none."""
        oid = known.relation_oid
        captured = self._by_trigger.captured_without_message(known, latest)
        if captured is None:
            self._table_marks += marks_of(table, self._older_by_trigger(oid, latest, latest))
            self._by_trigger.settled(oid)
            return []
        rule = self._relations.rule_of(captured.name)
        if rule is None:
            return []
        captured = self._relations.with_rule(captured, rule).kept_as(table)
        shape, unfit = catalogue_shape(captured, self._types(oid), latest)
        if unfit:
            return []  # Its first change parks it.
        differences, dropped = self._older_by_trigger(oid, shape, latest), self._by_trigger.gone(oid)
        self._by_trigger.settled(oid)
        if latest.same_shape(shape):
            self._table_marks += marks_of(table, differences)
            last = self._versions.behind_readers(latest, dropped)
            return [] if last is latest else [self._versions.use(last, [])]
        columns = {column.attnum: column for column in captured.columns}
        ahead = self._versions.ahead(table)
        schema = self._versions.with_number(shape, ahead, dropped)
        found = RelationShape(shape, differences, columns, dropped, None, by_trigger=True)
        differences, reason = self._differences(schema, found, ahead)
        if reason:
            self._successors.begin_by_trigger(ChangedShape(captured, shape, reason))
            return []
        return [self._versions.add(schema, differences)]

    def version_without_change(
        self, captured: CapturedTable, types: Mapping[int, PgType]
    ) -> TableSchema | TableMark | None:
        """A version for columns that the catalogue has and no change has yet, or a mark if their shape is not certain.
        None if later changes have the columns, or if the table has no version yet. `captured` was read before the
        heartbeat, and so was every message so far."""
        latest, ahead = self._versions.latest(captured.table), self._versions.ahead(captured.table)
        before = latest or (ahead[-1] if ahead else None)
        now = self._readings.table(captured.relation_oid)
        if before is None or now is None or before.relation_oid != captured.relation_oid:
            return None
        shape, unfit = catalogue_shape(captured, types, before)
        there = {column.attnum for column in now.columns}
        known = {column.attnum for column in before.columns}
        added = [column for column in shape.columns if column.attnum not in known and column.attnum in there]
        if not added:
            return None
        dropped = {column.name for column in before.columns if column.attnum in captured.dropped}
        taken = name_taken_by_key([*self._versions.streamed(captured.table), *ahead], shape)
        differences = [*_parking(unfit), *compare_schemas(before, shape, dropped), *taken]
        if not before.published or any(one.verdict is not Verdict.FOLLOWED for one in differences):
            names = ", ".join(f'"{column.name}"' for column in added)
            reason = f"column {names} was added beside other changes, and no change of a row shows how"
            return needs_backfill(captured.table, reason)
        schema = structs.replace(shape, version=next_number(shape, latest, ahead))
        return self._versions.add(schema, _older_values(schema, [before], self._readings.columns(schema.relation_oid)))

    # --- marks of tables ----------------------------------------------------------------------------------------------

    def _mark_other_name(self, relation: RelationMessage) -> None:
        """Mark a captured table that changed under a name that the pipeline file does not have. A rename there and back
        leaves no trace in the catalogue (R8)."""
        table = self._relations.captured_before(relation.relation_oid)
        if table is not None:
            why = "for a while, which the file does not name: what changed then is lost"
            reason = f"it was called {relation.table} {why}"
            self._table_marks.append(needs_backfill(table, reason))

    def take_table_marks(self) -> list[TableMark]:
        """The marks that belong to no version; they are returned once, for the next batch."""
        marks, self._table_marks = dict.fromkeys(self._table_marks), []
        return list(marks)


def _parking(unfit: list[str]) -> list[Difference]:
    return [Difference(Verdict.PARK, reason) for reason in unfit]


def _names_of_dropped(before: TableSchema, schema: TableSchema, columns: Mapping[int, ColumnPrint]) -> set[str]:
    """The names of the previous version's columns that the relation does not have any more; none if its columns are not
    known."""
    if not columns or before.relation_oid != schema.relation_oid:
        return set()
    there = {*columns, *schema.published}
    return {column.name for column in before.columns if column.attnum and column.attnum not in there}


def _older_values(
    schema: TableSchema, before: Collection[TableSchema], columns: Mapping[int, ColumnPrint]
) -> list[Difference]:
    """Differences for added columns whose older rows hold a value that the merge cannot give them. `before` are the
    version that the stream had, or else those of readers."""
    if not before or not columns:
        return []
    prints = {column.attnum if schema.published else column.name: column for column in columns.values()}
    differences = []
    for column in schema.columns:
        was_there = any(schema.column_in(version, column) is not None for version in before)
        if was_there or column.missing is not None or column.mask == "null":
            continue
        about = f'column "{column.name}" was added'
        at = column.attnum if schema.published else column.name
        if at not in prints:
            reason = f"{about}, and what older rows have of it cannot be told any more"
        elif prints[at].missing is not None:
            reason = f"{about} with a default, which older rows have too"
        else:
            continue
        numbers = (column.attnum,) if column.attnum else ()
        differences.append(Difference(Verdict.NEEDS_BACKFILL, reason, numbers))
    return differences
