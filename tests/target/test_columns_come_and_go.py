"""Rows of two shapes in one plan, and in plans after each other, against the model."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField

from tests.support import delta_files
from tests.support.thorough import thorough
from tests.target.lake import TEXTS, Lake, StagedTable, by_spark, table_schema
from tests.target.model import Change, Row, apply, random_changes
from tests.target.test_merge_equals_the_model import _transactions
from tests.target.test_values import insert, update
from tidemark.schema.table import Column, TableSchema
from tidemark.schema.values import convert
from tidemark.target.delta import delta_tables
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.spark import table_columns
from tidemark.target.spark.table_shape import DROPPED


def without_body(change: Change) -> Change:
    """What the stream says of a change once `body` is dropped."""
    row = {name: value for name, value in change.row.items() if name != "body"}
    return replace(change, row=row, unchanged=tuple(name for name in change.unchanged if name != "body"))


def narrow(table: StagedTable) -> None:
    columns = tuple(column for column in table.schema.columns if column.name != "body")
    table.schema = structs.replace(table.schema, version=table.schema.version + 1, columns=columns)


def in_full(rows: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
    return [(op, {name: row.get(name) for name in TEXTS}) for op, row in rows]


def stored(lake: Lake, step: str, table: StagedTable) -> list[tuple[str, Row]]:
    return in_full([(row.get("_op", ""), row) for row in lake.stored(step, table)])


def comments(lake: Lake, step: str, table: StagedTable) -> dict[str, str]:
    delta = delta_files.read(delta_files.Path(lake.path(step, table)))
    assert delta is not None
    return {field.name: field.metadata["comment"] for field in delta.fields if field.metadata.get("comment")}


@pytest.mark.thorough  # what Spark does with dropped columns, `test_columns_of_a_dropped_ones_name_are_others` has too
def test_changes_before_and_after_a_column_was_dropped_are_as_the_model_has_them(lake: Lake) -> None:
    """In one plan, with unchanged values, keys that move and truncates on both sides of it; then in the next plan."""
    tables, expected = [], []
    for seed in range(3):
        rng = random.Random(4200 + seed)
        table, state, history = lake.table(table_schema(f"t{seed}", TEXTS)), {}, []
        for is_dropped in (False, True):
            for _ in range(2):
                changes = [
                    without_body(change) if is_dropped else change
                    for change in random_changes(rng, state, rng.randint(4, 14), truncates=not is_dropped)
                ]
                for change in changes:
                    sent = replace(change, row={"body": None, **change.row}) if is_dropped else change
                    history += apply(state, ("id",), sent)
                table.stage(*_transactions(rng, changes))
            if not is_dropped:
                narrow(table)
        tables.append(table)
        expected.append((state, history))
    for first, last in ((0, 3), (3, 4)):
        lake.applied(*[table.planned(first, last) for table in tables])
    for table, (state, history) in zip(tables, expected, strict=True):
        by_key = sorted(stored(lake, "current", table), key=lambda row: row[1]["id"])
        assert by_key == in_full([("", state[key]) for key in sorted(state)])
        assert stored(lake, "history", table) == in_full(history)
        for step in ("current", "history"):
            assert comments(lake, step, table) == {"body": DROPPED}


def test_a_table_that_began_anew_has_nothing_of_what_was_dropped_before(lake: Lake) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.schemas.append(table.schema)
    narrow(table)
    table.stage([without_body(insert(1))])
    lake.applied(table.planned())
    assert "body" not in {name for row in lake.stored("current", table) for name in row}


# --- defaults of columns that were added ------------------------------------------------------------------------------

DEFAULTS = {
    "int": "7",
    "bigint": "-9000000000",
    "smallint": "3",
    "boolean": "t",
    "double": "0.1",
    "float": "NaN",
    "decimal(9,3)": "1.250",
    "string": 'it\'s \\ "x"',
    "binary": "\\x00ff",
    "array<int>": "{1,NULL}",
    "date": "0001-01-01",
    "array<date>": "{0999-12-31,1999-12-31}",
    "timestamp": "2026-01-01 00:00:00.5+00",
    "timestamp_ntz": "0001-01-01 00:00:00",
}


def widen_by(table: StagedTable, defaults: dict[str, str]) -> None:
    columns = [
        Column(f"c{n}", target, 25, -1, target, missing=default) for n, (target, default) in enumerate(defaults.items())
    ]
    table.schema = structs.replace(
        table.schema, version=table.schema.version + 1, columns=(*table.schema.columns, *columns), published=()
    )


@by_spark
def test_a_row_from_before_a_column_was_added_has_its_default_in_every_type(lake: Lake) -> None:
    """Rows of current, of the plan that brings the column, and of an unchanged value; not what says NULL itself."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(n) for n in range(1, 5)])
    lake.applied(table.planned())
    table.stage([update(2, note="old shape"), insert(5), Change("delete", {"id": 4})])
    widen_by(table, DEFAULTS)
    names = [column.name for column in table.schema.columns[len(TEXTS) :]]
    table.stage([insert(6, **dict.fromkeys(names)), update(3, "body", **dict.fromkeys(names))])
    lake.applied(table.planned(1))
    values = {
        column.name: convert(pa.array([column.missing]), column.target).values[0].as_py()
        for column in table.schema.columns[len(TEXTS) :]
    }
    rows_by_id = {row["id"]: {name: row[name] for name in names} for row in lake.current(table)}
    assert {id: repr(row) for id, row in rows_by_id.items()} == {
        **{id: repr(values) for id in (1, 2, 5)},
        **{id: repr(dict.fromkeys(names)) for id in (3, 6)},
    }
    said = [(op, row["id"], row["c0"]) for op, row in lake.history(table) if op != "insert" or row["id"] > 4]
    assert said == [("update", 2, 7), ("insert", 5, 7), ("delete", 4, None), ("insert", 6, None), ("update", 3, None)]


