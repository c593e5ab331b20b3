"""Chunks that are compared with the target: what was changed there by another hand is found, by kind and column, and
nothing else ever is, whatever commits are not visible yet; nothing is written but positions, unless it repairs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.lake import PIPELINE, TEXTS, Lake, StagedTable, table_schema
from tests.spark.model import Change, Row
from tests.spark.source import KEYS, Source
from tidemark.formats import layout
from tidemark.formats.manifest import Claim, KeyPart, Purpose, Sweep
from tidemark.formats.plan import PlannedTable
from tidemark.formats.result import TableResult
from tidemark.lsn import Lsn
from tidemark.names import spark_identifier
from tidemark.schema.table import Column, TableSchema
from tidemark.target import delta_tables, equal_chunks, few_changes, merge
from tidemark.target.equal_chunks import EqualChunks

Proven = list[bool]


@pytest.fixture(autouse=True)
def proven(monkeypatch: pytest.MonkeyPatch) -> Proven:
    """Per table and merge with chunks that are compared, whether the driver proved them equal; Spark must say the same
    of them."""
    done: Proven = []
    compare, prove = merge.TableMerge._compare, merge.equal_chunks

    def spied(*given: Any, **named: Any) -> EqualChunks | None:
        equal = prove(*given, **named)
        if any(batch.claims for batch in given[3].batches):
            done.append(equal is not None)
        return equal

    def both(own: merge.TableMerge, *given: Any, **named: Any) -> Any:
        before = len(done)
        mine = compare(own, *given, **named)
        if any(done[before:]):
            own.session.conf.set(equal_chunks.SETTING, "false")
            sparks = compare(own, *given, **named)
            own.session.conf.unset(equal_chunks.SETTING)
            done.pop()
            assert mine == sparks
        return mine

    monkeypatch.setattr(merge, "equal_chunks", spied)
    monkeypatch.setattr(merge.TableMerge, "_compare", both)
    return done


@pytest.fixture
def is_proven(proven: Proven, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """By table, whether the driver proved the chunks equal that were compared last."""
    done: dict[str, bool] = {}
    prove = merge.equal_chunks

    def spied(*given: Any, **named: Any) -> EqualChunks | None:
        equal = prove(*given, **named)
        if any(batch.claims for batch in given[3].batches) and given[0].conf.get(equal_chunks.SETTING, "") != "false":
            done[given[2][-1].table.name] = equal is not None
        return equal

    monkeypatch.setattr(merge, "equal_chunks", spied)
    return done


DAYS = {"id": "int", "until": "date", "note": "string"}

# Of a snapshot that saw every transaction.
SEEN = f"{2**40}:{2**40}:"


def row(key: int, **values: Any) -> Row:
    return {"id": key, "n": key, "body": f"body {key}", "note": None, **values}


def verify(
    table: StagedTable, rows: list[Row], purpose: Purpose, parts: tuple[KeyPart, ...] | None = None
) -> TableResult:
    """Stages one chunk of these rows, which is all of a verify; its snapshot saw everything."""
    number = len(table.batches)
    claim = table.stage_chunk(f"v{number}", "1-1", rows, snapshot=SEEN, low=table.next_lsn())
    claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()), purpose=purpose)
    sweeps = (Sweep(f"v{number}", SEEN, 1, purpose, parts),) if table.schema.key else ()
    table.stage_committed([], (claim,), sweeps)
    return TableResult(table.id, None, None)


def planned(table: StagedTable, first: int, *, with_evidence: bool = False) -> PlannedTable:
    """Without the older batches: a verify's snapshot saw what they hold, and a plan does not name them then. With them
    every key is one that a change has, and each row is judged by itself."""
    plan = table.planned(first)
    return plan if with_evidence else replace(plan, evidence=())


def filled(lake: Lake, schema: TableSchema, rows: list[Row]) -> StagedTable:
    table = lake.table(schema)
    table.stage([Change("insert", row) for row in rows])
    lake.applied(table.planned())
    return table


def by_hand(lake: Lake, table: StagedTable, *statements: str) -> None:
    for statement in statements:
        lake.spark.sql(statement.format(f"delta.{spark_identifier(lake.path('current', table))}")).collect()


def differences(lake: Lake, table: StagedTable) -> list[tuple[Any, ...]]:
    path = lake.root / layout.differences_table(PIPELINE, table.schema.table)
    stored = lake.spark.read.format("delta").load(str(path)).collect()
    rows = [(r["kind"], r["columns"], r["repaired"], tuple(r["key"].items())) for r in stored]
    return sorted(rows, key=str)


def counts(result: TableResult) -> tuple[int, int, int, int, dict[str, int]]:
    """Missing, differing, extra of chunks and of the sweep, differing columns."""
    chunks = result.chunks
    columns = {name: count for c in chunks for name, count in c.columns.items()}
    differing = sum(c.repaired - c.extra for c in chunks)
    swept = sum(result.swept.values())
    return sum(c.inserted for c in chunks), differing, sum(c.extra for c in chunks), swept, columns


TAMPERED = (
    "DELETE FROM {} WHERE id = 2",
    "UPDATE {} SET note = 'not so', n = 0 WHERE id = 3",
    "INSERT INTO {} (id, n, body) VALUES (50, 1, 'nobody knows')",
)


def test_what_another_hand_did_is_found_and_repaired_when_asked(lake: Lake, proven: Proven) -> None:
    rows = [row(key) for key in range(1, 7)]
    table = filled(lake, table_schema("t", TEXTS), rows)
    by_hand(lake, table, *TAMPERED)
    there, history = lake.current(table), lake.history(table)
    verify(table, rows, "verify")
    (outcome,) = lake.applied(table.planned(1))
    assert counts(outcome) == (1, 1, 0, 1, {"n": 1, "note": 1})
    assert (lake.current(table), lake.history(table)) == (there, history)
    listed = [
        ("differs", ["n", "note"], False, (("id", "3"),)),
        ("extra", None, False, (("id", "50"),)),
        ("missing", None, False, (("id", "2"),)),
    ]
    assert differences(lake, table) == listed
    verify(table, rows, "repair")
    (repaired,) = lake.applied(table.planned(2))
    assert counts(repaired) == counts(outcome)
    assert lake.current(table) == rows
    assert [op for op, _ in lake.history(table)][len(history) :] == ["read", "read", "sweep"]
    assert [kind for kind, _, is_repaired, _ in differences(lake, table) if is_repaired] == [
        "differs",
        "extra",
        "missing",
    ]
    assert proven == [False, False]


@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.parametrize("hand", [TAMPERED[1], *(pytest.param(h, marks=pytest.mark.thorough) for h in TAMPERED[::2])])
def test_one_row_is_enough(lake: Lake, proven: Proven, hand: str, with_evidence: bool) -> None:
    """The driver proves the rest of it, and leaves a row that is missing, differs, or is too many, to Spark."""
    rows = [row(key) for key in range(1, 7)]
    table = filled(lake, table_schema("t", TEXTS), rows)
    verify(table, rows, "verify", (KeyPart(None, ("4",)), KeyPart(("4",), None)))
    (right,) = lake.applied(planned(table, 1, with_evidence=with_evidence))
    assert counts(right) == (0, 0, 0, 0, {})
    by_hand(lake, table, hand)
    verify(table, rows, "verify")
    (wrong,) = lake.applied(planned(table, 2, with_evidence=with_evidence))
    assert sum(counts(wrong)[:4]) == 1
    assert proven == [True, False]


def test_files_are_proven_by_their_row_groups(lake: Lake, proven: Proven) -> None:
    """Masked rows are numbered through a file, those that are compared within their row group."""
    rows = [row(key) for key in range(1, 41)]
    table = filled(lake, table_schema("t", TEXTS), rows)
    lake.spark.conf.set("parquet.block.row.count.limit", "7")
    try:
        by_hand(lake, table, "UPDATE {} SET note = NULL", "DELETE FROM {} WHERE id IN (5, 23, 24, 40)")
    finally:
        lake.spark.conf.unset("parquet.block.row.count.limit")
    by_hand(
        lake,
        table,
        "INSERT INTO {} (id, n, body) SELECT id, id, 'body ' || id FROM VALUES (40), (24), (5), (23) AS _ (id)",
    )
    files = lake.folder("current", table).rglob("part-*.parquet")
    assert max(pq.ParquetFile(file).num_row_groups for file in files) > 3
    verify(table, rows, "verify")
    (right,) = lake.applied(planned(table, 1))
    assert counts(right) == (0, 0, 0, 0, {})
    by_hand(lake, table, "UPDATE {} SET body = 'not so' WHERE id = 22")
    verify(table, rows, "verify")
    (wrong,) = lake.applied(planned(table, 2))
    assert counts(wrong) == (0, 1, 0, 0, {"body": 1})
    assert proven == [True, False]
    # Of a part, its first key the last of a row group, its last key the first of another one; then of the rest.
    verify(table, rows[6:15], "verify", (KeyPart(("6",), ("15",)),))
    (beside,) = lake.applied(planned(table, 3))
    assert counts(beside) == (0, 0, 0, 0, {})
    verify(table, rows[15:], "verify", (KeyPart(("15",), None),))
    (rest,) = lake.applied(planned(table, 4))
    assert counts(rest) == counts(wrong)
    assert proven == [True, False, True, False]


@pytest.mark.thorough
def test_a_part_of_the_keys_says_nothing_of_the_others(lake: Lake) -> None:
    rows = [row(key) for key in range(1, 7)]
    table = filled(lake, table_schema("t", TEXTS), rows)
    by_hand(lake, table, *TAMPERED, "INSERT INTO {} (id, n) VALUES (-1, 1)", "DELETE FROM {} WHERE id = 4")
    verify(table, rows[3:], "repair", (KeyPart(("3",), ("10",)), KeyPart(("60",), None)))
    (upper,) = lake.applied(table.planned(1))
    assert counts(upper) == (1, 0, 0, 0, {})
    verify(table, rows[:3], "repair", (KeyPart(None, ("3",)),))
    (lower,) = lake.applied(table.planned(2))
    assert counts(lower) == (1, 1, 0, 1, {"n": 1, "note": 1})
    assert sorted(r["id"] for r in lake.current(table)) == [1, 2, 3, 4, 5, 6, 50]


@pytest.mark.thorough
def test_copies_of_a_table_without_key_are_counted(lake: Lake) -> None:
    rows = [{"n": n // 2, "kind": "a"} for n in range(6)]
    schema = table_schema("bag", {"n": "int", "kind": "string"}, (), "full")
    table = filled(lake, schema, rows)
    by_hand(lake, table, "UPDATE {} SET kind = 'b' WHERE n = 1", "INSERT INTO {} (n, kind) VALUES (2, 'a')")
    verify(table, rows, "verify")
    (outcome,) = lake.applied(table.planned(1))
    assert counts(outcome) == (2, 0, 3, 0, {})
    assert differences(lake, table) == sorted(
        [("extra", None, False, (("n", "1"), ("kind", "b")))] * 2
        + [("extra", None, False, (("n", "2"), ("kind", "a")))]
        + [("missing", None, False, (("n", "1"), ("kind", "a")))] * 2,
        key=str,
    )
    verify(table, rows, "repair")
    lake.applied(table.planned(2))
    assert lake.current(table) == sorted(rows, key=str)
    verify(table, rows, "verify")
    (again,) = lake.applied(table.planned(3))
    assert counts(again) == (0, 0, 0, 0, {})


def test_values_that_are_stored_alike_are_told_apart_by_their_texts(lake: Lake) -> None:
    unfit = {"price": None, "_text": [("price", "NaN")]}
    rows = [{"id": 1, **unfit}, {"id": 2, **unfit}, {"id": 3, "price": None}, {"id": 4, "price": None}]
    staged = [
        Change("insert", {"id": key, "price": None}, text={"price": text} if text else None)
        for key, text in [(1, "NaN"), (2, "Infinity"), (3, "NaN"), (4, None)]
    ]
    table = lake.table(table_schema("unfit", {"id": "int", "price": "decimal(9,2)"}))
    table.stage(staged)
    lake.applied(table.planned())
    verify(table, rows, "repair")
    (outcome,) = lake.applied(table.planned(1))
    assert counts(outcome) == (0, 2, 0, 0, {"price": 2})
    texts = {r["id"]: dict(r["_text"] or {}) for r in lake.stored("history", table)}
    assert texts == {1: {"price": "NaN"}, 2: {"price": "NaN"}, 3: {}, 4: {}}
    verify(table, rows, "verify")
    (again,) = lake.applied(table.planned(2))
    assert counts(again) == (0, 0, 0, 0, {})


def test_texts_are_found_in_a_history_that_began_with_names_of_its_own(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that took over what a history with a renamed column has, while current is made from it as any other."""
    mapping = delta_tables._column_mapping

    def of_history(names: Sequence[str]) -> dict[str, str]:
        return {"delta.columnMapping.mode": "name"} if "_op" in names else mapping(names)

    monkeypatch.setattr(delta_tables, "_column_mapping", of_history)
    table = lake.table(table_schema("unfit", {"id": "int", "price": "decimal(9,2)"}))
    table.stage([Change("insert", {"id": key, "price": None}, text={"price": "NaN"}) for key in (1, 2)])
    lake.applied(table.planned())
    verify(table, [{"id": 1, "price": None}, {"id": 2, "price": None}], "verify")
    (result,) = lake.applied(planned(table, 1))
    assert counts(result) == (0, 2, 0, 0, {"price": 2})


