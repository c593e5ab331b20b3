"""RELATION messages -> numbered versions: what comes from the message, what from the catalogue, what from the version
before.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tidemark.capture.definitions.relation_versions import RelationVersions
from tidemark.capture.definitions.table_definition import Catalog
from tidemark.config import TableRule
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationColumn, RelationMessage
from tidemark.schema.delta_types import PgType
from tidemark.schema.fingerprint import ColumnPrint
from tidemark.schema.table import Identity, TableSchema
from tidemark.source.catalogue.catalog import CapturedTable

ORDERS = TableName("public", "orders")
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


def schemas(source: Source, *versions: TableSchema, rule: TableRule | None = None) -> RelationVersions:
    return RelationVersions(lambda _: rule or TableRule("public.*"), source.look, lambda _: list(versions))


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
    followed = RelationVersions(
        lambda _: TableRule("public.*"), Source("id").look, lambda _: [merged, between], merged=lambda _: merged
    )
    last = one(followed, relation(("id", 20, True), ("note", 20, False), ("more", 20, False)))
    (mark,) = followed.take_marks(last)
    assert 'column "note" changed from' in mark.message
    assert 'column "more" changed from' in mark.message


def test_a_table_that_no_rule_names_is_not_captured() -> None:
    assert (
        RelationVersions(lambda _: None, Source("id").look, lambda _: []).schema_for(relation(("id", 20, True))) is None
    )


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


def beside(own: list[TableSchema], ahead: list[TableSchema]) -> RelationVersions:
    return RelationVersions(lambda _: TableRule("public.*"), Source("id").look, lambda _: own, lambda _: ahead)


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
    followed = RelationVersions(lambda _: TableRule("public.*"), source.look, lambda _: [wide])
    narrow = one(followed, relation(("id", 20, True)))
    assert [mark.state for mark in followed.take_marks(narrow)] == states