def test_a_default_is_given_once_whoever_dies_or_comes_too_late(lake: Lake) -> None:
    """A rival that pinned the table before: its commit fails, and reading again it finds the column there."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(1), insert(2)])
    lake.applied(table.planned())
    late = delta_tables.pin(lake.spark, lake.path("current", table))
    widen_by(table, {"int": "7"})
    table.stage([update(1, c0=None)])
    lake.applied(table.planned(1))
    field, value = StructField("c0", IntegerType()), {"c0": F.lit(8)}
    with pytest.raises(Exception) as raised:  # noqa: PT011
        table_columns.add_columns(late, [field], value, delta_tables.rows(late))
    assert delta_tables.is_contested(raised.value)
    assert {row["id"]: row["c0"] for row in lake.current(table)} == {1: None, 2: 7}


# --- columns that were widened ----------------------------------------------------------------------------------------

NARROW = {"id": "int", "n": "smallint", "body": "decimal(6,2)", "real": "float", "day": "date", "note": "string"}
WIDE = {**NARROW, "id": "bigint", "n": "bigint", "body": "decimal(12,4)", "real": "double", "day": "timestamp_ntz"}
FAR = 2**40


def narrow_row(id: int, **values: Any) -> Row:
    row = {"id": id, "n": 1, "body": Decimal("1.25"), "real": 0.1, "day": date(2026, 1, 1), "note": "old"}
    return {**row, **values}


def wide_row(id: int, **values: Any) -> Row:
    row = {"id": id, "n": FAR, "body": Decimal("1.2345"), "real": 0.1, "day": datetime(2026, 1, 1, 12), "note": "new"}
    return {**row, **values}


def as_wide(row: Row) -> Row:
    """What PostgreSQL makes of an old row."""
    day = datetime.combine(row["day"], time()) if type(row["day"]) is date else row["day"]
    return {**row, "real": float(np.float32(row["real"])) if row["note"] == "old" else row["real"], "day": day}


def widen(table: StagedTable) -> None:
    columns = tuple(structs.replace(column, target=WIDE[column.name]) for column in table.schema.columns)
    table.schema = structs.replace(table.schema, version=table.schema.version + 1, columns=columns)


def values_of(lake: Lake, table: StagedTable) -> list[Row]:
    """Of a file from before the table was widened they are as it has them."""
    rows = lake.current(table)
    for row in rows:
        if isinstance(row["day"], date) and not isinstance(row["day"], datetime):
            row["day"] = datetime.combine(row["day"], time())
    return sorted(rows, key=lambda row: (row["id"], row["n"]))


@pytest.mark.thorough
@by_spark
@pytest.mark.parametrize("key", [("id",), *thorough(())])
def test_what_was_written_before_a_column_was_widened_stays_where_it_is(lake: Lake, key: tuple[str, ...]) -> None:
    """Files of both shapes in the table, then in one plan: rows are found by a key that was widened, or by all their
    values, take unchanged values from files of the old shape, and are masked there."""
    table = lake.table(table_schema("t", NARROW, key=key, identity="default" if key else "full"))
    whole = not key
    table.stage([Change("insert", narrow_row(n)) for n in range(1, 7)])
    lake.applied(table.planned())
    files = delta_files.read(Path(lake.path("current", table)))
    assert files is not None
    table.stage(
        [Change("insert", narrow_row(7)), Change("update", narrow_row(1, n=2), old=narrow_row(1) if whole else None)]
    )
    widen(table)
    unchanged = () if whole else ("body",)
    sent = wide_row(2) if whole else wide_row(2, body=None)
    table.stage(
        [
            Change("insert", wide_row(FAR)),
            Change("update", sent, unchanged, old=as_wide(narrow_row(2)) if whole else None),
            Change("delete", {} if whole else {"id": 3}, old=as_wide(narrow_row(3)) if whole else None),
        ]
    )
    lake.applied(table.planned(1))
    two = wide_row(2) if whole else wide_row(2, body=Decimal("1.25"))
    rows = [narrow_row(1, n=2), two, *[narrow_row(n) for n in (4, 5, 6, 7)], wide_row(FAR)]
    assert values_of(lake, table) == [as_wide(row) for row in rows]
    after = delta_files.read(Path(lake.path("current", table)))
    assert after is not None
    assert {name for name, _ in files.files} <= {name for name, _ in after.files}, "a file was written anew"
    assert [f.dataType.simpleString() for f in after.fields][: len(WIDE)] == list(WIDE.values())
    moved = Change("update", wide_row(40, body=None), ("body",), old_key={"id": 4})
    table.stage([moved if key else Change("update", wide_row(40), old=as_wide(narrow_row(4)))])
    lake.applied(table.planned(2))
    forty = wide_row(40, body=Decimal("1.25")) if key else wide_row(40)
    assert as_wide(forty) in values_of(lake, table)
    assert sorted(row["id"] for row in values_of(lake, table)) == [1, 2, 5, 6, 7, 40, FAR]


def test_changes_of_the_old_shape_behind_a_chunk_of_the_new_one_keep_the_target_wide(lake: Lake) -> None:
    table = lake.table(table_schema("t", NARROW))
    table.stage([Change("insert", narrow_row(1))])
    old = table.schema
    widen(table)
    table.stage([Change("insert", wide_row(FAR))])
    lake.applied(table.planned())
    table.schema = old
    table.stage([Change("insert", narrow_row(2))])
    lake.applied(table.planned(2))
    assert values_of(lake, table) == [as_wide(row) for row in (narrow_row(1), narrow_row(2), wide_row(FAR))]


# --- columns that were renamed ----------------------------------------------------------------------------------------


def with_names(table: StagedTable, names: dict[str, str], *added: Column) -> None:
    """The next version, in which columns have these names instead of the old ones."""
    columns = [structs.replace(column, name=names.get(column.name, column.name)) for column in table.schema.columns]
    key = tuple(names.get(name, name) for name in table.schema.key)
    table.schema = structs.replace(
        table.schema,
        version=table.schema.version + 1,
        key=key,
        columns=(*columns, *added),
        published=tuple(range(1, len(columns) + len(added) + 1)),
    )


def numbered_schema(name: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    schema = table_schema(name, TEXTS, key=key, identity="default" if key else "full")
    columns = tuple(structs.replace(column, attnum=n) for n, column in enumerate(schema.columns, 1))
    return structs.replace(schema, columns=columns, published=tuple(range(1, len(columns) + 1)))


def called(row: Row, names: dict[str, str]) -> Row:
    return {names.get(name, name): value for name, value in row.items()}


@by_spark
def test_columns_keep_their_values_whatever_they_are_called(lake: Lake) -> None:
    """A swap of two names, a key that is renamed and a new column of its old name, with unchanged values and keys that
    move on both sides, in one plan and in the next one; history and current die apart in between."""
    rng = random.Random(77)
    names = {"body": "note", "note": "body", "id": "number"}
    table, state, history = lake.table(numbered_schema("t")), {}, []
    for is_renamed in (False, False, True, True):
        changes = [*random_changes(rng, state, 12, truncates=False)]
        for change in changes:
            history += apply(state, ("id",), change)
        if is_renamed:
            changes = [
                replace(
                    change,
                    row={**called(change.row, names), "id": 5},
                    old_key=change.old_key and called(change.old_key, names),
                    unchanged=tuple(names.get(name, name) for name in change.unchanged),
                )
                for change in changes
            ]
            if "number" not in {column.name for column in table.schema.columns}:
                with_names(table, names, Column("id", "int", 23, -1, "int", attnum=5, missing="7"))
        table.stage(*_transactions(rng, changes))
    lake.applied(table.planned(0, 1))
    lake.applied(table.planned(1, 3))
    lake.applied(table.planned(3, 4))
    by_key = sorted(lake.current(table), key=lambda row: row["number"])
    assert [{k: v for k, v in row.items() if k != "id"} for row in by_key] == [
        called(state[key], names) for key in sorted(state)
    ]
    touched = {key[0] for key in state} - {row["number"] for row in by_key if row["id"] == 5}
    assert {row["id"] for row in by_key if row["number"] in touched} <= {7}
    said = [(op, {k: v for k, v in row.items() if k != "id"}) for op, row in lake.history(table)]
    assert said == [(op, called(row, names)) for op, row in in_full(history)]
    files = delta_files.read(Path(lake.path("current", table)))
    assert files is not None
    told = {f.metadata["tidemark.column"]["attnum"]: f.name for f in files.fields if "tidemark.column" in f.metadata}
    assert told == {1: "number", 2: "n", 3: "note", 4: "body", 5: "id"}


def without(table: StagedTable, name: str, *added: Column) -> None:
    """The next version, from which a column is gone and to which others came."""
    columns = (*(column for column in table.schema.columns if column.name != name), *added)
    version = table.schema.version + 1
    numbers = tuple(column.attnum for column in columns)
    table.schema = structs.replace(table.schema, version=version, columns=columns, published=numbers)


@by_spark
def test_columns_of_a_dropped_ones_name_are_others(lake: Lake) -> None:
    """`body` goes and comes as another type, twice, in one plan, with an unchanged value and a key that moves; a field
    stays its column's. Then a column is called by that number, and the last `body` gets a name of its own."""
    table = lake.table(numbered_schema("t"))
    whole = {"n": 0, "body": "b", "note": "c"}
    table.stage([Change("insert", {"id": n, **whole}) for n in (1, 2, 3, 4)])
    lake.applied(table.planned())
    without(table, "body")
    table.stage([Change("update", {"id": 2, "n": 1, "note": "c"})])
    without(table, "body", Column("body", "int", 23, -1, "int", attnum=5))
    moved = Change("update", {"id": 30, "n": 1, "note": "c"}, ("body",), {"id": 3})
    table.stage([Change("update", {"id": 3, "n": 1, "note": "c", "body": 5}), moved])
    without(table, "body", Column("body", "string", 25, -1, "string", attnum=6))
    table.stage([Change("update", {"id": 4, "n": 1, "note": "c", "body": "again"})])
    lake.applied(table.planned(1))
    assert {row["id"]: (row["body"], row["body__2"], row["body__3"]) for row in lake.stored("current", table)} == {
        1: ("b", None, None),
        2: (None, None, None),
        30: (None, 5, None),
        4: (None, None, "again"),
    }
    said = lake.stored("history", table)[4:]
    assert [(row["_op"], row["id"], row["body"], row["body__2"], row["body__3"]) for row in said] == [
        ("update", 2, None, None, None),
        ("update", 3, None, 5, None),
        ("delete", 3, None, None, None),
        ("insert", 30, None, 5, None),
        ("update", 4, None, None, "again"),
    ]
    for step in ("current", "history"):
        assert set(comments(lake, step, table)) >= {"body", "body__2"}
        assert comments(lake, step, table)["body__2"].startswith(DROPPED)
    with_names(table, {"body": "text"}, Column("body__3", "int", 23, -1, "int", attnum=7))
    table.schema = structs.replace(table.schema, published=tuple(c.attnum for c in table.schema.columns))
    table.stage([Change("update", {"id": 4, "n": 2, "note": "c", "text": "t", "body__3": 1})])
    lake.applied(table.planned(4))
    (row,) = (row for row in lake.stored("current", table) if row["id"] == 4)
    assert {name: row[name] for name in ("n", "body", "body__2", "text", "body__3")} == {
        "n": 2,
        "body": None,
        "body__2": None,
        "text": "t",
        "body__3": 1,
    }