def test_texts_of_a_column_that_was_renamed_are_no_difference(lake: Lake) -> None:
    """History has them under the name of then; of a row that was written since it has the name of now."""
    columns = tuple(Column(name, target, 25, -1, target, attnum=n) for n, (name, target) in enumerate(DAYS.items(), 1))
    schema = replace(table_schema("t", DAYS), columns=columns, published=(1, 2, 3))
    table = lake.table(schema)
    unfit, last = {"until": "infinity"}, date(9999, 12, 31)
    table.stage([Change("insert", {"id": n, "until": last, "note": None}, text=unfit) for n in (1, 2, 3)])
    lake.applied(table.planned())
    columns = tuple(replace(column, name="ends" if column.name == "until" else column.name) for column in columns)
    table.schema = replace(schema, version=2, columns=columns)
    sent = {"id": 2, "ends": last, "note": "x"}
    table.stage([Change("update", sent, text={"ends": "infinity"}), Change("update", {**sent, "id": 3})])
    lake.applied(table.planned(1))
    rows = [
        {"id": n, "ends": last, "note": None if n == 1 else "x", "_text": [("ends", "infinity")]} for n in (1, 2, 3)
    ]
    verify(table, rows, "verify")
    (result,) = lake.applied(planned(table, 2))
    assert counts(result) == (0, 1, 0, 0, {"ends": 1})
    assert differences(lake, table) == [("differs", ["ends"], False, (("id", "3"),))]


