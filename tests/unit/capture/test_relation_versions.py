"""RELATION messages -> numbered versions: what comes from the message, what from the catalogue, what from the version
before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs, to_builtins

from tidemark.capture.definitions.captured_relations import CapturedRelations
from tidemark.capture.definitions.catalogue_readings import CatalogueReadings, EarlierFingerprints
from tidemark.capture.definitions.drain_versions import DrainVersions
from tidemark.capture.definitions.relation_versions import RelationVersions
from tidemark.capture.definitions.successor_shapes import SuccessorShapes
from tidemark.capture.definitions.table_definition import Catalog
from tidemark.capture.definitions.trigger_definitions import TriggerDefinitions
from tidemark.config import TableRule
from tidemark.formats.definition import PREFIX, DefinedColumn, DefinedRelation, Keys
from tidemark.formats.manifest import TableMark
from tidemark.ledger.captured.schema_versions import RecordedVersions
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.messages import LogicalMessage, RelationColumn, RelationMessage
from tidemark.schema.delta_types import PgType
from tidemark.schema.fingerprint import ColumnPrint
from tidemark.schema.table import Identity, TableSchema
from tidemark.source.catalogue.catalog import CapturedTable

ORDERS = TableName("public", "orders")
RULE = TableRule("public.*")
KEYS = Keys(b"i" * 64, b"o" * 64)
TYPES = {
    20: PgType(20, "int8", "pg_catalog", "b"),
    25: PgType(25, "text", "pg_catalog", "b"),
    90000: PgType(90000, "whole", "public", "d", base_oid=20),
}


def relation(*columns: tuple[str, int, bool], identity: Identity = "default") -> RelationMessage:
    return RelationMessage(16384, ORDERS, identity, tuple(RelationColumn(n, oid, -1, key) for n, oid, key in columns))


def captured(*key: str) -> CapturedTable:
    return CapturedTable(ORDERS, 16384, "r", TableRule("public.*"), "default", key, (), True, (), None)


class Source:
    """The catalogue as it changes while a drain runs."""

    def __init__(self, *key: str, types: dict[int, PgType] = TYPES) -> None:
        self.catalog = Catalog({16384: captured(*key)}, types)
        self.looks = 0

    def look(self) -> Catalog:
        self.looks += 1
        return self.catalog


class Named(CapturedRelations):
    """Every relation is the table of its name, with one rule and without masks."""

    def __init__(self, rule: TableRule | None) -> None:
        self.rule = rule

    def rule_of(self, called: TableName) -> TableRule | None:
        return self.rule

    def table_of(self, oid: int, called: TableName) -> TableName | None:
        return called

    def captured_before(self, oid: int) -> TableName | None:
        return None

    def placed_rule(self, relation: RelationMessage, rule: TableRule) -> TableRule:
        return rule

    def with_rule(self, captured: CapturedTable, rule: TableRule) -> CapturedTable:
        return captured


class Recorded(RecordedVersions):
    """The versions of the only table."""

    def __init__(
        self, streamed: Sequence[TableSchema], ahead: Sequence[TableSchema], merged: TableSchema | None
    ) -> None:
        self._versions, self._readers, self._merged = list(streamed), list(ahead), merged

    def streamed(self, table: str) -> list[TableSchema]:
        return self._versions

    def ahead(self, table: str) -> list[TableSchema]:
        return self._readers

    def merged(self, table: str) -> TableSchema | None:
        return self._merged

    def lost_numbers(self, table: str) -> frozenset[int]:
        return frozenset()

    def is_restarted(self, table: str) -> bool:
        return False


class NoSuccessors(SuccessorShapes):
    """No table is followed by another one, as with `evolve: park`."""

    def __init__(self) -> None:
        pass

    def begin(self, oid: int, called: TableName, reason: str, pending: object = None) -> TableName | None:
        return None


class Followed(RelationVersions):
    """The versions of a drain in whose stream the event trigger wrote this definition."""

    def __init__(
        self,
        source: Source,
        streamed: Sequence[TableSchema] = (),
        ahead: Sequence[TableSchema] = (),
        merged: TableSchema | None = None,
        rule: TableRule | None = RULE,
        definition: DefinedRelation | None = None,
    ) -> None:
        self.versions = DrainVersions(Recorded(streamed, ahead, merged))
        readings = CatalogueReadings(source.look, source.look(), EarlierFingerprints({}, {}, {}, 0))
        self.by_trigger = TriggerDefinitions(KEYS, since_xid=1, publication="p")
        if definition is not None:
            self.note(definition)
        super().__init__(Named(rule), readings, self.by_trigger, self.versions, NoSuccessors())

    def note(self, definition: DefinedRelation) -> None:
        text = json.dumps({"publication": "p", "definition": to_builtins(definition)}).encode()
        content = KEYS.code(2, text).encode() + text
        assert self.by_trigger.note(LogicalMessage(PREFIX, content, True, Lsn(1), Lsn(2), 2))

    def take_marks(self, schema: TableSchema) -> tuple[TableMark, ...]:
        return self.versions.take_marks(schema)


def schemas(source: Source, *versions: TableSchema, rule: TableRule | None = None) -> Followed:
    return Followed(source, versions, rule=rule or RULE)


def one(schemas: RelationVersions, message: RelationMessage) -> TableSchema:
    schema = schemas.schema_for(message)
    assert schema is not None
    return schema


def test_the_first_shape_is_version_one_and_an_equal_one_keeps_its_number() -> None:
    first = one(schemas(Source("id")), relation(("id", 20, True), ("note", 25, False)))
    assert (first.version, first.key, [c.target for c in first.columns]) == (1, ("id",), ["bigint", "string"])
    again = one(
        schemas(Source("id"), structs.replace(first, version=7)),
        relation(("id", 20, True), ("note", 25, False)),
    )
    assert again.version == 7


def test_another_shape_is_the_next_version_and_its_marks_are_given_once() -> None:
    first = one(schemas(Source("id")), relation(("id", 20, True), ("note", 25, False)))
    later = schemas(Source("id"), first)
    second = one(later, relation(("id", 20, True)))
    assert second.version == 2
    assert [m.state for m in later.take_marks(second)] == ["parked"]
    assert later.take_marks(second) == ()


def test_a_parked_table_that_changes_again_is_told_with_every_column_that_changed() -> None:
    merged = one(schemas(Source("id")), relation(("id", 20, True), ("note", 25, False), ("more", 25, False)))
    between = one(schemas(Source("id"), merged), relation(("id", 20, True), ("note", 20, False), ("more", 25, False)))
    followed = Followed(Source("id"), [merged, between], merged=merged)
    last = one(followed, relation(("id", 20, True), ("note", 20, False), ("more", 20, False)))
    (mark,) = followed.take_marks(last)
    assert 'column "note" changed from' in mark.message
    assert 'column "more" changed from' in mark.message


def test_a_table_that_no_rule_names_is_not_captured() -> None:
    assert Followed(Source("id"), rule=None).schema_for(relation(("id", 20, True))) is None


def test_the_key_of_the_message_has_the_order_of_the_catalogue_or_else_of_the_version_before() -> None:
    message = relation(("a", 20, True), ("b", 20, True))
    assert one(schemas(Source("b", "a")), message).key == ("b", "a")
    before = one(schemas(Source("b", "a")), message)
    assert one(schemas(Source("c"), before), message).key == ("b", "a")
    assert one(schemas(Source("c")), message).key == ("a", "b")


def test_under_full_the_key_is_the_primary_key_and_without_one_there_is_none() -> None:
    message = relation(("a", 20, True), ("b", 20, True), identity="full")
    assert one(schemas(Source("b")), message).key == ("b",)
    assert one(schemas(Source()), message).key == ()
    assert one(schemas(Source("gone")), message).key == ()


def test_a_type_that_is_gone_from_the_catalogue_is_what_it_was_before() -> None:
    message = relation(("id", 20, True), ("n", 90000, False))
    before = one(schemas(Source("id")), message)
    assert before.columns[1].target == "bigint"
    source = Source("id", types={20: TYPES[20]})
    after = one(schemas(source, before), message)
    assert (after.version, after.columns) == (1, before.columns)
    assert source.looks == 2


def test_a_type_made_while_the_drain_runs_is_looked_up() -> None:
    source = Source("id", types={20: TYPES[20]})
    followed = schemas(source)
    source.catalog = Catalog(source.catalog.tables, TYPES)
    assert one(followed, relation(("id", 20, True), ("n", 90000, False))).columns[1].target == "bigint"


def test_masks_targets_and_left_out_columns_follow_the_rule() -> None:
    rule = TableRule("public.*", leave_out=("c",), mask={"a": "sha256"}, target={"b": "text"})
    message = relation(("id", 20, True), ("a", 20, False), ("b", 20, False), ("c", 20, False))
    schema = one(schemas(Source("id"), rule=rule), message)
    assert [(c.name, c.target, c.mask) for c in schema.columns] == [
        ("id", "bigint", None),
        ("a", "string", "sha256"),
        ("b", "string", None),
    ]


def test_a_key_that_is_left_out_parks_the_table() -> None:
    followed = schemas(Source("id"), rule=TableRule("public.*", leave_out=("id",)))
    schema = one(followed, relation(("id", 20, True), ("note", 25, False)))
    assert schema.key == ()
    assert "the key's columns id are left out" in followed.take_marks(schema)[0].message


def test_two_names_that_differ_only_in_case_park_the_table() -> None:
    followed = schemas(Source("id"))
    schema = one(followed, relation(("id", 20, True), ("note", 25, False), ("NOTE", 25, False)))
    assert [c.name for c in schema.columns] == ["id", "note"]
    assert 'column "NOTE" has a name that the target already uses' in followed.take_marks(schema)[0].message


# --- a reader that is ahead of the stream -----------------------------------------------------------------------------

NARROW = relation(("id", 20, True))
WIDE = relation(("id", 20, True), ("note", 25, False))


def beside(own: list[TableSchema], ahead: list[TableSchema]) -> Followed:
    return Followed(Source("id"), own, ahead)


def shape(message: RelationMessage, version: int) -> TableSchema:
    return structs.replace(one(schemas(Source("id")), message), version=version)


def test_a_column_that_only_a_reader_has_seen_was_not_dropped() -> None:
    followed = beside([shape(NARROW, 1)], [shape(WIDE, 2)])
    behind = one(followed, NARROW)
    assert (behind.version, followed.take_marks(behind)) == (1, ())
    level = one(followed, WIDE)
    assert (level.version, followed.take_marks(level)) == (2, ())


def test_a_stream_that_begins_behind_a_reader_takes_the_next_number_and_nothing_was_dropped() -> None:
    followed = beside([], [shape(WIDE, 1)])
    behind = one(followed, NARROW)
    assert (behind.version, followed.take_marks(behind)) == (2, ())


def test_a_column_that_a_reader_saw_and_the_first_change_has_no_more_parks_the_table() -> None:
    followed = beside([], [shape(relation(("id", 20, True), ("note", 20, False)), 1)])
    differs = one(followed, WIDE)
    assert (differs.version, [m.state for m in followed.take_marks(differs)]) == (2, ["parked"])


def test_changes_whose_columns_are_in_doubt_follow_no_definition_with_numbers_that_has_their_names() -> None:
    """The names may have moved to other columns since, and the values would stand under those that had them before."""
    numbered = structs.replace(shape(WIDE, 1), published=(1, 2))
    followed = beside([], [numbered])
    doubtful = one(followed, WIDE)
    assert doubtful.published == ()
    assert (doubtful.version, [m.state for m in followed.take_marks(doubtful)]) == (2, ["parked"])


def test_a_new_shape_takes_no_number_that_a_reader_has() -> None:
    other = relation(("id", 20, True), ("more", 20, False))
    followed = beside([shape(NARROW, 1)], [shape(WIDE, 2)])
    assert one(followed, other).version == 3


def test_a_key_that_spark_does_not_compare_is_stored_as_its_text() -> None:
    types = {**TYPES, 91000: PgType(91000, "hstore", "public", "b")}
    defined = one(schemas(Source("tags", types=types)), relation(("tags", 91000, True), ("more", 91000, False)))
    assert [c.target for c in defined.columns] == ["string", "map<string,string>"]


@pytest.mark.parametrize(
    ("now", "states"),
    [({1: "id"}, []), ({1: "id", 2: "remark"}, ["parked"]), ({1: "id", 3: "note"}, [])],
    ids=["dropped", "renamed since the look", "dropped and added since"],
)
def test_a_name_that_is_missing_was_dropped_only_where_its_number_is_gone(
    now: dict[int, str], states: list[str]
) -> None:
    def published(names: dict[int, str]) -> CapturedTable:
        columns = tuple(ColumnPrint(n, name, 25, -1, False, "", None, 700) for n, name in names.items())
        dropped = dict.fromkeys({1, 2} - names.keys(), 701)
        return replace(captured("id"), columns=columns, published_columns=tuple(names.values()), dropped=dropped)

    source = Source("id")
    source.catalog = Catalog({16384: published({1: "id", 2: "note"})}, TYPES)
    wide = one(schemas(source), relation(("id", 20, True), ("note", 25, False)))
    assert wide.published == (1, 2)
    source.catalog = Catalog({16384: published(now)}, TYPES)
    followed = schemas(source, wide)
    narrow = one(followed, relation(("id", 20, True)))
    assert [mark.state for mark in followed.take_marks(narrow)] == states


# --- a definition of the event trigger --------------------------------------------------------------------------------


def defined(*columns: tuple[int, str, int]) -> DefinedRelation:
    """The table as the event trigger writes it, with its first column as the key."""
    each = tuple(DefinedColumn(number, name, oid, -1, False, "", False, None) for number, name, oid in columns)
    return DefinedRelation(16384, "public", "orders", "r", 16384, "p", "d", (), None, (columns[0][0],), each, ())


def test_a_definition_of_the_trigger_numbers_the_columns_of_the_message() -> None:
    followed = Followed(Source("id"), definition=defined((1, "id", 20), (3, "note", 25)))
    schema = one(followed, WIDE)
    assert (schema.version, schema.published, followed.take_marks(schema)) == (1, (1, 3), ())


def test_after_changes_with_names_alone_a_definition_with_numbers_parks_a_table_that_is_not_built_anew() -> None:
    """A name may belong to another column by then: the values of one would stand under the other."""
    named = shape(NARROW, 1)
    assert named.published == ()
    followed = Followed(Source("id"), [named], definition=defined((1, "id", 20), (3, "note", 25)))
    schema = one(followed, WIDE)
    assert (schema.version, [mark.state for mark in followed.take_marks(schema)]) == (2, ["parked"])


def test_a_parked_table_that_the_trigger_describes_is_told_with_every_column_that_changed() -> None:
    def with_types(note: int, more: int) -> DefinedRelation:
        return defined((1, "id", 20), (2, "note", note), (3, "more", more))

    def version(number: int, note: int, more: int) -> TableSchema:
        followed = Followed(Source("id"), definition=with_types(note, more))
        return structs.replace(one(followed, message(note, more)), version=number)

    def message(note: int, more: int) -> RelationMessage:
        return relation(("id", 20, True), ("note", note, False), ("more", more, False))

    merged, between = version(1, 25, 25), version(2, 20, 25)
    followed = Followed(Source("id"), [merged, between], merged=merged, definition=with_types(20, 20))
    (mark,) = followed.take_marks(one(followed, message(20, 20)))
    assert 'column "note" changed from' in mark.message
    assert 'column "more" changed from' in mark.message


def test_a_table_that_was_unlogged_and_got_no_change_since_is_marked_without_a_version() -> None:
    definition = defined((1, "id", 20), (3, "note", 25))
    followed = Followed(Source("id"), definition=definition)
    one(followed, WIDE)
    followed.note(structs.replace(definition, persistence="u"))
    followed.note(definition)
    assert followed.versions_by_trigger(Lsn(9)) == []
    assert [(mark.state, "UNLOGGED" in mark.message) for mark in followed.take_table_marks()] == [
        ("needs_backfill", True)
    ]
    assert followed.versions_by_trigger(Lsn(9)) == []
    assert followed.take_table_marks() == []


def test_a_definition_without_a_change_is_a_version_of_its_own() -> None:
    followed = Followed(Source("id"), definition=defined((1, "id", 20)))
    first = one(followed, NARROW)
    followed.note(defined((1, "id", 20), (2, "note", 25)))
    (version,) = followed.versions_by_trigger(Lsn(9))
    assert (first.version, version.version, version.published) == (1, 2, (1, 2))
    assert followed.take_marks(version) == ()
