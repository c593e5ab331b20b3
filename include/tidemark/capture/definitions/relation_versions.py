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

from tidemark.capture.definitions.column_guarding import Withheld
from tidemark.capture.definitions.marks import marks_of, withheld_marks
from tidemark.capture.definitions.table_definition import Catalog, catalogue_shape, define, nested_as_text, numbered
from tidemark.capture.definitions.told_definitions import ToldDefinitions
from tidemark.capture.definitions.version_differences import (
    another_shape,
    differences_since,
    in_doubt,
    next_number,
    with_gone_columns,
)
from tidemark.config import TableRule
from tidemark.formats.manifest import TableMark
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.column_numbers import Published, place
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
class Looks:
    """What the catalogue said of each table, by id, when: `staged` before all that is not staged yet, nothing if that
    is not known; `first` when the run began, which is before all that transactions from `first_below` on did."""

    staged: Mapping[str, Fingerprint]
    first: Mapping[str, Fingerprint]
    first_below: int


@dataclass(frozen=True, slots=True)
class RelationLookup:
    """As which table a relation is kept (`capture.table_identities`): `table` by its OID and its name in the stream,
    None if nothing of it is to be staged; `captured` the table that a relation is captured as, whatever it is called.
    `rule` is that of its name, in the names of a message, or raises Withheld (`capture.definitions.column_guarding`).
    `another` has the relation kept as another table from here on, for the reason given, and says which; None where the
    one that it is shall be parked (`capture.definitions.successor_shapes`). `bare`: whether the table begins anew and
    has no shape yet, so that any fits. `hidden` gives a table the rule of its name in the names of its columns. `told`
    are the definitions that the event trigger wrote into the stream."""

    table: Callable[[int, TableName], TableName | None] = lambda _, called: called
    captured: Callable[[int], TableName | None] = lambda _: None
    rule: Callable[[RelationMessage, TableRule], TableRule] = lambda _, rule: rule
    another: Callable[[int, TableName, str], TableName | None] = lambda _, called, reason: None
    bare: Callable[[str], bool] = lambda _: False
    hidden: Callable[[CapturedTable], CapturedTable] = lambda table: table
    told: ToldDefinitions | None = None


@dataclass(frozen=True, slots=True)
class Exact:
    """The shape of a message that is known for certain, what of it cannot be captured, and the definition's columns by
    their numbers."""

    shape: TableSchema
    unfit: list[str]
    prints: Mapping[int, ColumnPrint]


@dataclass(frozen=True, slots=True)
class ToldShape:
    """A shape that the trigger told, which another table has to take for this reason."""

    captured: CapturedTable
    shape: TableSchema
    reason: str