def test_a_text_under_an_older_name_stands_for_no_more_than_one_column(lake: Lake) -> None:
    """Of the first row a column that was never renamed differs, too; of the second one, as of the third, none."""
    days = {"id": "int", "until": "date", "since": "date"}
    columns = tuple(
        Column(name, target, 1082, -1, target, attnum=n) for n, (name, target) in enumerate(days.items(), 1)
    )
    schema = replace(table_schema("t", days), columns=columns, published=(1, 2, 3))
    table = lake.table(schema)
    last = date(9999, 12, 31)
    values = {"until": last, "since": last}
    one, both = {"until": "infinity"}, {"until": "infinity", "since": "infinity"}
    staged = [(1, one), (2, one), (3, both)]
    table.stage([Change("insert", {"id": n, **values}, text=text) for n, text in staged])
    lake.applied(table.planned())
    columns = tuple(replace(column, name="ends" if column.name == "until" else column.name) for column in columns)
    table.schema = replace(schema, version=2, columns=columns)
    texts = {1: ["ends", "since"], 2: ["ends"], 3: ["ends", "since"]}
    rows = [
        {"id": n, "ends": last, "since": last, "_text": [(name, "infinity") for name in names]}
        for n, names in texts.items()
    ]
    verify(table, rows, "verify")
    (result,) = lake.applied(planned(table, 1))
    assert counts(result) == (0, 1, 0, 0, {"ends": 1, "since": 1})
    assert differences(lake, table) == [("differs", ["ends", "since"], False, (("id", "1"),))]


