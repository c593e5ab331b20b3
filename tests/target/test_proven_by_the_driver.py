"""What the driver proves equal without Spark, case by case: all that is right, nothing that is wrong, and never more in
memory than it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.support.merge_ways import none_are_few
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.model import Change, Row
from tests.target.verifying import SEEN, by_hand, counts, filled, planned, row, verify
from tidemark.formats.manifest import KeyPart, Sweep
from tidemark.lsn import Lsn
from tidemark.target.chunks import chunk_equality

pytestmark = pytest.mark.usefixtures("proven")

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
        filling = []
        for name, case in cases.items():
            if number < len(case.filled):
                table = tables[name]
                changes = [Change("insert", dict(one)) for one in case.filled[number]]
                changes += [Change("insert", row(key)) for key in case.gone]
                changes += [Change("delete", {**dict.fromkeys(case.columns), "id": key}) for key in case.gone]
                if case.lacks:
                    changes.append(Change("update", row(case.lacks, note=None), ("note",)))
                table.stage(changes)
                filling.append(table.planned(number))
        lake.applied(*filling)
    for name, case in cases.items():
        if case.hand:
            by_hand(lake, tables[name], case.hand)
        verify(tables[name], list(case.rows), "verify", case.parts)
    compared = [planned(table, len(table.batches) - 1, with_evidence=with_evidence) for table in tables.values()]
    results = lake.applied(*compared)
    return {result.table.partition(".")[2]: counts(result) for result in results}


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["driver"], indirect=True)
def test_a_table_has_the_drivers_memory_for_its_changes_and_its_proof(
    lake: Lake, is_proven: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a table waits for those before it: which of them Spark compares is no matter of chance."""
    none_are_few(monkeypatch, 2)
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
        monkeypatch.setattr(chunk_equality, name, value)
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
        monkeypatch.setattr(chunk_equality, name, value)
    assert _compared(lake, WRONG, with_evidence=with_evidence) == {name: case.expected for name, case in WRONG.items()}
    assert is_proven == dict.fromkeys(WRONG, False)


BY_HAND = {
    "right": ("", (0, 0, 0, 0, {})),
    "missing": ("DELETE FROM {} WHERE id = 8", (1, 0, 0, 0, {})),
    "differing": ("UPDATE {} SET n = -1 WHERE id = 4", (0, 1, 0, 0, {"n": 1})),
    "between_two_chunks": ("UPDATE {} SET id = 30 WHERE id = 5", (1, 0, 0, 1, {})),
    "above_all_chunks": ("INSERT INTO {} (id, n) VALUES (99, 0)", (0, 0, 0, 1, {})),
}


@pytest.mark.thorough
@pytest.mark.some(1)
@pytest.mark.parametrize("way", ["driver"], indirect=True)
@pytest.mark.parametrize(
    "bounds",
    [{"PIECE_ROWS": 3, "MAX_READ": 100}, {"PIECE_ROWS": 3, "MAX_READ": 1, "MAX_PIECE_ROWS": 20}],
    ids=["in pieces", "all over current"],
)
def test_chunks_are_proven_piece_by_piece(
    lake: Lake, is_proven: dict[str, bool], monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]
) -> None:
    """Rows of current that lie between the pieces, or beyond them, are in no piece."""
    for name, value in bounds.items():
        monkeypatch.setattr(chunk_equality, name, value)
    tables = {name: filled(lake, table_schema(name, TEXTS), [row(key) for key in range(12)]) for name in BY_HAND}
    for name, table in tables.items():
        if BY_HAND[name][0]:
            by_hand(lake, table, BY_HAND[name][0])
        claims = [
            table.stage_chunk("v1", f"{n}-1", [row(3 * n + m) for m in range(3)], snapshot=SEEN, low=table.next_lsn())
            for n in range(4)
        ]
        marked = tuple(replace(claim, watermark_lsn=Lsn(table.next_lsn()), purpose="verify") for claim in claims)
        table.stage_committed([], marked, (Sweep("v1", SEEN, 4, "verify"),))
    results = lake.applied(*[planned(table, 1) for table in tables.values()])
    said = {result.table.partition(".")[2]: counts(result) for result in results}
    assert said == {name: expected for name, (_, expected) in BY_HAND.items()}
    assert is_proven == {name: name == "right" for name in BY_HAND}


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
    stage_verify(table)
    return table


def stage_verify(table: StagedTable) -> None:
    backfill, claims = f"v{len(table.batches)}", []
    for part in range(8):
        rows = [large(key) for key in range(part, 48, 8)]
        claim = table.stage_chunk(backfill, f"{part}-1", rows, snapshot=SEEN, low=table.next_lsn())
        claims.append(replace(claim, watermark_lsn=Lsn(table.next_lsn()), purpose="verify"))
    table.stage_committed([], tuple(claims), (Sweep(backfill, SEEN, 8, "verify"),))


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["driver"], indirect=True)
def test_what_is_small_in_files_and_large_in_memory_is_proven_a_few_chunks_at_a_time(
    lake: Lake, large_rows: StagedTable, is_proven: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what all at once takes: how long Arrow keeps a buffer is another matter, and not the same each time."""

    def most(group_bytes: int) -> int:
        monkeypatch.setattr(chunk_equality, "GROUP_BYTES", group_bytes)
        usual, counting = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
        pa.set_memory_pool(counting)
        try:
            (result,) = lake.applied(planned(large_rows, len(large_rows.batches) - 1))
        finally:
            pa.set_memory_pool(usual)
        assert is_proven == {"t": True}
        assert counts(result) == (0, 0, 0, 0, {})
        stage_verify(large_rows)
        return counting.max_memory()

    few_at_a_time = min(most(12 * LARGE) for _ in range(2))
    assert few_at_a_time + 24 * LARGE < min(most(96 * LARGE) for _ in range(2))


@pytest.mark.thorough
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
    monkeypatch.setattr(chunk_equality, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(chunk_equality, bound, 3 * LARGE)
    (result,) = lake.applied(planned(large_rows, 1, with_evidence=with_evidence))
    assert is_proven == {"t": False}
    assert counts(result) == (0, 0, 0, 0, {})