def test_a_rename_of_a_table_without_key_and_one_of_what_rows_lack(lake: Lake) -> None:
    bag = lake.table(numbered_schema("bag", key=()))
    row: Row = {"id": 1, "n": 2, "body": "b", "note": "c"}
    bag.stage([Change("insert", row), Change("insert", row)])
    lake.applied(bag.planned())
    with_names(bag, {"body": "note", "note": "body"})
    renamed = called(row, {"body": "note", "note": "body"})
    bag.stage([Change("delete", {}, old=renamed), Change("insert", {**renamed, "id": 2})])
    lake.applied(bag.planned(1))
    assert lake.current(bag) == [renamed, {**renamed, "id": 2}]

    table = lake.table(numbered_schema("holes"))
    table.stage([update(1, "body")])
    lake.applied(table.planned())
    assert [row["_holes"] for row in lake.stored("current", table)] == [["body"]]
    with_names(table, {"body": "text"})
    table.stage([Change("insert", {"id": 2, "n": 0, "text": "t", "note": "c"})])
    (result,) = lake.applied(structs.replace(table.planned(1), had_holes=True))
    assert sorted((row["id"], row["_holes"]) for row in lake.stored("current", table)) == [(1, ["text"]), (2, None)]
    assert result.holes is not None
    assert result.holes.columns == {"text": 1}