def test_nothing_is_compared_beside_a_chunk_that_is_merged(lake: Lake) -> None:
    rows = [row(key) for key in range(1, 4)]
    table = filled(lake, table_schema("t", TEXTS), rows)
    by_hand(lake, table, TAMPERED[0])
    verify(table, rows, "fill")
    verify(table, rows, "verify")
    (result,) = lake.applied(table.planned(1))
    assert [c.backfill for c in result.chunks] == ["v1"]
    assert lake.current(table) == rows


def _round(table: StagedTable, source: Source, rng: random.Random, number: int, *, hangs: bool) -> None:
    """A verify of a part of the keys, among transactions that commit and become visible in any order."""
    cut = rng.randrange(1, len(KEYS))
    pinned = source.snapshot()
    for keys in (list(KEYS)[:cut], list(KEYS)[cut:]):
        for _ in range(rng.randint(1, 4)):
            source.write()
            source.show_some()
        source.read(f"v{number}", keys)
    if not hangs:
        source.show_all()
    source.mark_late()
    source.wal = [replace(entry, purpose="verify") if isinstance(entry, Claim) else entry for entry in source.wal]
    parts = (KeyPart(None, (str(cut - 1),)), KeyPart((str(cut - 1),), None))
    source.stage([Sweep(f"v{number}", str(pinned), 2, "verify", rng.choice([None, parts]))])


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20, 30))
def test_nothing_that_is_right_is_reported_of_plain_changes(lake: Lake, seed: int, proven: Proven) -> None:
    test_nothing_that_is_right_is_reported_whatever_hangs(lake, seed)
    assert any(proven)


