"""Tables of hundreds of columns: every kind of merge ends, and ends right. Most tables have more than sixteen.

Spark infers what must hold from comparisons, and what it infers from a conjunction grows with its length by powers:
compared column by column, a row of seventeen columns was never done with.
"""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace

from tests.support.thorough import thorough
from tests.target.lake import TEXTS, Lake
from tests.target.model import Change, Row, apply, random_changes
from tests.target.source import KEYS, Source
from tests.target.wide import WideTable, exactly, wide_schema
from tidemark.formats.manifest import Claim, Sweep
from tidemark.formats.merge_result import ChunkResult
from tidemark.lsn import Lsn

# What a heap page lets PostgreSQL hold of wide rows: 1,600 columns, of which few hundred are stored out of line.
WIDTHS = [60, *thorough(17, 300, 1600)]


def wide_table(lake: Lake, name: str, width: int, **how: object) -> WideTable:
    return WideTable(lake.root, wide_schema(name, width, **how), itertools.count(0x16B374000, 0x10))  # type: ignore[arg-type]


def whole(claims: list[ChunkResult] | tuple[ChunkResult, ...]) -> tuple[int, int, int, int]:
    return tuple(  # type: ignore[return-value]
        sum(getattr(c, what) for c in claims) for what in ("inserted", "repaired", "unchanged", "overtaken")
    )


@pytest.mark.parametrize("width", thorough(17, 60, 300, 1600))
def test_a_first_backfill_of_a_wide_table_ends(lake: Lake, width: int) -> None:
    """Nothing of the table came through the stream before: its Delta tables do not exist yet. Of one table the chunk
    comes alone, of the other one beside a change that it did not see."""
    alone = wide_table(lake, "alone", width)
    table = wide_table(lake, "first", width)
    rows = [{"id": n, "n": n, "body": f"b{n}", "note": None if n % 2 else f"n{n}"} for n in range(20)]
    low = table.next_lsn()
    claim = table.stage_chunk("b1", "1-1", rows, snapshot="100:100:", low=low)
    unseen = [(table.next_lsn(), 101, [Change("update", {**rows[3], "body": None}, ("body",), None)])]
    claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()))
    table.stage_committed(unseen, (claim,), (Sweep("b1", "100:100:", 1),))
    by_itself = alone.stage_chunk("b1", "1-1", rows, snapshot="100:100:", low=alone.next_lsn())
    alone.stage_committed([], (replace(by_itself, watermark_lsn=Lsn(alone.next_lsn())),))
    in_nothing, result = lake.applied(alone.planned(), table.planned())
    assert whole(in_nothing.chunks) == (20, 0, 0, 0)
    assert exactly(lake.current(alone)) == alone.expected(rows)
    assert whole(result.chunks) == (19, 0, 0, 1)
    assert exactly(lake.current(table)) == table.expected(rows)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_backfill_of_a_wide_table_beside_writers_ends_equal(lake: Lake, width: int) -> None:
    """Random transactions, seen and not seen, keys that move, values left unchanged; then once more, a repair that
    finds everything as it is but what was altered by hand."""
    rng = random.Random(width)
    table = wide_table(lake, "beside", width)
    source = Source(rng, table)
    source.fill(8)
    for _ in range(4):
        source.write()
    source.stage()
    lake.applied(table.planned())
    merged = len(table.batches)
    for backfill in ("b1", "b2"):
        pinned = source.snapshot()
        for keys in (list(KEYS)[:7], list(KEYS)[7:]):
            source.read(backfill, keys)
            if backfill == "b1":
                for _ in range(4):
                    source.write()
        source.show_all()
        source.mark_late()
        source.stage([Sweep(backfill, str(pinned), 2)])
        (result,) = lake.applied(table.planned(merged))
        merged = len(table.batches)
    assert exactly(lake.current(table)) == table.expected(list(source.committed.values()))
    assert not any(row["_holes"] for row in lake.stored("current", table))
    inserted, _, _, overtaken = whole(result.chunks)
    assert (inserted, overtaken) == (0, 0)
    assert result.swept == {"b2": 0}


@pytest.mark.parametrize("width", thorough(17, 60, 300, 1600))
def test_the_stream_of_a_wide_table_with_truncates_equals_the_model(lake: Lake, width: int) -> None:
    rng = random.Random(width)
    table = wide_table(lake, "stream", width)
    state: dict[tuple[object, ...], Row] = {}
    history: list[tuple[str, Row]] = []
    for number in range(2):
        listed = list(random_changes(rng, state, 20, truncates=False))
        if number == 1:
            listed.insert(12, Change("truncate"))
            listed = listed[:13]  # what follows was drawn from rows that the truncate removes
        for change in listed:
            history += [(op, dict.fromkeys(TEXTS) | row) for op, row in apply(state, ("id",), change)]
        table.stage(listed[:7], listed[7:])
        lake.applied(table.planned(number))
    assert exactly(lake.current(table)) == table.expected(list(state.values()))
    narrow = [(op, {name: row[name] for name in TEXTS}) for op, row in lake.history(table)]
    assert narrow == history
    rows = [row for op, row in lake.history(table) if op in ("insert", "update")]
    assert exactly(rows) == table.expected([row for op, row in history if op in ("insert", "update")])


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
def test_a_wide_table_without_a_key_counts_its_copies(lake: Lake, width: int) -> None:
    """Rows that differ in nothing but the sign of a zero are two; then a chunk repairs what a hand had changed."""
    table = wide_table(lake, "bag", width, key=(), identity="full")
    rows: list[Row] = [{"id": n // 2, "n": n // 2, "body": "b", "note": None} for n in range(6)]
    table.stage([Change("insert", row) for row in rows])
    changed = {**rows[0], "n": 9}
    table.stage(
        [
            Change("update", changed, old=rows[0]),
            Change("delete", dict.fromkeys(TEXTS), old=rows[2]),
        ]
    )
    lake.applied(table.planned())
    there = [changed, rows[1], rows[3], rows[4], rows[5]]
    assert exactly(lake.current(table)) == table.expected(there)
    low, later = table.next_lsn(), 2**40
    read = [*there[1:], rows[5], {**changed, "note": "not in the stream"}]
    claim: Claim = table.stage_chunk("b1", "1-1", read, snapshot=f"{later}:{later}:", low=low)
    unseen = [(table.next_lsn(), later, [Change("insert", rows[0])])]
    claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()))
    table.stage_committed(unseen, (claim,))
    (result,) = lake.applied(table.planned(2))
    assert exactly(lake.current(table)) == table.expected([*read, rows[0]])
    assert whole(result.chunks) == (2, 1, 4, 0)
