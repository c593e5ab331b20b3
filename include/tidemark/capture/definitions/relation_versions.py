"""Numbers the table shapes in the stream's RELATION messages, and marks tables whose shape changed (R6, R8, R11).

Columns come from the message, since the stream may be older than the catalogue
(`capture.definitions.table_definition`). A shape that the ledger does not have yet becomes the table's next version. A
version that only a backfill's reader has is not compared with, since the stream is older. The differences that
`schema.evolution` finds become `TableMark`s (`capture.definitions.marks`). They are in the manifest of the first batch
that they concern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from tidemark.capture.definitions.column_guarding import ChangesWithheld
from tidemark.capture.definitions.marks import marks_of, withheld_marks
from tidemark.capture.definitions.table_definition import Catalog, catalogue_shape, define, nested_as_text, numbered
from tidemark.capture.definitions.trigger_definitions import TriggerDefinitions
from tidemark.capture.definitions.version_differences import (
    differences_since,
    next_number,
    numbering_difference,
    shape_differences,
    versions_with_columns,
)
from tidemark.config import TableRule
from tidemark.formats.manifest import TableMark
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.column_numbers import PublishedNumbers, place
from tidemark.schema.delta_types import PgType
from tidemark.schema.evolution import (
    STOPS,
    Difference,
    Verdict,
    compare_schemas,
    name_taken_by_key,
    reshaped,
)
from tidemark.schema.fingerprint import ColumnPrint, Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue.catalog import CapturedTable


@dataclass(frozen=True, slots=True)
class EarlierFingerprints:
    """Fingerprints of tables, by table id, from two earlier readings of the catalogue.

    `staged` is older than every change that is not staged yet; it is empty if no such reading is known. `first` was
    read when the run began, before every transaction with an id of `first_below` or above.
    """

    staged: Mapping[str, Fingerprint]
    first: Mapping[str, Fingerprint]
    first_below: int


@dataclass(frozen=True, slots=True)
class RelationLookup:
    """Callbacks that map a relation to the captured table that it is kept as (`capture.table_ids`).

    - `table`: the table of a relation, by its OID and its name in the stream; None if its changes are not staged.
    - `captured`: the captured table of a relation, by its OID alone.
    - `rule`: the table's rule in the column names of a message. Raises ChangesWithheld
      (`capture.definitions.column_guarding`).
    - `another`: keeps the relation as another table from here on, for the given reason, and returns that table; None if
      the table has to be parked instead (`capture.definitions.successor_shapes`).
    - `bare`: whether the table starts anew and has no shape yet, so that every shape fits.
    - `hidden`: gives a table its rule in the column names of the catalogue.
    - `by_trigger`: the definitions that the event trigger wrote into the stream.
    """

    table: Callable[[int, TableName], TableName | None] = lambda _, called: called
    captured: Callable[[int], TableName | None] = lambda _: None
    rule: Callable[[RelationMessage, TableRule], TableRule] = lambda _, rule: rule
    another: Callable[[int, TableName, str], TableName | None] = lambda _, called, reason: None
    bare: Callable[[str], bool] = lambda _: False
    hidden: Callable[[CapturedTable], CapturedTable] = lambda table: table
    by_trigger: TriggerDefinitions | None = None


@dataclass(frozen=True, slots=True)
class ExactShape:
    """The certain shape of a message, the reasons why parts of it cannot be captured, and its columns by number."""

    shape: TableSchema
    unfit: list[str]
    prints: Mapping[int, ColumnPrint]


@dataclass(frozen=True, slots=True)
class TriggerShape:
    """A shape from the event trigger that the Delta tables cannot take, so that another table has to, and the
    reason."""

    captured: CapturedTable
    shape: TableSchema
    reason: str


class RelationVersions:
    """Returns the captured table and the schema version of each RELATION message of one drain."""

    def __init__(
        self,
        rule_for: Callable[[TableName], TableRule | None],
        read_catalogue: Callable[[], Catalog],
        versions: Callable[[str], list[TableSchema]],
        ahead: Callable[[str], list[TableSchema]] = lambda _: [],
        merged: Callable[[str], TableSchema | None] = lambda _: None,
        kept: RelationLookup = RelationLookup(),
    ) -> None:
        """The arguments are callbacks.

        - `rule_for` is `PipelineConfig.rule`. `read_catalogue` reads the catalogue.
        - `versions` returns the versions that the stream brought of a table so far, oldest first.
        - `ahead` returns newer versions that only a backfill's reader read in the catalogue.
        - `merged` returns the version of the table's Delta tables.
        - `kept` maps relations to tables.
        """
        self._kept = kept
        self._by_trigger = kept.by_trigger or TriggerDefinitions()
        self._earlier = EarlierFingerprints({}, {}, 0)
        self._before: Mapping[str, Fingerprint] = {}
        self._older: dict[TableName, list[TableSchema]] = {}
        self._rule_for = rule_for
        self._read_catalogue = read_catalogue
        self._versions = versions
        self._ahead = ahead
        self._merged = merged
        self._lost_numbers: Callable[[str], frozenset[int]] = lambda _: frozenset()
        self._lost: dict[TableName, frozenset[int]] = {}
        self._catalog = read_catalogue()
        self._latest: dict[TableName, TableSchema | None] = {}
        self._differences: dict[tuple[TableName, int], list[Difference]] = {}
        self._renamed: list[TableMark] = []
        self._met: set[TableName] = set()
        self._passed: list[TableSchema] = []

    def use_earlier_readings(
        self,
        earlier: EarlierFingerprints,
        lost_numbers: Callable[[str], frozenset[int]] = lambda _: frozenset(),
        before: Mapping[str, Fingerprint] | None = None,
    ) -> None:
        """Set the earlier readings of the catalogue, which show the names of columns that were dropped since.
        `lost_numbers` returns the column numbers of a table that only occurred in WAL that the source lost. `before`
        has the fingerprints in the ledger."""
        self._earlier = earlier
        self._before = before or {}
        self._lost_numbers = lost_numbers

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    def schema_for(self, relation: RelationMessage) -> TableSchema | None:
        """The schema version of the changes after this message; None if no rule names the table."""
        rule = self._rule_for(relation.table)
        if rule is None:
            self._note_other_name(relation)
            return None
        table = self._kept.table(relation.relation_oid, relation.table)
        if table is None:
            return None
        try:
            rule = self._kept.rule(relation, rule)
        except ChangesWithheld as withheld:
            self._renamed += withheld_marks(table, str(withheld))
            return None
        sent, relation = relation, replace(relation, table=table)
        if relation.relation_oid not in self._catalog.tables or any(
            c.type_oid not in self._catalog.types for c in relation.columns
        ):
            self._catalog = self._read_catalogue()
        latest = self._latest_of(relation.table)
        if (exact := self._exact(relation, rule, latest)) is not None:
            return self._as_defined_by_trigger(sent, exact, latest)
        ahead = [] if latest is not None else self._ahead_of(relation.table, latest)
        shape, unfit = define(relation, rule, self._catalog, latest or (ahead[-1] if ahead else None))
        differences = [Difference(Verdict.PARK, reason) for reason in unfit]
        lost = self._lost_of(relation.table)
        same = latest is not None and latest.same_shape(shape) and lost.isdisjoint(latest.published)
        may_be_others = same and latest is not None and self._may_be_other_columns(latest, relation)
        if same and latest is not None and relation.identity == "full":
            # Its message says nothing of the key, which the catalogue may have looked at meanwhile shows.
            shape, _ = define(relation, rule, self._catalog, latest)
            same = latest.same_shape(shape)
            may_be_others = may_be_others and same
        if same and not may_be_others and latest is not None and not self._gains_numbers(latest, relation):
            last = self._behind_readers(latest, self._gone_from(latest))
            return self._noted(structs.replace(last, relation_oid=shape.relation_oid), differences)
        if not same:
            self._read_catalogue_after(relation)  # it has the columns that are new
            captured = self._catalog.tables.get(relation.relation_oid)
            shape = nested_as_text(shape, captured, latest or (ahead[-1] if ahead else None))
        shape = self._with_numbers(relation, shape)
        if may_be_others and latest is not None and latest.published == shape.published:
            return self._noted(structs.replace(latest, relation_oid=shape.relation_oid), differences)
        ahead = self._ahead_of(relation.table, latest)
        gone = self._gone_from(shape) if shape.published else ()
        schema = structs.replace(shape, version=self._number_of(shape, latest, ahead, gone))
        older = self._older.setdefault(schema.table, [])
        if not self.has_no_shape(str(schema.table)):
            dropped, gone_names = self._dropped(schema, ahead), self._gone_names(schema)
            others = name_taken_by_key(older, schema)
            reason = reshaped([*differences, *shape_differences(latest, ahead, schema, dropped, gone_names), *others])
            if reason and (another := self._kept.another(sent.relation_oid, sent.table, reason)) is not None:
                self._take_over_readings(another, relation.table)
                return self.schema_for(sent)
            before = latest or next(iter(ahead), None)
            since = [
                *differences_since(latest, ahead, schema, dropped, gone_names),
                *([] if before is None else numbering_difference(before, schema)),
            ]
            differences += self._since_merged(schema, since, dropped)
            differences += self._older_values(schema, ahead if latest is None else [latest])
            differences += others
        differences += self._numbers_given_again(schema)
        older.append(schema)
        return self._noted(schema, differences)

    def _exact(self, relation: RelationMessage, rule: TableRule, latest: TableSchema | None) -> ExactShape | None:
        """The definition of the message by the event trigger; None if the trigger wrote none, or none that can be
        trusted."""
        oid = relation.relation_oid
        known = self._catalog.tables.get(oid)
        captured = self._by_trigger.captured(relation, rule, known, latest)
        if captured is not None:
            types = {**self._by_trigger.types(oid), **self._catalog.types}
            shape, unfit = define(relation, rule, Catalog({oid: captured}, types), latest)
            numbers = {column.name: column.attnum for column in captured.columns}
            prints = {column.attnum: column for column in captured.columns}
            return ExactShape(
                numbered(shape, relation, [numbers[c.name] for c in relation.columns], prints), unfit, prints
            )
        if latest is None or latest.relation_oid != oid or not self._is_followed(relation.table):
            return None
        if self._by_trigger.definition(oid) is None and len(relation.columns) == len(latest.published):
            shape, unfit = define(relation, rule, self._catalog, latest)
            if relation.identity == "full":
                shape = structs.replace(shape, key=latest.key)
            shape = structs.replace(shape, published=latest.published)
            if latest.same_shape(shape):
                return ExactShape(latest, unfit, {})
        self._by_trigger.doubt(oid)
        return None

    def _is_followed(self, table: TableName) -> bool:
        """Whether the table's last version is the trigger's last definition: the trigger has written nothing since, in
        any drain."""
        fingerprint = self._before.get(str(table))
        return (
            fingerprint is not None
            and 0 != fingerprint.told == self._by_trigger.since
            and not self._by_trigger.is_doubted(fingerprint.relation_oid)
        )

    def _as_defined_by_trigger(
        self, sent: RelationMessage, exact: ExactShape, latest: TableSchema | None
    ) -> TableSchema | None:
        shape, oid = exact.shape, sent.relation_oid
        differences = [Difference(Verdict.PARK, reason) for reason in exact.unfit]
        differences += self._by_trigger.older_values(oid, shape, latest)
        if latest is not None and latest.same_shape(shape) and self._lost_of(shape.table).isdisjoint(shape.published):
            self._by_trigger.settled(oid)
            last = self._behind_readers(latest, self._by_trigger.gone(oid))
            return self._noted(structs.replace(last, relation_oid=oid), differences)
        ahead = self._ahead_of(shape.table, latest)
        schema = structs.replace(shape, version=self._number_of(shape, latest, ahead, self._by_trigger.gone(oid)))
        if not self.has_no_shape(str(schema.table)):
            new, reason = self._differences_since(schema, latest, ahead, exact.prints)
            if reason and (another := self._kept.another(oid, sent.table, reason)) is not None:
                self._take_over_readings(another, shape.table)
                return self.schema_for(sent)
            differences += new
        differences += self._numbers_given_again(schema)
        self._older.setdefault(schema.table, []).append(schema)
        self._by_trigger.settled(oid)
        return self._noted(schema, differences)

    def _differences_since(
        self,
        schema: TableSchema,
        latest: TableSchema | None,
        ahead: list[TableSchema],
        prints: Mapping[int, ColumnPrint],
    ) -> tuple[list[Difference], str]:
        """The differences from the previous version, and the reason if another table has to take the shape."""
        dropped = {c.name for c in (latest or schema).columns if c.attnum not in prints}
        again = name_taken_by_key(self._older.get(schema.table, []), schema)
        gone = self._gone_names(schema)
        reason = reshaped([*shape_differences(latest, ahead, schema, dropped, gone), *again])
        differences = [*differences_since(latest, ahead, schema, dropped, gone), *again]
        return [*differences, *self._older_values(schema, ahead if latest is None else [latest], prints)], reason

    def versions_by_trigger(self, end_lsn: Lsn) -> list[TableSchema | TriggerShape]:
        """Definitions of the event trigger that no RELATION message followed before the batch ends: new versions, and
        shapes that another table has to take. Also the readers' versions that the stream has passed without a change.
        """
        defined: list[TableSchema | TriggerShape] = []
        for oid in self._by_trigger.pending(end_lsn):
            known = self._catalog.tables.get(oid)
            table = self._kept.captured(oid)
            if table is None and known is not None and known.table in self._met:
                table = known.table  # it began in this drain
            latest = None if table is None else self._latest_of(table)
            if table is None or latest is None or latest.relation_oid != oid or known is None:
                continue  # What has no version yet begins with its first change.
            captured = self._by_trigger.captured_without_message(known, latest)
            if captured is None:
                self._note_defined(table, self._by_trigger.older_values(oid, latest, latest), oid)
                continue
            rule = self._rule_for(captured.name)
            if rule is None:
                continue
            captured = self._kept.hidden(replace(captured, rule=rule)).kept_as(table)
            types = {**self._by_trigger.types(oid), **self._catalog.types}
            shape, unfit = catalogue_shape(captured, types, latest)
            if unfit:
                continue  # Its first change parks it.
            differences = self._by_trigger.older_values(oid, shape, latest)
            if latest.same_shape(shape):
                self._note_defined(table, differences, oid)
                if (last := self._behind_readers(latest, self._by_trigger.gone(oid))) is not latest:
                    defined.append(self._noted(last, []))
                continue
            prints = {column.attnum: column for column in captured.columns}
            ahead = self._ahead_of(table, latest)
            number = self._number_of(shape, latest, ahead, self._by_trigger.gone(oid))
            schema = structs.replace(shape, version=number)
            new, reason = self._differences_since(schema, latest, [], prints)
            if reason:
                defined.append(TriggerShape(captured, shape, reason))
            else:
                self._older.setdefault(table, []).append(schema)
                defined.append(self._noted(schema, [*differences, *new, *self._numbers_given_again(schema)]))
            self._by_trigger.settled(oid)
        passed, self._passed = self._passed, []
        return [*passed, *defined]

    def _behind_readers(self, latest: TableSchema, gone: Collection[int]) -> TableSchema:
        """The stream's last version. It gets a new number if readers have read columns since that are dropped by now
        (`gone`): rows of those readers have an older definition."""
        if max(gone, default=0) <= max(latest.published, default=0):
            return latest
        ahead = self._ahead_of(latest.table, latest)
        if not versions_with_columns(latest, ahead, gone):
            return latest
        last = structs.replace(latest, version=self._number_of(latest, latest, ahead, gone))
        self._older.setdefault(last.table, []).append(last)
        return last

    def _number_of(
        self, shape: TableSchema, latest: TableSchema | None, ahead: list[TableSchema], gone: Collection[int]
    ) -> int:
        """The version number of a new shape in the stream. Readers' versions with columns that are dropped by now
        become versions of the stream, before this one."""
        passed = versions_with_columns(shape, ahead, gone)
        behind = [version for version in ahead if not passed or version.version > passed[-1].version]
        self._passed += passed
        return next_number(shape, passed[-1] if passed else latest, behind)

    def _gone_from(self, shape: TableSchema) -> set[int]:
        """The numbers of columns that the catalogue has as dropped and the shape does not have."""
        captured = self._catalog.tables.get(shape.relation_oid)
        return set() if captured is None else {*captured.dropped} - {*shape.published}

    def _gone_names(self, schema: TableSchema) -> set[str]:
        """The names of the schema's columns that the catalogue has as dropped by now."""
        captured = self._catalog.tables.get(schema.relation_oid)
        return set() if captured is None else {c.name for c in schema.columns if c.attnum in captured.dropped}

    def _note_defined(self, table: TableName, differences: list[Difference], oid: int) -> None:
        self._renamed += marks_of(table, differences)
        self._by_trigger.settled(oid)

    def version_without_change(
        self, captured: CapturedTable, types: Mapping[int, PgType]
    ) -> TableSchema | TableMark | None:
        """A version for columns that the catalogue has and no change has yet, or a mark if their shape is not certain.
        None if later changes have the columns, or if the table has no version yet. `captured` was read before the
        heartbeat, and so was every message so far."""
        latest = self._latest_of(captured.table)
        ahead = self._ahead_of(captured.table, latest)
        before = latest or (ahead[-1] if ahead else None)
        now = self._catalog.tables.get(captured.relation_oid)
        if before is None or now is None or before.relation_oid != captured.relation_oid:
            return None
        shape, unfit = catalogue_shape(captured, types, before)
        there = {column.attnum for column in now.columns}
        known = {column.attnum for column in before.columns}
        added = [column for column in shape.columns if column.attnum not in known and column.attnum in there]
        if not added:
            return None
        dropped = {column.name for column in before.columns if column.attnum in captured.dropped}
        differences = [Difference(Verdict.PARK, reason) for reason in unfit]
        differences += compare_schemas(before, shape, dropped)
        differences += name_taken_by_key([*self._older.get(captured.table, ()), *ahead], shape)
        if not before.published or any(one.verdict is not Verdict.FOLLOWED for one in differences):
            names = ", ".join(f'"{column.name}"' for column in added)
            reason = f"column {names} was added beside other changes, and no change of a row shows how"
            return marks_of(captured.table, [Difference(Verdict.NEEDS_BACKFILL, reason)])[0]
        schema = structs.replace(shape, version=next_number(shape, latest, ahead))
        self._older.setdefault(schema.table, []).append(schema)
        return self._noted(schema, [*self._older_values(schema, [before]), *self._numbers_given_again(schema)])

    def _take_over_readings(self, table: TableName, before: TableName) -> None:
        """Use the earlier fingerprints and the catalogue's table of `before` for the table that replaces it."""
        staged, first = dict(self._earlier.staged), dict(self._earlier.first)
        for reading in (staged, first):
            if str(before) in reading:
                reading[str(table)] = reading[str(before)]
        self._earlier = EarlierFingerprints(staged, first, self._earlier.first_below)
        kept = {oid: one.kept_as(table) if one.table == before else one for oid, one in self._catalog.tables.items()}
        self._catalog = replace(self._catalog, tables=kept)

    def _read_catalogue_after(self, relation: RelationMessage) -> None:
        """Read the catalogue again unless the last reading contains the message's transaction. One reading covers all
        tables, so many altered tables cost one reading."""
        if relation.xid is None or relation.xid >= self._catalog.seen_below:
            self._catalog = self._read_catalogue()

    def _noted(self, schema: TableSchema, differences: Iterable[Difference]) -> TableSchema:
        if differences := list(differences):
            self._differences.setdefault((schema.table, schema.version), []).extend(differences)
        self._latest[schema.table] = schema
        self._met.add(schema.table)
        return schema

    def _may_be_other_columns(self, latest: TableSchema, relation: RelationMessage) -> bool:
        """Whether a column of this name and type may be another column than before, because one of them was dropped."""
        if not latest.published or latest.relation_oid != relation.relation_oid:
            return False
        self._read_catalogue_after(relation)
        captured = self._catalog.tables.get(relation.relation_oid)
        return captured is not None and not {c.attnum for c in captured.columns}.issuperset(latest.published)

    def _published(self, captured: CapturedTable, relation: RelationMessage) -> PublishedNumbers:
        """The columns that the stream sends of the table, by the catalogue. `settled` are columns that were dropped
        before the message's transaction wrote anything."""
        readings = [self._earlier.staged]
        if relation.xid is not None and relation.xid >= self._earlier.first_below:
            readings.append(self._earlier.first)
        seen = [reading[str(captured.table)] for reading in readings if str(captured.table) in reading]
        names = set(captured.published_columns)
        return PublishedNumbers(
            tuple((c.attnum, c.name) for c in captured.columns if c.name in names),
            frozenset(c.attnum for c in captured.columns),
            frozenset(captured.dropped),
            frozenset(
                attnum
                for fingerprint in seen
                if fingerprint.relation_oid == captured.relation_oid
                for attnum, _ in fingerprint.dropped
            ),
        )

    def _gains_numbers(self, latest: TableSchema, relation: RelationMessage) -> bool:
        """Whether the catalogue now gives the columns' numbers, which the previous version does not have."""
        if latest.published or latest.relation_oid != relation.relation_oid:
            return False
        captured = self._catalog.tables.get(relation.relation_oid)
        return captured is not None and bool(
            place([c.name for c in relation.columns], self._published(captured, relation), ())
        )

    def _with_numbers(self, relation: RelationMessage, shape: TableSchema) -> TableSchema:
        """The shape with its columns' numbers, and with the default that older rows have in added columns. The shape is
        returned unchanged if the numbers are not certain."""
        captured = self._catalog.tables.get(relation.relation_oid)
        if captured is None:
            return shape
        names, now = [c.name for c in relation.columns], self._published(captured, relation)
        numbers = place(names, now, self._numbers_before(relation, captured))
        return shape if numbers is None else numbered(shape, relation, numbers, self._prints(captured))

    def _numbers_before(self, relation: RelationMessage, captured: CapturedTable) -> list[tuple[int, ...]]:
        """The column numbers of each earlier version; if the stream brought none, those of an earlier fingerprint.
        Empty if the last version has no numbers."""
        versions = [v for v in self._older.get(relation.table, ()) if v.relation_oid == relation.relation_oid]
        if versions:
            return [version.published for version in versions] if versions[-1].published else []
        fingerprint = self._earlier.staged.get(str(captured.table))
        if fingerprint is None or fingerprint.relation_oid != captured.relation_oid:
            return []
        numbers = tuple(column.attnum for column in fingerprint.columns)
        return [numbers] if len(numbers) == len(fingerprint.published_columns) else []

    def _prints(self, captured: CapturedTable) -> dict[int, ColumnPrint]:
        """The catalogue's columns by number. A rewrite of the table removes a default from the catalogue; the run's
        first reading still has it."""
        seen = self._earlier.first.get(str(captured.table))
        before = {c.attnum: c for c in seen.columns} if seen and seen.relation_oid == captured.relation_oid else {}
        return {c.attnum: before[c.attnum] if c.missing is None and c.attnum in before else c for c in captured.columns}

    def _older_values(
        self, schema: TableSchema, before: Collection[TableSchema], told: Mapping[int, ColumnPrint] | None = None
    ) -> list[Difference]:
        """Differences for added columns whose older rows hold a value that the merge cannot give them. `before` are the
        version that the stream had, or else those of readers."""
        captured = self._catalog.tables.get(schema.relation_oid)
        seen = [*told.values()] if told is not None else [] if captured is None else [*captured.columns]
        if not before or not seen:
            return []
        prints = {c.attnum if schema.published else c.name: c for c in seen}
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
            columns = (column.attnum,) if column.attnum else ()
            differences.append(Difference(Verdict.NEEDS_BACKFILL, reason, columns))
        return differences

    def _numbers_given_again(self, schema: TableSchema) -> list[Difference]:
        """Differences for columns with the number of a column that occurred in WAL that the source lost. The Delta
        tables may hold that column's values under the same number. Reported once, with a version of its own."""
        lost = self._lost_of(schema.table)
        again = [column for column in schema.columns if column.attnum in lost]
        self._lost[schema.table] = lost.difference(schema.published)
        return [
            Difference(
                Verdict.NEEDS_BACKFILL,
                f'column "{column.name}" has the number of one that the source lost: older rows may have its values',
                (column.attnum,),
            )
            for column in again
        ]

    def _lost_of(self, table: TableName) -> frozenset[int]:
        if table not in self._lost:
            self._lost[table] = self._lost_numbers(str(table))
        return self._lost[table]

    def streamed(self, table: str) -> TableSchema | None:
        """The last version that the stream brought of the table."""
        return self._latest_of(TableName.parse(table))

    def has_no_shape(self, table: str) -> bool:
        """Whether the table starts anew and no change has given it a shape yet, this drain's included."""
        return not self.has_message(table) and self._kept.bare(table)

    def has_message(self, table: str) -> bool:
        """Whether this drain has read a RELATION message of the table."""
        return TableName.parse(table) in self._met

    def _dropped(self, schema: TableSchema, ahead: list[TableSchema]) -> set[str]:
        """The names of columns that the previous version had and the catalogue does not have. If the stream brought no
        version, the previous one is the last that a reader read."""
        before = (self._older.get(schema.table) or ahead or [schema])[-1]
        captured = self._catalog.tables.get(schema.relation_oid)
        if captured is None or before.relation_oid != schema.relation_oid:
            return set()
        there = {column.attnum for column in captured.columns} | {*schema.published}
        return {c.name for c in before.columns if c.attnum and c.attnum not in there}

    def _since_merged(
        self, schema: TableSchema, differences: list[Difference], dropped: Collection[str]
    ) -> list[Difference]:
        """The differences since the version that was merged last, if any of them parks the table. A parked table may
        change again, and a person needs every change, not only the last one."""
        if not any(difference.verdict in STOPS for difference in differences):
            return differences
        merged = self._merged(str(schema.table))
        if merged is None:
            return differences
        all_of_them = [one for one in compare_schemas(merged, schema, dropped) if one.verdict in STOPS]
        others = [one for one in differences if one.verdict not in STOPS]
        return [*all_of_them, *others] if all_of_them else differences

    def _note_other_name(self, relation: RelationMessage) -> None:
        """Mark a captured table that changed under a name that the pipeline file does not have. A rename there and back
        leaves no trace in the catalogue (R8)."""
        table = self._kept.captured(relation.relation_oid)
        if table is None:
            return
        reason = f"it was called {relation.table} for a while, which the file does not name: what changed then is lost"
        self._renamed += marks_of(table, [Difference(Verdict.NEEDS_BACKFILL, reason)])

    def take_renamed(self) -> tuple[TableMark, ...]:
        """The marks of tables that had another name for a while; they are returned once, for the next batch."""
        renamed, self._renamed = dict.fromkeys(self._renamed), []
        return tuple(renamed)

    def take_marks(self, schema: TableSchema) -> tuple[TableMark, ...]:
        """The marks of a version, for the first batch that uses it; they are returned once."""
        return tuple(marks_of(schema.table, self._differences.pop((schema.table, schema.version), [])))

    def _latest_of(self, table: TableName) -> TableSchema | None:
        if table not in self._latest:
            versions = self._versions(str(table))
            self._latest[table] = versions[-1] if versions else None
            self._older[table] = list(versions)
        return self._latest[table]

    def _ahead_of(self, table: TableName, latest: TableSchema | None) -> list[TableSchema]:
        """The readers' versions after `latest`. Read anew for every RELATION message with a new shape, since readers
        run beside the drain."""
        return [v for v in self._ahead(str(table)) if latest is None or v.version > latest.version]