# From the twentieth on, changes each say what their key's row is: those the driver folds.
@pytest.mark.parametrize("seed", [1, 20, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 12))])
def test_nothing_that_is_right_is_reported_whatever_hangs(lake: Lake, seed: int) -> None:
    rng = random.Random(seed)
    table = lake.table(table_schema(f"t{seed}", TEXTS))
    source = Source(rng, table, plain=seed >= 20, truncates=seed < 20)
    source.write()
    source.stage()
    lake.applied(table.planned())
    for number in range(1, 4):
        merged = len(table.batches)
        _round(table, source, rng, number, hangs=number < 3)
        (result,) = lake.applied(table.planned(merged))
        assert counts(result) == (0, 0, 0, 0, {}), f"seed {seed}, round {number}"
        assert len(result.chunks) == 2
    assert lake.current(table) == sorted(source.committed.values(), key=lambda r: str([r["id"]]))
    victim = next(iter(source.committed.values()), None)
    if victim is not None:
        merged = len(table.batches)
        by_hand(lake, table, f"DELETE FROM {{}} WHERE id = {victim['id']}")
        source.read("v9", list(KEYS))
        source.mark_late()
        source.wal = [replace(entry, purpose="verify") for entry in source.wal if isinstance(entry, Claim)]
        source.stage()
        (result,) = lake.applied(table.planned(merged))
        assert counts(result) == (1, 0, 0, 0, {})


def test_a_row_that_current_has_twice_is_found_and_repaired(lake: Lake) -> None:
    """Whether the copies are the same or not, and whether or not a change came to the row."""
    rows = [row(key) for key in range(1, 5)]
    table = filled(lake, table_schema("t", TEXTS), rows)
    by_hand(lake, table, "INSERT INTO {} SELECT * FROM {0} WHERE id IN (1, 2)".replace("{}", "{0}"))
    by_hand(lake, table, "INSERT INTO {0} (id, n, body) VALUES (3, 0, 'other')")
    verify(table, rows, "verify")
    (outcome,) = lake.applied(table.planned(1))
    assert counts(outcome) == (0, 0, 3, 0, {})
    assert differences(lake, table) == [("extra", None, False, (("id", str(key)),)) for key in (1, 2, 3)]
    verify(table, rows, "repair")
    (repaired,) = lake.applied(table.planned(2))
    assert counts(repaired) == counts(outcome)
    assert lake.current(table) == rows
    verify(table, rows, "verify")
    (again,) = lake.applied(table.planned(3))
    assert counts(again) == (0, 0, 0, 0, {})