# --- columns that somebody else dropped -------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_column_that_was_taken_away_by_hand_is_missed_and_one_that_is_new_is_not(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("new", "of_history", "of_current", "of_both", "gone_at_the_source")
    tables = {name: lake.table(numbered_schema(name)) for name in names}
    for table in tables.values():
        table.stage([insert(1), insert(2)])
    lake.applied(*[table.planned() for table in tables.values()])
    new = tables["new"]
    with_names(new, {}, Column("later", "int", 23, -1, "int", attnum=5))
    new.stage([insert(3, later=3)])

    def dies(table: PinnedTable, *rest: Any) -> None:
        if "/current/" in table.path:
            raise OSError
        adds(table, *rest)

    adds = table_columns.add_columns
    with monkeypatch.context() as patch:
        patch.setattr(table_columns, "add_columns", dies)
        (failed,) = lake.apply(new.planned(1)).tables
    assert failed.error is not None
    assert "later" in lake.read("history", new).columns
    assert "later" not in lake.read("current", new).columns
    lake.applied(new.planned(1))
    assert [row["later"] for row in lake.current(new)] == [None, None, 3]

    taken = {"new": "later", **dict.fromkeys(names[1:], "body")}
    steps = {"of_history": ("history",), "of_both": ("history", "current")}
    versions = {}
    for name, column in taken.items():
        for step in steps.get(name, ("current",)):
            quoted = f"delta.`{lake.path(step, tables[name])}`"
            lake.spark.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
            lake.spark.sql(f"ALTER TABLE {quoted} DROP COLUMN {column}")
        versions[name] = lake.version("current", tables[name])
    narrow(tables["gone_at_the_source"])
    for name, table in tables.items():
        change = insert(4)
        table.stage([without_body(change) if name == "gone_at_the_source" else change])
    results = lake.apply(*[table.planned(len(table.batches) - 1) for table in tables.values()]).tables
    errors = {result.table.rpartition(".")[2]: result.error for result in results}
    assert errors.pop("gone_at_the_source") is None, "the source does not have it either"
    for name, error in errors.items():
        assert error is not None, name
        assert error.kind == "TargetDiffers"
        assert f"differing: {taken[name]}" in error.message
        assert lake.version("current", tables[name]) == versions[name]


