"""The traps of change capture that lie in values and keys, each a table of one lake: staged twice, merged by two plans.

The first plan is what the target holds already when the second one comes, so every trap is tried against a row of the
batch or against a row of the target, as it needs. What is expected is what the source holds: given by the model, or
written out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

from tests.support.merge_ways import leave_to_spark
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema, with_columns
from tests.target.model import Change, Key, Row, apply
from tidemark.formats.merge_result import Holes, TableResult
from tidemark.schema.table import TableSchema
from tidemark.target.spark import spark_merge as target_changes

UTC = ZoneInfo("UTC")  # as Arrow gives it back

Transactions = Sequence[Sequence[Change]]


@dataclass
class Trap:
    """`current` where the model cannot say what is expected; `holes` of the second plan."""

    name: str
    schema: TableSchema
    first: Transactions
    second: Transactions
    current: list[Row] | None = None
    holes: dict[str, int] = field(default_factory=dict)
    later: TableSchema | None = None


def insert(key: Any, **values: Any) -> Change:
    return Change("insert", {"id": key, "n": 0, "body": "b", "note": "c", **values})


def update(key: Any, *unchanged: str, text: dict[str, str] | None = None, **values: Any) -> Change:
    sent = {c: v for c, v in {"n": 0, "body": "b", "note": "c"}.items() if c not in unchanged}
    return Change("update", {"id": key, "n": None, "body": None, "note": None, **sent, **values}, unchanged, text=text)


def move(old: Any, new: Any, *unchanged: str, **values: Any) -> Change:
    changed = update(new, *unchanged, **values)
    return Change("update", changed.row, unchanged, {"id": old})


def delete(key: Any) -> Change:
    return Change("delete", {"id": key, "n": None, "body": None, "note": None})


TRUNCATE = Change("truncate")


def texts(name: str, key: str = "int") -> TableSchema:
    return table_schema(name, {**TEXTS, "id": key})


def row(values: dict[str, Any], before: Row | None = None, op: str = "insert") -> Change:
    """A change of a table without key: an update and a delete carry the whole old row."""
    if op == "delete":
        return Change("delete", dict.fromkeys(values), old=values)
    return Change(op, values, old=before)


BAG = {"a": "string", "f": "double", "m": "map<string,string>", "xs": "array<double>"}
PAIR = {"a": "string", "f": "double"}
ONE: Row = {"a": "one", "f": 0.0, "m": {"k": "v", "l": None}, "xs": [0.0, None]}
MINUS: Row = {**ONE, "f": -0.0}
NAN: Row = {**ONE, "f": math.nan, "xs": [math.nan, -0.0]}
EMPTY: Row = dict.fromkeys(BAG)

EVERY_TYPE: dict[str, tuple[str, Any, Any]] = {
    "bo": ("boolean", True, False),
    "si": ("smallint", -32768, 32767),
    "bi": ("bigint", -(2**63), 2**63 - 1),
    "fl": ("float", math.inf, -math.inf),
    "do": ("double", 5e-324, 1.7976931348623157e308),
    "de": ("decimal(38,10)", Decimal("-9999999999999999999999999999.9999999999"), Decimal("0E-10")),
    "st": ("string", "", "é€😀 'quoted' \\ \t\n"),
    "by": ("binary", b"\x00\xff", b""),
    "da": ("date", date(1, 1, 1), date(9999, 12, 31)),
    "ts": ("timestamp", datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    "tn": ("timestamp_ntz", datetime(1582, 10, 4), datetime(1883, 11, 18, 12, 3, 58, 1)),
    "ar": ("array<int>", [1, None, 3], []),
    "aa": ("array<timestamp>", [datetime(2020, 2, 29, tzinfo=UTC)], None),
    "ma": ("map<string,string>", {"a": "1", "b": None}, {}),
    "ve": ("array<float>", [1.5, -0.0], [math.inf]),
}
LOW: Row = {"id": 1, **{name: values[1] for name, values in EVERY_TYPE.items()}}
HIGH: Row = {"id": 2, **{name: values[2] for name, values in EVERY_TYPE.items()}}

STRANGE = {"id": "int", "a b": "string", "select": "string", "x`y": "string", "a.b": "string", "Ü;(=)": "string"}
STRANGE_ROW: Row = {"id": 1, "a b": "1", "select": "2", "x`y": "3", "a.b": "4", "Ü;(=)": "5"}

LONG = "k" * 100_000
COMPOSITE = {"b": "string", "v": "string", "a": "binary"}

# Traps of this table are told apart by their keys: each has a thousand of its own.
SHARED = texts("shared")
SPAN = 1000

WIDER = with_columns(texts("column_added"), {"extra": "string"})

TRAPS = [
    # A batch in which no row carries the column at all once made it NULL everywhere.
    Trap("whole_batch_unchanged", SHARED,
         [[insert(1, body="long"), insert(2)]],
         [[update(1, "body"), update(1, "body", n=2)]]),
    # Keeping the last change only once lost the insert that held the value.
    Trap("insert_holds_the_value", SHARED,
         [[insert(1, body="long"), update(1, "body", n=1)], [update(1, "body", "note", n=2)]],
         [[insert(2, body="longer"), update(2, "body", n=3), update(2, "body", note="x")]]),
    Trap("null_is_a_value", SHARED,
         [[insert(1, body="long", note="old")]],
         [[update(1, "note", body=None)], [update(1, "note", n=7)]]),
    Trap("key_change_carries_the_value", SHARED,
         [[insert(1, body="long"), insert(5, body="other")]],
         [[move(1, 2, "body")], [move(5, 6, "body", "note"), update(6, "body", "note", n=9)]]),
    Trap("chain_of_key_changes", SHARED,
         [[insert(1, body="long", note="n")]],
         [[move(k, k + 1, "body", "note", n=k) for k in range(1, 8)], [update(8, "body", n=8), move(8, 9, "body")]]),
    Trap("chain_begins_in_the_batch", SHARED,
         [],
         [[insert(1, body="long"), move(1, 2, "body"), move(2, 3, "body", note="x"), move(3, 1, "body", "note")]]),
    Trap("value_changes_within_the_chain", SHARED,
         [[insert(1, body="long", note="first")]],
         [[move(1, 2, "body", "note"), update(2, "body", note="second"), move(2, 3, "body", "note")]]),
    Trap("swap_through_a_third_key", SHARED,
         [[insert(1, body="one"), insert(2, body="two")]],
         [[move(1, 9, "body"), move(2, 1, "body"), move(9, 2, "body")]]),
    Trap("key_used_again_after_delete", SHARED,
         [[insert(1, body="dead")]],
         [[delete(1)], [insert(1, body="alive"), update(1, "body", n=1)]]),
    Trap("key_used_again_after_move", SHARED,
         [[insert(1, body="moved")]],
         [[move(1, 2, "body"), insert(1, body="new"), update(1, "body", n=4), update(2, "body", n=5)]]),
    Trap("moved_away_and_back", SHARED,
         [[insert(1, body="long")]],
         [[move(1, 2, "body"), move(2, 1, "body")]]),
    Trap("nothing_left_of_the_batch", SHARED,
         [[insert(1)]],
         [[insert(2), delete(2)]]),
    Trap("many_lives_of_one_key", SHARED,
         [[insert(1)]],
         [[change for n in range(20) for change in (delete(1), insert(1, n=n, body=str(n)), update(1, "body"))]]),
    Trap("truncate_in_the_middle", texts("truncate_in_the_middle"),
         [[insert(1, body="gone"), insert(2)]],
         [[update(1, "body", n=5), TRUNCATE, insert(3, body="kept")], [update(3, "body", n=1)]]),
    Trap("two_truncates_and_nothing", texts("two_truncates_and_nothing"),
         [[insert(1)]],
         [[insert(2), TRUNCATE, insert(3)], [TRUNCATE]]),
    Trap("truncate_of_a_new_table", texts("truncate_of_a_new_table"), [], [[insert(1), TRUNCATE, insert(1, n=1)]]),
    Trap("hole", SHARED,
         [[insert(1)]],
         [[update(2, "body", n=1)], [move(3, 4, "body", "note")]],
         current=[insert(1).row, update(2, "body", n=1).row, move(3, 4, "body", "note").row],
         holes={"body": 2, "note": 1}),
    Trap("hole_that_was_filled_or_deleted", SHARED,
         [[insert(1)]],
         [[update(2, "body"), update(2)], [update(3, "body"), delete(3)]]),
    # Spark's 0.0 equals -0.0 and NaN equals NaN, as PostgreSQL's index has them.
    Trap("floating_point_keys", texts("floating_point_keys", "double"),
         [[insert(0.0, body="zero"), insert(math.nan, body="nan"), insert(math.inf)]],
         [[move(0.0, -0.0, "body"), update(math.nan, "body", n=1)], [delete(math.inf)]],
         current=[{"id": -0.0, "n": 0, "body": "zero", "note": "c"},
                  {"id": math.nan, "n": 1, "body": "nan", "note": "c"}]),
    # Only the stored form counts: blanks, case, normalisation and the last of 100,000 characters.
    Trap("text_keys", texts("text_keys", "string"),
         [[insert(k, body=str(n)) for n, k in enumerate(["a", "A", "a ", "é", "é", "", LONG + "1", LONG + "2"])]],
         [[update("a ", "body", n=1), delete("A"), update(LONG + "2", "body", n=2), move("", "\t", "body")]]),
    Trap("composite_key_in_another_order", table_schema("composite_key_in_another_order", COMPOSITE, key=("a", "b")),
         [[Change("insert", {"a": bytes([x]), "b": y, "v": "old"}) for x in (0, 255) for y in ("", "y")]],
         [[Change("update", {"a": b"\xff", "b": "y", "v": "new"}), Change("delete", {"a": b"\x00", "b": "", "v": None}),
           Change("update", {"a": b"", "b": "", "v": None}, ("v",), {"a": b"\xff", "b": ""})]]),
    Trap("every_type", table_schema("every_type", {"id": "int", **{k: v[0] for k, v in EVERY_TYPE.items()}}),
         [[Change("insert", LOW), Change("insert", HIGH), Change("insert", {**dict.fromkeys(LOW), "id": 3})]],
         [[Change("update", {**HIGH, "id": 1}), Change("update", {**LOW, "id": 2}), Change("delete", {"id": 3})],
          [Change("update", {**dict.fromkeys(LOW), "id": 2}, ("st", "by", "ar", "ma", "de"))]]),
    Trap("names", table_schema('Odd %41/"na.me"', STRANGE, schema="Sch%ema ü"),
         [[Change("insert", STRANGE_ROW)]],
         [[Change("update", {**STRANGE_ROW, "a b": None, "x`y": None, "select": "new"}, ("a b", "x`y"))],
          [Change("insert", {**STRANGE_ROW, "id": 2})]]),
    Trap("multiset", table_schema("multiset", BAG, key=(), identity="full"),
         [[row(ONE), row(ONE), row(MINUS), row(EMPTY), row(EMPTY), row(NAN), row(NAN)]],
         [[row(ONE, op="delete"), row(EMPTY, op="delete"), row(NAN, before=NAN, op="update"), row(NAN, op="delete")],
          [row({**ONE, "a": "two"}, before=MINUS, op="update"), row(ONE)], [row(ONE, op="delete"), row(ONE)]],
         current=[ONE, ONE, EMPTY, NAN, {**ONE, "a": "two"}]),
    Trap("multiset_is_truncated", table_schema("multiset_is_truncated", BAG, key=(), identity="full"),
         [[row(ONE), row(ONE)]],
         [[row(ONE, op="delete"), TRUNCATE, row(EMPTY), row(EMPTY)], [row(MINUS, before=EMPTY, op="update")]],
         current=[MINUS, EMPTY]),
    Trap("multiset_never_had_it", table_schema("multiset_never_had_it", BAG, key=(), identity="full"),
         [[row(ONE)]],
         [[row(NAN, op="delete"), row(ONE, op="delete"), row(ONE, op="delete")]],
         current=[]),
    Trap("multiset_never_had_nothing", table_schema("multiset_never_had_nothing", PAIR, key=(), identity="full"),
         [[row({"a": "one", "f": 0.0}), row({"a": None, "f": 1.0})]],
         [[row(dict.fromkeys(PAIR), op="delete"), row({"a": None, "f": 1.0}, op="delete")]],
         current=[{"a": "one", "f": 0.0}]),
    Trap("column_added", texts("column_added"),
         [[insert(1, body="long"), insert(2)]],
         [[update(1, "body", n=1)], [insert(3, extra="three"), move(2, 4, "body", extra="four")],
          [update(3, "body", "extra", n=3, extra=None)]],
         later=WIDER),
]  # fmt: skip


SHARING = [t.name for t in TRAPS if t.schema is SHARED]


def _shifted(trap: Trap) -> Trap:
    """The trap with the keys that it has in its table."""
    if trap.schema is not SHARED:
        return trap
    offset = SPAN * SHARING.index(trap.name)

    def key(row: Row | None) -> Row | None:
        return None if row is None else row | {"id": row["id"] + offset}

    def all_of(transactions: Transactions) -> Transactions:
        return [
            [replace(change, row=key(change.row) or {}, old_key=key(change.old_key)) for change in transaction]
            for transaction in transactions
        ]

    current = None if trap.current is None else [key(r) or {} for r in trap.current]
    return replace(trap, first=all_of(trap.first), second=all_of(trap.second), current=current)


TRAPS = [_shifted(trap) for trap in TRAPS]


@dataclass
class Merged:
    lake: Lake
    tables: dict[str, StagedTable]
    results: dict[str, TableResult]

    def of(self, trap: Trap, rows: list[Row]) -> list[Row]:
        """Those of the table's rows that belong to the trap."""
        if trap.schema is not SHARED:
            return rows
        return [r for r in rows if r["id"] // SPAN == SHARING.index(trap.name)]


@pytest.fixture(scope="module", params=["spark", "driver"])
def merged(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Merged]:
    """All traps, by two plans of one lake; by Spark, and as far as the driver folds few changes, by the driver."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "spark":
            leave_to_spark(patched)
        yield _merged(spark, tmp_path_factory)


def _merged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Merged:
    lake = Lake(spark, tmp_path_factory.mktemp("values") / "lake")
    tables = {trap.schema.table: lake.table(trap.schema) for trap in TRAPS}
    by_trap = {trap.name: tables[trap.schema.table] for trap in TRAPS}
    for trap in TRAPS:
        if trap.first:
            by_trap[trap.name].stage(*trap.first)
    merged_batches = {table.id: len(table.batches) for table in tables.values()}
    lake.applied(*[table.planned() for table in tables.values() if table.batches])
    for trap in TRAPS:
        table = by_trap[trap.name]
        for transaction in trap.second:
            if trap.later is not None and any("extra" in change.row for change in transaction):
                table.schema = trap.later
            table.stage(transaction)
    result = lake.apply(*[table.planned(merged_batches[table.id]) for table in tables.values()])
    by_id = {r.table: r for r in result.tables}
    return Merged(lake, by_trap, {name: by_id[table.id] for name, table in by_trap.items()})


def _holes(result: TableResult) -> dict[str, int]:
    return {} if result.holes is None else result.holes.columns


@pytest.mark.parametrize("trap", TRAPS, ids=[t.name for t in TRAPS])
def test_current_equals_the_source(merged: Merged, trap: Trap) -> None:
    table = merged.tables[trap.name]
    result = merged.results[trap.name]
    assert result.error is None
    assert _holes(result) == (trap.holes if trap.schema is not SHARED else {"body": 2, "note": 1})
    assert result.current_lsn == result.history_lsn == table.batches[-1].end_lsn
    expected = trap.current if trap.current is not None else list(_source(trap)[0].values())
    names = [c.name for c in table.schema.columns]
    assert _shown(merged.of(trap, merged.lake.current(table))) == _shown(
        [{n: r.get(n) for n in names} for r in expected]
    )


@pytest.mark.parametrize(
    "trap", [t for t in TRAPS if t.current is None], ids=[t.name for t in TRAPS if t.current is None]
)
def test_history_is_every_change_once_with_its_values(merged: Merged, trap: Trap) -> None:
    table = merged.tables[trap.name]
    names = [c.name for c in table.schema.columns]
    expected = [(op, {n: r.get(n) for n in names}) for op, r in _source(trap)[1]]
    history = merged.lake.history(table)
    mine = merged.of(trap, [row for _, row in history])
    changes = [(op, row) for op, row in history if any(row is r for r in mine)]
    assert [repr(change) for change in changes] == [repr(change) for change in expected]


def test_a_filled_value_keeps_its_mark_in_history(merged: Merged) -> None:
    history = merged.lake.read("history", merged.tables["whole_batch_unchanged"]).where(f"id < {SPAN}")
    rows = history.orderBy("_commit_lsn", "_ordinal").collect()
    assert [(r["body"], r["_unchanged"]) for r in rows] == [
        ("long", None),
        ("b", None),
        ("long", ["body"]),
        ("long", ["body"]),
    ]


def test_history_of_a_multiset_has_the_old_row_and_the_new_one(merged: Merged) -> None:
    history = merged.lake.history(merged.tables["multiset_is_truncated"])
    assert [(op, _shown([r])) for op, r in history] == [
        ("insert", _shown([ONE])),
        ("insert", _shown([ONE])),
        ("delete", _shown([ONE])),
        ("truncate", _shown([EMPTY])),
        ("insert", _shown([EMPTY])),
        ("insert", _shown([EMPTY])),
        ("delete", _shown([EMPTY])),
        ("insert", _shown([MINUS])),
    ]


def test_the_keys_of_holes_are_texts_that_postgresql_reads(lake: Lake) -> None:
    table = lake.table(table_schema("t", {"b": "binary", "at": "timestamp", "n": "int", "body": "string"}, ("b", "at")))
    values = {"b": b"\x00\xff", "at": datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC), "n": 1, "body": None}
    table.stage([Change("update", values, ("body",))])
    (result,) = lake.applied(table.planned())
    assert result.holes == Holes({"body": 1}, (("\\x00FF", "2024-02-29 12:30:00.250000Z"),))


@pytest.mark.thorough
def test_a_large_target_gives_unchanged_values_from_the_files_of_their_keys(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_changes, "FEW_FILES", 0)
    table = lake.table(table_schema("t t", {**TEXTS, "a b": "string"}))
    keys = range(2, 5)
    for n, key in enumerate(keys):  # a plan each, so that each row has a file of its own
        table.stage([insert(key, body=f"long {key}", **{"a b": f"also {key}"})])
        lake.applied(table.planned(n, n + 1))
    table.stage([update(2, "body", "a b", n=2, **{"a b": None}), move(3, 30, "a b", body="new", **{"a b": None})])
    lake.applied(table.planned(len(keys)))
    table.stage([update(2, "body", "a b", n=3, **{"a b": None}), update(9, "body", **{"a b": None})])
    (result,) = lake.applied(table.planned(len(keys) + 1))
    assert result.holes == Holes({"body": 1}, (("9",),))
    current = {r["id"]: (r["n"], r["body"], r["a b"]) for r in lake.current(table)}
    assert current == {
        **{key: (0, f"long {key}", f"also {key}") for key in keys if key not in (2, 3)},
        2: (3, "long 2", "also 2"),
        30: (0, "new", "also 3"),
        9: (0, None, None),
    }


def test_every_step_is_one_commit_besides_metadata(merged: Merged) -> None:
    """Version 0 creates, 1 and 2 are the two plans; an added column is one more."""
    for trap in TRAPS:
        table = merged.tables[trap.name]
        expected = 1 + bool(trap.first or trap.schema is SHARED) + (trap.later is not None)
        assert (trap.name, merged.lake.version("history", table)) == (trap.name, expected)
        assert (trap.name, merged.lake.version("current", table)) == (trap.name, expected)


def test_a_truncate_keeps_the_tables_properties(merged: Merged) -> None:
    described = merged.lake.spark.sql(
        f"DESCRIBE DETAIL delta.`{merged.lake.path('current', merged.tables['truncate_in_the_middle'])}`"
    ).first()
    assert described is not None
    assert described["properties"]["delta.enableDeletionVectors"] == "true"
    assert described["properties"]["delta.dataSkippingStatsColumns"] == "`id`"


def _source(trap: Trap) -> tuple[dict[Key, Row], list[tuple[str, Row]]]:
    state: dict[Key, Row] = {}
    history = [
        change
        for transactions in (trap.first, trap.second)
        for transaction in transactions
        for staged_change in transaction
        for change in apply(state, trap.schema.key, staged_change)
    ]
    return state, history


def _shown(rows: list[Row]) -> list[str]:
    """As text, by which NaN equals itself and -0.0 differs from 0.0."""
    return sorted(repr(r) for r in rows)