# --- what the driver proves, and what it must not ---------------------------------------------------------------------

NUMBERS = {"id": "int", "d": "double", "f": "float", "n": "int"}
LISTS = {"id": "int", "ds": "array<double>", "kv": "map<string,string>"}
FILES = [[row(key) for key in range(start, 12, 3)] for start in (1, 2, 3)]
SAME = [{"id": key, "n": 0, "body": "b", "note": None} for key in range(1, 7)]
PLAIN = [row(key) for key in range(1, 7)]
ODD = [{"id": 1, "d": float("nan"), "f": 0.5, "n": 1}, {"id": 2, "d": 0.0, "f": -0.0, "n": None}]
NESTED = [{"id": 1, "ds": [0.0, float("nan"), None], "kv": [("a", "1"), ("b", None)]}, {"id": 2, "ds": None, "kv": []}]
MIDDLE = (KeyPart(("2",), ("4",)),)


@dataclass(frozen=True)
class Case:
    """A table that was filled by these batches of rows, changed by hand, and compared with a chunk of `rows`."""

    filled: Sequence[Sequence[Row]]
    rows: Sequence[Row]
    hand: str = ""
    expected: tuple[int, int, int, int, dict[str, int]] = (0, 0, 0, 0, {})
    columns: dict[str, str] = field(default_factory=lambda: TEXTS)
    key: tuple[str, ...] = ("id",)
    parts: tuple[KeyPart, ...] | None = None
    gone: Sequence[int] = ()  # keys that were inserted, and deleted again
    lacks: int = 0  # a key of which the note is not known