# --- comments ---------------------------------------------------------------------------------------------------------


def metadata_commits(lake: Lake, step: str, table: StagedTable) -> int:
    log = Path(lake.path(step, table), "_delta_log")
    return sum('"metaData"' in commit.read_text(encoding="utf-8") for commit in log.glob("*.json"))


def test_the_sources_comments_are_taken_over_when_they_change(lake: Lake) -> None:
    """Beside what the table says itself of its columns, and once: a plan with the same comments commits none."""
    table = lake.table(numbered_schema("t"))

    def apply_with(of_source: dict[int, str] | None, *changes: Change) -> None:
        table.stage(changes)
        lake.applied(structs.replace(table.planned(len(table.batches) - 1), comments=of_source))

    def said(step: str) -> tuple[str | None, dict[str, str]]:
        described = lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.path(step, table)}`").collect()[0]
        return described["description"], comments(lake, step, table)

    row = {"n": 0, "body": "b", "note": "c"}
    odd = "it's \\'${system:user.name}' or \\d \\u0041 \\"
    of_source = {0: "It's a table", 1: "its key", 3: odd}
    apply_with(of_source, Change("insert", {"id": 1, **row}))
    for step in ("history", "current"):
        assert said(step) == ("It's a table", {"id": "its key", "body": odd})
    before = metadata_commits(lake, "current", table)
    apply_with(of_source, Change("insert", {"id": 2, **row}))
    assert metadata_commits(lake, "current", table) == before
    lake.spark.sql(f"COMMENT ON TABLE delta.`{lake.path('current', table)}` IS 'of somebody else'")
    narrow(table)
    table.schema = structs.replace(table.schema, published=tuple(c.attnum for c in table.schema.columns))
    without_it = without_body(Change("insert", {"id": 3, **row}))
    apply_with({0: "It's a table", 1: "the key"}, without_it)
    assert said("history") == ("It's a table", {"id": "the key", "body": f"{DROPPED}. {odd}"})
    assert said("current")[0] == "of somebody else"
    apply_with({}, replace(without_it, row={**without_it.row, "id": 4}))
    assert said("current") == (None, {"body": f"{DROPPED}. {odd}"})
    before = metadata_commits(lake, "current", table)
    apply_with(None, replace(without_it, row={**without_it.row, "id": 5}))
    assert metadata_commits(lake, "current", table) == before
