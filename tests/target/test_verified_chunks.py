"""Chunks that are compared with the target: what was changed there by another hand is found, by kind and column, and
nothing else ever is, whatever commits are not visible yet; nothing is written but positions, unless it repairs."""

from __future__ import annotations

import random

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.support.thorough import thorough
from tests.target.conftest import Proven
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.source import KEYS, Source
from tests.target.verifying import by_hand, counts, differences, filled, planned, row, verify
from tidemark.formats.manifest import Claim, KeyPart, Sweep

pytestmark = pytest.mark.usefixtures("proven")

TAMPERED = (
    "DELETE FROM {} WHERE id = 2",
    "UPDATE {} SET note = 'not so', n = 0 WHERE id = 3",
    "INSERT INTO {} (id, n, body) VALUES (50, 1, 'nobody knows')",
)


@pytest.mark.thorough
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


@pytest.mark.parametrize("with_evidence", [*thorough(False), True])
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


@pytest.mark.thorough
def test_files_are_proven_by_their_row_groups(lake: Lake, proven: Proven) -> None:
    """Masked rows are numbered through a file, those that are compared within their row group."""
    rows = [row(key) for key in range(1, 41)]
    table = filled(lake, table_schema("t", TEXTS), rows)
    every_seven_rows = {"parquet.block.size": "1"} | {
        f"parquet.page.size.row.check.{bound}": "7" for bound in ("min", "max")
    }
    for name, value in every_seven_rows.items():
        lake.spark.conf.set(name, value)
    try:
        by_hand(lake, table, "UPDATE {} SET note = NULL", "DELETE FROM {} WHERE id IN (5, 23, 24, 40)")
    finally:
        for name in every_seven_rows:
            lake.spark.conf.unset(name)
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
@pytest.mark.parametrize("seed", [20, *thorough(*range(1, 12))])
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
    by_hand(lake, table, "INSERT INTO {} SELECT * FROM {} WHERE id IN (1, 2)")
    by_hand(lake, table, "INSERT INTO {} (id, n, body) VALUES (3, 0, 'other')")
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