RIGHT = {
    "of_several_files": Case(FILES, [row(key) for key in range(1, 12)]),
    "of_odd_numbers": Case([ODD], ODD, columns=NUMBERS),
    "nested": Case([NESTED], NESTED, columns=LISTS),
    "of_two_columns": Case([PLAIN], PLAIN, key=("body", "id")),
    "with_masked_rows": Case([PLAIN], PLAIN[1:], "DELETE FROM {} WHERE id = 1"),
    "at_the_lower_bound": Case([PLAIN], PLAIN[2:4], "INSERT INTO {} (id, n) VALUES (0, 0)", parts=MIDDLE),
    "outside_of_the_parts": Case([PLAIN], PLAIN[2:4], "DELETE FROM {} WHERE id IN (1, 6)", parts=MIDDLE),
    "without_rows": Case([PLAIN], [], parts=(KeyPart(("70",), None),)),
}
WRONG = {
    "missing_beside_its_like": Case([SAME], SAME, "DELETE FROM {} WHERE id = 3", (1, 0, 0, 0, {})),
    "missing_last": Case([SAME], SAME, "DELETE FROM {} WHERE id = 6", (1, 0, 0, 0, {})),
    # No sweep looks at it: one would find a row that no chunk has.
    "twice": Case(
        [SAME],
        SAME,
        "INSERT INTO {} SELECT * FROM {} WHERE id = 6",
        (0, 0, 1, 0, {}),
        parts=(KeyPart(("70",), None),),
    ),
    "minus_zero": Case([ODD], ODD, "UPDATE {} SET d = -0.0D WHERE id = 2", (0, 1, 0, 0, {"d": 1}), NUMBERS),
    "plus_zero": Case([ODD], ODD, "UPDATE {} SET f = float('0') WHERE id = 2", (0, 1, 0, 0, {"f": 1}), NUMBERS),
    "no_nan": Case([ODD], ODD, "UPDATE {} SET d = NULL WHERE id = 1", (0, 1, 0, 0, {"d": 1}), NUMBERS),
    "a_null": Case([ODD], ODD, "UPDATE {} SET n = 0 WHERE id = 2", (0, 1, 0, 0, {"n": 1}), NUMBERS),
    "empty_text": Case([PLAIN], PLAIN, "UPDATE {} SET note = '' WHERE id = 2", (0, 1, 0, 0, {"note": 1})),
    "in_a_list": Case(
        [NESTED],
        NESTED,
        "UPDATE {} SET ds = array(-0.0D, double('NaN'), null) WHERE id = 1",
        (0, 1, 0, 0, {"ds": 1}),
        LISTS,
    ),
    "in_a_map": Case(
        [NESTED], NESTED, "UPDATE {} SET kv = map('a', '1', 'b', '') WHERE id = 1", (0, 1, 0, 0, {"kv": 1}), LISTS
    ),
    "extra_of_a_key_that_was_there": Case(
        [PLAIN], PLAIN, "INSERT INTO {} (id, n) VALUES (50, 0)", (0, 0, 0, 1, {}), gone=(50,)
    ),
    "extra_at_the_upper_bound": Case(
        [[*PLAIN[:3], *PLAIN[4:]]], PLAIN[2:3], "INSERT INTO {} (id, n) VALUES (4, 0)", (0, 0, 0, 1, {}), parts=MIDDLE
    ),
    "extra_within_the_parts": Case(
        [[*PLAIN[:2], *PLAIN[3:]]], PLAIN[3:4], "INSERT INTO {} (id, n) VALUES (3, 0)", (0, 0, 0, 1, {}), parts=MIDDLE
    ),
    "of_another_file": Case(
        FILES, [row(key) for key in range(1, 12)], "UPDATE {} SET n = 9 WHERE id = 8", (0, 1, 0, 0, {"n": 1})
    ),
    "a_value_that_nobody_knows": Case([PLAIN], [*PLAIN, row(9, note=None)], "", (0, 1, 0, 0, {"note": 1}), lacks=9),
}