class Schemas:
    """Answers the decoder's question which captured table a relation is, and in which version; one per drain."""

    def __init__(
        self,
        rule_for: Callable[[TableName], TableRule | None],
        look: Callable[[], Catalog],
        versions: Callable[[str], list[TableSchema]],
        ahead: Callable[[str], list[TableSchema]] = lambda _: [],
        merged: Callable[[str], TableSchema | None] = lambda _: None,
        kept: RelationLookup = RelationLookup(),
    ) -> None:
        """`rule_for` is `PipelineConfig.rule`; `look` reads the catalogue, `versions` what the stream brought of a
        table so far, oldest first, `ahead` the newer versions that only a backfill's reader has seen, in the
        catalogue, `merged` the one that its target has. `kept` says as which table a relation is kept."""
        self._kept = kept
        self._told = kept.told or ToldDefinitions()
        self._looks = Looks({}, {}, 0)
        self._before: Mapping[str, Fingerprint] = {}
        self._older: dict[TableName, list[TableSchema]] = {}
        self._rule_for = rule_for
        self._look = look
        self._versions = versions
        self._ahead = ahead
        self._merged = merged
        self._lost_numbers: Callable[[str], frozenset[int]] = lambda _: frozenset()
        self._lost: dict[TableName, frozenset[int]] = {}
        self._catalog = look()
        self._latest: dict[TableName, TableSchema | None] = {}
        self._differences: dict[tuple[TableName, int], list[Difference]] = {}
        self._renamed: list[TableMark] = []
        self._met: set[TableName] = set()
        self._passed: list[TableSchema] = []

    def explain_by(
        self,
        looks: Looks,
        lost_numbers: Callable[[str], frozenset[int]] = lambda _: frozenset(),
        before: Mapping[str, Fingerprint] | None = None,
    ) -> None:
        """By looks at each table from before its stream it is known which names were dropped. `lost_numbers` are those
        that only columns had which the source lost. `before` are the looks that the ledger has."""
        self._looks = looks
        self._before = before or {}
        self._lost_numbers = lost_numbers

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    def schema_for(self, relation: RelationMessage) -> TableSchema | None:
        """The definition that the changes behind this message follow; None if no rule names the table."""
        rule = self._rule_for(relation.table)
        if rule is None:
            self._note_other_name(relation)
            return None
        table = self._kept.table(relation.relation_oid, relation.table)
        if table is None:
            return None
        try:
            rule = self._kept.rule(relation, rule)
        except Withheld as withheld:
            self._renamed += withheld_marks(table, str(withheld))
            return None
        sent, relation = relation, replace(relation, table=table)
        if relation.relation_oid not in self._catalog.tables or any(
            c.type_oid not in self._catalog.types for c in relation.columns
        ):
            self._catalog = self._look()
        latest = self._latest_of(relation.table)
        if (exact := self._exact(relation, rule, latest)) is not None:
            return self._as_told(sent, exact, latest)
        ahead = [] if latest is not None else self._ahead_of(relation.table, latest)
        shape, unfit = define(relation, rule, self._catalog, latest or (ahead[-1] if ahead else None))
        differences = [Difference(Verdict.PARK, reason) for reason in unfit]
        lost = self._lost_of(relation.table)
        same = latest is not None and latest.same_shape(shape) and lost.isdisjoint(latest.published)
        may_be_others = same and latest is not None and self._may_be_others(latest, relation)
        if same and latest is not None and relation.identity == "full":
            # Its message says nothing of the key, which the catalogue may have looked at meanwhile shows.
            shape, _ = define(relation, rule, self._catalog, latest)
            same = latest.same_shape(shape)
            may_be_others = may_be_others and same
        if same and not may_be_others and latest is not None and not self._would_learn(latest, relation):
            last = self._behind_readers(latest, self._gone_from(latest))
            return self._noted(structs.replace(last, relation_oid=shape.relation_oid), differences)
        if not same:
            self._look_behind(relation)  # it has the columns that are new
            captured = self._catalog.tables.get(relation.relation_oid)
            shape = nested_as_text(shape, captured, latest or (ahead[-1] if ahead else None))
        shape = self._placed(relation, shape)
        if may_be_others and latest is not None and latest.published == shape.published:
            return self._noted(structs.replace(latest, relation_oid=shape.relation_oid), differences)
        ahead = self._ahead_of(relation.table, latest)
        gone = self._gone_from(shape) if shape.published else ()
        schema = structs.replace(shape, version=self._number_of(shape, latest, ahead, gone))
        older = self._older.setdefault(schema.table, [])
        if not self.is_bare(str(schema.table)):
            dropped = self._dropped(schema, ahead)
            others = name_taken_by_key(older, schema)
            reason = reshaped([*differences, *another_shape(latest, ahead, schema, dropped), *others])
            if reason and (another := self._kept.another(sent.relation_oid, sent.table, reason)) is not None:
                self._go_on_as(another, relation.table)
                return self.schema_for(sent)
            since = [
                *differences_since(latest, ahead, schema, dropped),
                *([] if latest is None else in_doubt(latest, schema)),
            ]
            differences += self._since_merged(schema, since, dropped)
            differences += self._older_values(schema, ahead if latest is None else [latest])
            differences += others
        differences += self._numbers_given_again(schema)
        older.append(schema)
        return self._noted(schema, differences)

    def _exact(self, relation: RelationMessage, rule: TableRule, latest: TableSchema | None) -> Exact | None:
        """What the event trigger told of the definition that the message follows; None where it told nothing that is
        relied on."""
        oid = relation.relation_oid
        known = self._catalog.tables.get(oid)
        captured = self._told.captured(relation, rule, known, latest)
        if captured is not None:
            types = {**self._told.types(oid), **self._catalog.types}
            shape, unfit = define(relation, rule, Catalog({oid: captured}, types), latest)
            numbers = {column.name: column.attnum for column in captured.columns}
            prints = {column.attnum: column for column in captured.columns}
            return Exact(numbered(shape, relation, [numbers[c.name] for c in relation.columns], prints), unfit, prints)
        if latest is None or latest.relation_oid != oid or not self._is_followed(relation.table):
            return None
        if self._told.definition(oid) is None and len(relation.columns) == len(latest.published):
            shape, unfit = define(relation, rule, self._catalog, latest)
            if relation.identity == "full":
                shape = structs.replace(shape, key=latest.key)
            shape = structs.replace(shape, published=latest.published)
            if latest.same_shape(shape):
                return Exact(latest, unfit, {})
        self._told.doubt(oid)
        return None

    def _is_followed(self, table: TableName) -> bool:
        """Whether the last version is as the trigger told it last: nothing has been told since, in no drain."""
        look = self._before.get(str(table))
        return look is not None and 0 != look.told == self._told.since and not self._told.is_doubted(look.relation_oid)

    def _as_told(self, sent: RelationMessage, exact: Exact, latest: TableSchema | None) -> TableSchema | None:
        shape, oid = exact.shape, sent.relation_oid
        differences = [Difference(Verdict.PARK, reason) for reason in exact.unfit]
        differences += self._told.older_values(oid, shape, latest)
        if latest is not None and latest.same_shape(shape) and self._lost_of(shape.table).isdisjoint(shape.published):
            self._told.settled(oid)
            last = self._behind_readers(latest, self._told.gone(oid))
            return self._noted(structs.replace(last, relation_oid=oid), differences)
        ahead = self._ahead_of(shape.table, latest)
        schema = structs.replace(shape, version=self._number_of(shape, latest, ahead, self._told.gone(oid)))
        if not self.is_bare(str(schema.table)):
            new, reason = self._told_since(schema, latest, ahead, exact.prints)
            if reason and (another := self._kept.another(oid, sent.table, reason)) is not None:
                self._go_on_as(another, shape.table)
                return self.schema_for(sent)
            differences += new
        differences += self._numbers_given_again(schema)
        self._older.setdefault(schema.table, []).append(schema)
        self._told.settled(oid)
        return self._noted(schema, differences)

    def _told_since(
        self,
        schema: TableSchema,
        latest: TableSchema | None,
        ahead: list[TableSchema],
        prints: Mapping[int, ColumnPrint],
    ) -> tuple[list[Difference], str]:
        """What changed since the version before, and why another table has to take the shape, if one has to."""
        dropped = {c.name for c in (latest or schema).columns if c.attnum not in prints}
        again = name_taken_by_key(self._older.get(schema.table, []), schema)
        reason = reshaped([*another_shape(latest, ahead, schema, dropped), *again])
        differences = [*differences_since(latest, ahead, schema, dropped), *again]
        return [*differences, *self._older_values(schema, ahead if latest is None else [latest], prints)], reason

    def told_unseen(self, end_lsn: Lsn) -> list[TableSchema | ToldShape]:
        """What the trigger told and no RELATION message has followed yet, when a batch ends there: versions, and shapes
        that another table has to take. And the readers' versions that the stream has passed without a change."""
        unseen: list[TableSchema | ToldShape] = []
        for oid in self._told.pending(end_lsn):
            known = self._catalog.tables.get(oid)
            table = self._kept.captured(oid)
            if table is None and known is not None and known.table in self._met:
                table = known.table  # it began in this drain
            latest = None if table is None else self._latest_of(table)
            if table is None or latest is None or latest.relation_oid != oid or known is None:
                continue  # What has no version yet begins with its first change.
            captured = self._told.unseen(known, latest)
            if captured is None:
                self._note_told(table, self._told.older_values(oid, latest, latest), oid)
                continue
            rule = self._rule_for(captured.name)
            if rule is None:
                continue
            captured = self._kept.hidden(replace(captured, rule=rule)).kept_as(table)
            types = {**self._told.types(oid), **self._catalog.types}
            shape, unfit = catalogue_shape(captured, types, latest)
            if unfit:
                continue  # Its first change parks it.
            differences = self._told.older_values(oid, shape, latest)
            if latest.same_shape(shape):
                self._note_told(table, differences, oid)
                if (last := self._behind_readers(latest, self._told.gone(oid))) is not latest:
                    unseen.append(self._noted(last, []))
                continue
            prints = {column.attnum: column for column in captured.columns}
            ahead = self._ahead_of(table, latest)
            number = self._number_of(shape, latest, ahead, self._told.gone(oid))
            schema = structs.replace(shape, version=number)
            new, reason = self._told_since(schema, latest, [], prints)
            if reason:
                unseen.append(ToldShape(captured, shape, reason))
            else:
                self._older.setdefault(table, []).append(schema)
                unseen.append(self._noted(schema, [*differences, *new, *self._numbers_given_again(schema)]))
            self._told.settled(oid)
        passed, self._passed = self._passed, []
        return [*passed, *unseen]

    def _behind_readers(self, latest: TableSchema, gone: Collection[int]) -> TableSchema:
        """The stream's last version; as a new one if readers have since seen columns that are `gone` by now: behind
        the rows that these read it is another definition."""
        if max(gone, default=0) <= max(latest.published, default=0):
            return latest
        ahead = self._ahead_of(latest.table, latest)
        if not with_gone_columns(latest, ahead, gone):
            return latest
        last = structs.replace(latest, version=self._number_of(latest, latest, ahead, gone))
        self._older.setdefault(last.table, []).append(last)
        return last

    def _number_of(
        self, shape: TableSchema, latest: TableSchema | None, ahead: list[TableSchema], gone: Collection[int]
    ) -> int:
        """The number of a shape that the stream brings anew. Readers' versions with columns that are gone by now are
        the stream's too, from before it."""
        passed = with_gone_columns(shape, ahead, gone)
        behind = [version for version in ahead if not passed or version.version > passed[-1].version]
        self._passed += passed
        return next_number(shape, passed[-1] if passed else latest, behind)

    def _gone_from(self, shape: TableSchema) -> set[int]:
        """The numbers of columns that are dropped as the catalogue has it, and that the shape does not have."""
        captured = self._catalog.tables.get(shape.relation_oid)
        return set() if captured is None else {*captured.dropped} - {*shape.published}

    def _note_told(self, table: TableName, differences: list[Difference], oid: int) -> None:
        self._renamed += marks_of(table, differences)
        self._told.settled(oid)

    def unseen(self, captured: CapturedTable, types: Mapping[int, PgType]) -> TableSchema | TableMark | None:
        """The version with the columns that a look found and no change shows, or the mark of a table whose columns it
        does not tell; None where changes behind the look have them, or nobody knows the table's columns yet. `captured`
        is from the look, and from before the heartbeat, as all messages so far."""
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

    def _go_on_as(self, table: TableName, before: TableName) -> None:
        """What was before it as a relation is looked up as the new table's from here on."""
        staged, first = dict(self._looks.staged), dict(self._looks.first)
        for looks in (staged, first):
            if str(before) in looks:
                looks[str(table)] = looks[str(before)]
        self._looks = Looks(staged, first, self._looks.first_below)
        kept = {oid: one.kept_as(table) if one.table == before else one for oid, one in self._catalog.tables.items()}
        self._catalog = replace(self._catalog, tables=kept)

    def _look_behind(self, relation: RelationMessage) -> None:
        """Have a look from after the message's transaction. It is of all tables: where many were altered before a run,
        the run's own serves them all."""
        if relation.xid is None or relation.xid >= self._catalog.seen_below:
            self._catalog = self._look()

    def _noted(self, schema: TableSchema, differences: Iterable[Difference]) -> TableSchema:
        if differences := list(differences):
            self._differences.setdefault((schema.table, schema.version), []).extend(differences)
        self._latest[schema.table] = schema
        self._met.add(schema.table)
        return schema

    def _may_be_others(self, latest: TableSchema, relation: RelationMessage) -> bool:
        """Whether columns of the same names and types may be others than they were: one of them is gone by now."""
        if not latest.published or latest.relation_oid != relation.relation_oid:
            return False
        self._look_behind(relation)
        captured = self._catalog.tables.get(relation.relation_oid)
        return captured is not None and not {c.attnum for c in captured.columns}.issuperset(latest.published)

    def _published(self, captured: CapturedTable, relation: RelationMessage) -> Published:
        """What the stream sends of the table, as the catalogue has it; `settled` is what was gone when somebody looked
        before the message's transaction wrote."""
        looks = [self._looks.staged]
        if relation.xid is not None and relation.xid >= self._looks.first_below:
            looks.append(self._looks.first)
        seen = [look[str(captured.table)] for look in looks if str(captured.table) in look]
        names = set(captured.published_columns)
        return Published(
            tuple((c.attnum, c.name) for c in captured.columns if c.name in names),
            frozenset(c.attnum for c in captured.columns),
            frozenset(captured.dropped),
            frozenset(
                attnum for look in seen if look.relation_oid == captured.relation_oid for attnum, _ in look.dropped
            ),
        )

    def _would_learn(self, latest: TableSchema, relation: RelationMessage) -> bool:
        """Whether the columns' numbers, which the version before does not have, are known now."""
        if latest.published or latest.relation_oid != relation.relation_oid:
            return False
        captured = self._catalog.tables.get(relation.relation_oid)
        return captured is not None and bool(
            place([c.name for c in relation.columns], self._published(captured, relation), ())
        )

    def _placed(self, relation: RelationMessage, shape: TableSchema) -> TableSchema:
        """The shape with the numbers of its columns, and with what rows have of them that were written before they were
        added; as it is where its columns' numbers are not certain."""
        captured = self._catalog.tables.get(relation.relation_oid)
        if captured is None:
            return shape
        names, now = [c.name for c in relation.columns], self._published(captured, relation)
        numbers = place(names, now, self._numbers_before(relation, captured))
        return shape if numbers is None else numbered(shape, relation, numbers, self._prints(captured))

    def _numbers_before(self, relation: RelationMessage, captured: CapturedTable) -> list[tuple[int, ...]]:
        """The numbers that the stream sent before the message, version by version; where it sent nothing, those of a
        look from before it. None are known where the last version's are not."""
        versions = [v for v in self._older.get(relation.table, ()) if v.relation_oid == relation.relation_oid]
        if versions:
            return [version.published for version in versions] if versions[-1].published else []
        look = self._looks.staged.get(str(captured.table))
        if look is None or look.relation_oid != captured.relation_oid:
            return []
        numbers = tuple(column.attnum for column in look.columns)
        return [numbers] if len(numbers) == len(look.published_columns) else []

    def _prints(self, captured: CapturedTable) -> dict[int, ColumnPrint]:
        """What the catalogue says of each column now; a default that is gone, since the table was rewritten, as the
        run's own look still had it."""
        seen = self._looks.first.get(str(captured.table))
        before = {c.attnum: c for c in seen.columns} if seen and seen.relation_oid == captured.relation_oid else {}
        return {c.attnum: before[c.attnum] if c.missing is None and c.attnum in before else c for c in captured.columns}

    def _older_values(
        self, schema: TableSchema, before: Collection[TableSchema], told: Mapping[int, ColumnPrint] | None = None
    ) -> list[Difference]:
        """Columns that were added with something for older rows that the merge cannot give them. `before` is the
        version that the stream had, or else those that readers know."""
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
        """Columns whose number another one had in a part of the stream that the source lost: the target may have that
        one's values in its older rows, and by its number it is the same. It is said once, by a version of its own."""
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
        """The last shape that the stream brought of the table."""
        return self._latest_of(TableName.parse(table))

    def is_bare(self, table: str) -> bool:
        """Whether the table begins anew and no change has given it a shape yet, in this drain neither."""
        return not self.has_met(table) and self._kept.bare(table)

    def has_met(self, table: str) -> bool:
        """Whether this drain came upon the table in the stream."""
        return TableName.parse(table) in self._met

    def _dropped(self, schema: TableSchema, ahead: list[TableSchema]) -> set[str]:
        """The names of columns that the version before had, or where the stream brought none the last one that a reader
        saw, and that the catalogue has no more."""
        before = (self._older.get(schema.table) or ahead or [schema])[-1]
        captured = self._catalog.tables.get(schema.relation_oid)
        if captured is None or before.relation_oid != schema.relation_oid:
            return set()
        there = {column.attnum for column in captured.columns} | {*schema.published}
        return {c.name for c in before.columns if c.attnum and c.attnum not in there}

    def _since_merged(
        self, schema: TableSchema, differences: list[Difference], dropped: Collection[str]
    ) -> list[Difference]:
        """A table that is parked may change again, and whoever mends the target must know of every change, not of the
        last one: what parks it is told as of the shape that was merged last."""
        if not any(difference.verdict in STOPS for difference in differences):
            return differences
        merged = self._merged(str(schema.table))
        if merged is None:
            return differences
        all_of_them = [one for one in compare_schemas(merged, schema, dropped) if one.verdict in STOPS]
        others = [one for one in differences if one.verdict not in STOPS]
        return [*all_of_them, *others] if all_of_them else differences

    def _note_other_name(self, relation: RelationMessage) -> None:
        """Changes of a captured table under a name that the file does not name: where it was renamed there and back,
        the catalogue shows nothing of it (R8)."""
        table = self._kept.captured(relation.relation_oid)
        if table is None:
            return
        reason = f"it was called {relation.table} for a while, which the file does not name: what changed then is lost"
        self._renamed += marks_of(table, [Difference(Verdict.NEEDS_BACKFILL, reason)])

    def take_renamed(self) -> tuple[TableMark, ...]:
        """The marks of tables that had another name for a while; once, with the next batch."""
        renamed, self._renamed = dict.fromkeys(self._renamed), []
        return tuple(renamed)

    def take_marks(self, schema: TableSchema) -> tuple[TableMark, ...]:
        """The marks of a version, for the batch that is the first to use it; once."""
        return tuple(marks_of(schema.table, self._differences.pop((schema.table, schema.version), [])))

    def _latest_of(self, table: TableName) -> TableSchema | None:
        if table not in self._latest:
            versions = self._versions(str(table))
            self._latest[table] = versions[-1] if versions else None
            self._older[table] = list(versions)
        return self._latest[table]

    def _ahead_of(self, table: TableName, latest: TableSchema | None) -> list[TableSchema]:
        """Asked anew at every RELATION message with a new shape, which are few: readers come and go beside the
        drain."""
        return [v for v in self._ahead(str(table)) if latest is None or v.version > latest.version]