def _compared(lake: Lake, cases: dict[str, Case], *, with_evidence: bool) -> dict[str, tuple[Any, ...]]:
    """All tables at once. With evidence each key is one that a change has; without it none is."""
    tables = {name: lake.table(table_schema(name, case.columns, case.key)) for name, case in cases.items()}
    for number in range(max(len(case.filled) for case in cases.values())):
        planned = []
        for name, case in cases.items():
            if number < len(case.filled):
                table = tables[name]
                changes = [Change("insert", dict(one)) for one in case.filled[number]]
                changes += [Change("insert", row(key)) for key in case.gone]
                changes += [Change("delete", {**dict.fromkeys(case.columns), "id": key}) for key in case.gone]
                if case.lacks:
                    changes.append(Change("update", row(case.lacks, note=None), ("note",)))
                table.stage(changes)
                planned.append(table.planned(number))
        lake.applied(*planned)
    for name, case in cases.items():
        if case.hand:
            by_hand(lake, tables[name], case.hand.replace("{}", "{0}"))
        verify(tables[name], list(case.rows), "verify", case.parts)
    last = [table.planned(len(table.batches) - 1) for table in tables.values()]
    results = lake.applied(*(last if with_evidence else [replace(planned, evidence=()) for planned in last]))
    return {result.table.partition(".")[2]: counts(result) for result in results}


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["driver"], indirect=True)
def test_a_table_has_the_drivers_memory_for_its_changes_and_its_proof(
    lake: Lake, is_proven: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a table waits for those before it: which of them Spark compares is no matter of chance."""
    monkeypatch.setattr(few_changes, "PLAIN_FROM", 2)
    tables = [filled(lake, table_schema(f"t{n}", TEXTS), PLAIN) for n in range(4)]
    for table in tables:
        change = (table.next_lsn(), 50, [Change("update", row(key, n=9)) for key in range(1, 5)])
        claim = table.stage_chunk("v1", "1-1", [row(k, n=9 if k < 5 else k) for k in range(1, 7)], snapshot=SEEN, low=1)
        claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()), purpose="verify")
        table.stage_committed([change], (claim,), (Sweep("v1", SEEN, 1, "verify"),))
    results = lake.applied(*[table.planned(1) for table in tables])
    assert [counts(result) for result in results] == [(0, 0, 0, 0, {})] * 4
    assert is_proven == {f"t{n}": True for n in range(4)}


SMALL = {"AT_ONCE_BYTES": 0, "GROUP_ROWS": 2, "MAX_READ": 100}


@pytest.mark.thorough
@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.parametrize("bounds", [{}, SMALL], ids=["all at once", "column by column"])
def test_the_driver_proves_what_is_right(
    lake: Lake,
    is_proven: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
    bounds: dict[str, int],
    with_evidence: bool,
) -> None:
    """It says so itself, and Spark says the same."""
    for name, value in bounds.items():
        monkeypatch.setattr(equal_chunks, name, value)
    assert _compared(lake, RIGHT, with_evidence=with_evidence) == dict.fromkeys(RIGHT, (0, 0, 0, 0, {}))
    assert is_proven == dict.fromkeys(RIGHT, True)


@pytest.mark.thorough
@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.parametrize("bounds", [{}, SMALL], ids=["all at once", "column by column"])
def test_the_driver_proves_nothing_that_is_wrong(
    lake: Lake,
    is_proven: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
    bounds: dict[str, int],
    with_evidence: bool,
) -> None:
    for name, value in bounds.items():
        monkeypatch.setattr(equal_chunks, name, value)
    assert _compared(lake, WRONG, with_evidence=with_evidence) == {name: case.expected for name, case in WRONG.items()}
    assert is_proven == dict.fromkeys(WRONG, False)


LARGE = 2**17


def large(key: int) -> Row:
    return row(key, body=f"{key % 2}" * LARGE)


@pytest.fixture
def large_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> StagedTable:
    """48 rows of 128 KB each, which are next to nothing in files: Spark's says each value once, the eight chunks'
    compress."""
    table = filled(lake, table_schema("t", TEXTS), [large(key) for key in range(48)])
    by_hand(lake, table, "OPTIMIZE {}")
    monkeypatch.setattr(pq, "write_table", partial(pq.write_table, use_dictionary=False, compression="zstd"))
    claims = []
    for part in range(8):
        rows = [large(key) for key in range(part, 48, 8)]
        claim = table.stage_chunk("v1", f"{part}-1", rows, snapshot=SEEN, low=table.next_lsn())
        claims.append(replace(claim, watermark_lsn=Lsn(table.next_lsn()), purpose="verify"))
    table.stage_committed([], tuple(claims), (Sweep("v1", SEEN, 8, "verify"),))
    return table


@pytest.mark.parametrize("way", ["driver"], indirect=True)
def test_what_is_small_in_files_and_large_in_memory_is_proven_a_few_chunks_at_a_time(
    lake: Lake, large_rows: StagedTable, is_proven: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_chunks, "GROUP_BYTES", 12 * LARGE)
    usual, counting = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(counting)
    try:
        (result,) = lake.applied(planned(large_rows, 1))
    finally:
        pa.set_memory_pool(usual)
    assert is_proven == {"t": True}
    assert counts(result) == (0, 0, 0, 0, {})
    assert counting.max_memory() < 48 * LARGE * 2


@pytest.mark.parametrize("way", ["driver"], indirect=True)
@pytest.mark.parametrize(
    ("bound", "with_evidence"), [("COLUMN_BYTES", False), ("TOUCHED_BYTES", True)], ids=["column", "changed"]
)
def test_rows_that_would_fill_the_driver_are_compared_by_spark(
    lake: Lake,
    large_rows: StagedTable,
    is_proven: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    with_evidence: bool,
) -> None:
    monkeypatch.setattr(equal_chunks, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(equal_chunks, bound, 3 * LARGE)
    (result,) = lake.applied(planned(large_rows, 1, with_evidence=with_evidence))
    assert is_proven == {"t": False}
    assert counts(result) == (0, 0, 0, 0, {})
