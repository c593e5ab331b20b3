"""Chunks whose files become files of history and current: the same rows, with all that stands beside them, the same
counts, as where Spark reads every row of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.support import delta_files
from tests.support.merge_ways import leave_to_spark
from tests.target.lake import PIPELINE, TEXTS, Lake, StagedTable, table_schema, with_columns
from tests.target.model import Change, Row
from tests.target.source import KEYS, Source
from tests.target.test_columns_come_and_go import numbered_schema, with_names
from tests.target.test_values import delete, insert, move, update
from tidemark import failpoints
from tidemark.formats.compaction_plan import CompactionPlan, Step
from tidemark.formats.manifest import Claim, Sweep
from tidemark.formats.merge_result import TableResult
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.target import merge_choice, table_compaction
from tidemark.target.chunks import chunk_equality, chunk_fold
from tidemark.target.chunks import first_load as first_load_of
from tidemark.target.chunks.first_load import FirstLoad
from tidemark.target.delta import parquet_footer
from tidemark.target.driver import driver_memory, target_rows
from tidemark.target.table_merge import TableMerge

driver = pytest.mark.parametrize("way", ["driver"], indirect=True)
pytestmark = driver

Added = list[tuple[str, int | None]]


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    """Per merge of a table how many rows of chunks were added as they are; None if all went through Spark."""
    done: Added = []
    original = TableMerge._chunks

    def spied(own: TableMerge, *given: Any) -> Any:
        load, equal = original(own, *given)
        done.append((own.schema.table.name, None if load is None else load.rows))
        return load, equal

    monkeypatch.setattr(TableMerge, "_chunks", spied)
    return done


Folded = list[tuple[str, int | None]]


@pytest.fixture(autouse=True)
def folded(monkeypatch: pytest.MonkeyPatch) -> Folded:
    """Per merge with rows of chunks that changes have too, how many of them the driver folded; None: Spark did."""
    done: Folded = []
    original = TableMerge._by_driver

    def spied(own: TableMerge, batches: Any, tables: Any, load: FirstLoad | None, ahead: Any) -> Any:
        changes = original(own, batches, tables, load, ahead)
        if load is not None and load.masked:
            done.append((own.schema.table.name, None if changes is None else load.masked))
        return changes

    monkeypatch.setattr(TableMerge, "_by_driver", spied)
    return done


Act = Callable[[Lake, StagedTable], None]
Story = Callable[[StagedTable], Iterator[Act | None]]


def full(key: Any, **values: Any) -> Row:
    """A chunk's row."""
    return {"id": key, "n": 0, "body": f"body of {key}", "note": "c", "_text": None, **values}


def read(table: StagedTable, number: str, rows: Sequence[Row], snapshot: str = "100:100:") -> Claim:
    return table.stage_chunk("b1", number, rows, snapshot=snapshot, low=table.next_lsn())


def marked(table: StagedTable, claim: Claim) -> Claim:
    return replace(claim, watermark_lsn=Lsn(table.next_lsn()))


def commit(table: StagedTable, xid: int, *changes: Change) -> tuple[int, int, list[Change]]:
    return table.next_lsn(), xid, list(changes)


def unseen(table: StagedTable) -> Iterator[None]:
    """Changes that the snapshot did not see, of keys in the middle of the file: applied before, and within the window,
    and above it; the other rows stay as they are. The last chunk is empty."""
    table.stage_committed([commit(table, 101, update(5, n=50), delete(6))])
    yield
    claim = read(table, "1-1", [full(key) for key in range(1, 10)])
    within = commit(table, 102, update(3, n=30), delete(7))
    claim = marked(table, claim)
    above = commit(table, 103, update(4, "body", n=40), delete(8), insert(20))
    table.stage_committed([within, above], (claim,))
    yield
    last = marked(table, read(table, "1-2", [], "104:104:"))
    table.stage_committed([commit(table, 105, update(1, n=10))], (last,), (Sweep("b1", "90:90:", 2),))
    yield


def moves(table: StagedTable) -> Iterator[None]:
    """Keys that leave a range and come into another one meanwhile, with a value that was not sent."""
    first = read(table, "1-1", [full(key) for key in range(1, 7)])
    out = commit(table, 101, move(2, 9, "body", n=1))
    table.stage_committed([out], (marked(table, first),))
    yield
    second = read(table, "2-1", [full(key) for key in (7, 8, 10, 11, 12)] + [full(9, body="body of 2")], "102:102:")
    into = commit(table, 103, delete(3), move(11, 3, "body", n=3))
    second = marked(table, second)
    table.stage_committed([into, commit(table, 104, move(1, 30))], (second,), (Sweep("b1", "90:90:", 2),))
    yield


def stranger(table: StagedTable) -> Iterator[Act | None]:
    """Somebody appended rows: of a key of the chunk, and of one that the sweep finds; one has no bounds in the log."""
    table.stage_committed([commit(table, 50, insert(30), insert(3))])
    yield None

    def append(lake: Lake, own: StagedTable) -> None:
        row = lake.read("current", own).where("id = 3").withColumns({"id": F.lit(2), "n": F.lit(99)})
        row.union(row.withColumn("id", F.lit(40))).coalesce(1).write.format("delta").mode("append").save(
            lake.path("current", own)
        )

    yield append
    rows = [full(1), full(2), full(3, body="b")]
    table.stage_committed([], (marked(table, read(table, "1-1", rows)),))
    yield None
    last = marked(table, read(table, "1-2", [full(50), full(51)]))
    table.stage_committed([], (last,), (Sweep("b1", "90:90:", 2),))
    yield None


def two_at_once(table: StagedTable) -> Iterator[None]:
    """Two chunks of one plan and no change: each row has its own chunk's watermark."""
    first = marked(table, read(table, "1-1", [full(key) for key in range(5)]))
    second = marked(table, read(table, "2-1", [full(key, _text=[("note", f"{key}!")]) for key in range(5, 8)]))
    table.stage_committed([], (first, second), (Sweep("b1", "90:90:", 2),))
    yield
    table.stage_committed([commit(table, 110, delete(3), update(6, "body"))])
    yield


def begun_before(table: StagedTable) -> Iterator[None]:
    """Rows are there from changes that the snapshot saw, of which one differs; one key was removed before."""
    table.stage_committed([commit(table, 50, insert(2), insert(3), insert(4), delete(4))])
    yield
    rows = [full(1), full(2, body="b"), full(3, n=7), full(9)]
    table.stage_committed([], (marked(table, read(table, "1-1", rows)),), (Sweep("b1", "90:90:", 1),))
    yield


def of_two_columns(table: StagedTable) -> Iterator[None]:
    """The key is a text and a number: of both a change has values, but not together."""
    rows = [full(n, note=text) for n in (1, 2, 3) for text in ("a", "b", "ä")]
    claim = read(table, "1-1", rows)
    there = commit(table, 101, update(2, note="ä", n=5), Change("delete", {**delete(3).row, "note": "a"}))
    table.stage_committed([there], (marked(table, claim),), (Sweep("b1", "90:90:", 1),))
    yield


def of_an_older_shape(table: StagedTable) -> Iterator[None]:
    """A column was added behind the chunk: nothing is taken as it is."""
    claim = marked(table, read(table, "1-1", [full(1), full(2)]))
    table.stage_committed([], (claim,))
    table.schema = with_columns(table.schema, {"later": "int"})
    row = {**insert(7).row, "later": 7}
    table.stage_committed([commit(table, 105, Change("insert", row))], (), (Sweep("b1", "90:90:", 1),))
    yield


def exchange(table: StagedTable, one: str, other: str) -> None:
    """Two columns exchange their names."""
    with_names(table, {one: other, other: one})


def row_of(table: StagedTable, key: int, n: int, **values: Any) -> Row:
    """A row of a table whose first two columns were `id` and `n`, whatever they are called."""
    names = [column.name for column in table.schema.columns[:2]]
    return {**full(key), **dict(zip(names, (key, n), strict=True)), **values}


def exchanged_behind(table: StagedTable) -> Iterator[None]:
    """Two columns exchange their names behind the chunk, before it is merged into a table that is new."""
    rows = [full(key, body=f"body of {key}", note=f"note of {key}") for key in range(1, 5)]
    table.stage_committed([], (marked(table, read(table, "1-1", rows)),), (Sweep("b1", "90:90:", 1),))
    exchange(table, "body", "note")
    table.stage_committed([commit(table, 105, insert(7))])
    yield


def exchanged_before(table: StagedTable) -> Iterator[None]:
    """The key exchanges its name with another column before the chunk; the changes of the plan are from before that."""
    table.stage_committed([commit(table, 50, insert(1, n=3), insert(2, n=4), insert(3, n=9))])
    exchange(table, "id", "n")
    rows = [row_of(table, 1, 3), row_of(table, 2, 4), row_of(table, 3, 9), row_of(table, 5, 7)]
    table.stage_committed([], (marked(table, read(table, "1-1", rows)),), (Sweep("b1", "90:90:", 1),))
    yield


STORIES: dict[str, tuple[Story, list[int | None]]] = {
    "unseen": (unseen, [None, 3, 0]),
    "moves": (moves, [5, 4]),
    "stranger": (stranger, [None, 1, None]),
    "two_at_once": (two_at_once, [8, None]),
    "begun_before": (begun_before, [None, 2]),
    "of_two_columns": (of_two_columns, [7]),
    "of_an_older_shape": (of_an_older_shape, [None]),
    "exchanged_behind": (exchanged_behind, [None]),
    "exchanged_before": (exchanged_before, [None]),
}


def schema_of(name: str) -> TableSchema:
    if name.startswith("exchanged"):
        return numbered_schema(name)
    return table_schema(name, TEXTS, ("note", "id") if name == "of_two_columns" else ("id",))


@dataclass
class Twin:
    """One table in two lakes: in one chunks are added as they are, in the other Spark reads them."""

    mine: StagedTable
    sparks: StagedTable
    done: int = 0
    results: list[tuple[TableResult, TableResult]] = field(default_factory=list)


class BothWays:
    def __init__(self, lake: Lake, patch: pytest.MonkeyPatch) -> None:
        self.lake = lake
        self.spark = Lake(lake.spark, lake.root.parent / "spark")
        self.patch = patch

    def twin(self, schema: TableSchema) -> Twin:
        return Twin(self.lake.table(schema), self.spark.table(schema))

    def merge(self, twins: Sequence[Twin]) -> None:
        twins = [t for t in twins if len(t.mine.batches) > t.done]
        if not twins:
            return
        mine = self.lake.applied(*[t.mine.planned(t.done) for t in twins])
        with self.patch.context() as patched:
            patched.setattr(first_load_of, "MAX_FILES", -1)
            patched.setattr(chunk_equality, "MAX_FILES", -1)
            leave_to_spark(patched)
            sparks = self.spark.applied(*[t.sparks.planned(t.done) for t in twins])
        for twin, *results in zip(twins, mine, sparks, strict=True):
            twin.done = len(twin.mine.batches)
            assert said(results[0]) == said(results[1]), twin.mine.id
        for twin in twins:
            for step in ("current", "history"):
                assert stored(self.lake, step, twin.mine) == stored(self.spark, step, twin.sparks), twin.mine.id


def said(result: TableResult) -> tuple[Any, ...]:
    counts = {what: count for what, count in result.rows.items() if count}
    holes = result.holes and (result.holes.columns, sorted(result.holes.keys))
    return counts, result.chunks, result.swept, holes


def stored(lake: Lake, step: str, table: StagedTable) -> list[str]:
    return sorted(str(sorted(row.items())) for row in lake.stored(step, table))


@pytest.mark.thorough
def test_rows_are_those_that_spark_would_have_written(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    ways = BothWays(lake, monkeypatch)
    twins = {name: ways.twin(schema_of(name)) for name in STORIES}
    told = {
        name: [story(twin.mine), story(twin.sparks)] for name, twin in twins.items() for story, _ in [STORIES[name]]
    }
    while told:
        for name in list(told):
            acts = [next(story, "end") for story in told[name]]
            if acts[0] == "end":
                del told[name]
            elif callable(acts[0]) and callable(acts[1]):
                acts[0](ways.lake, twins[name].mine)
                acts[1](ways.spark, twins[name].sparks)
        ways.merge(list(twins.values()))
    for name, (_, expected) in STORIES.items():
        assert [rows for table, rows in added if table == name][::2] == expected, name


def first_load(lake: Lake, rows: int = 6) -> StagedTable:
    """Two chunks with their sweep, a change that the first did not see, and a key that is new."""
    table = lake.table(table_schema("t", TEXTS))
    first = read(table, "1-1", [full(key) for key in range(rows // 2)])
    change = commit(table, 101, update(1, n=10), insert(100))
    second = read(table, "2-1", [full(key) for key in range(rows // 2, rows)], "102:102:")
    chunks = marked(table, first), marked(table, second)
    table.stage_committed([change], chunks, (Sweep("b1", "90:90:", 2),))
    return table


def check(lake: Lake, table: StagedTable, rows: int = 6) -> None:
    """The first load's rows, each once, in both tables, as Spark reads them too."""
    expected = {**dict.fromkeys(range(rows), 0), 1: 10, 100: 0}
    assert sorted((r["id"], r["n"]) for r in lake.stored("current", table)) == sorted(expected.items())
    assert sorted((r.id, r.n) for r in lake.read("current", table).collect()) == sorted(expected.items())
    said = sorted((r["_op"], r["id"]) for r in lake.stored("history", table))
    reads = [("read", key) for key in range(rows) if key != 1]
    assert said == [("insert", 100), *reads, ("update", 1)]
    assert sorted((r["_op"], r["id"]) for r in lake.read("history", table).collect()) == said


def test_of_rows_that_spark_folds_the_driver_sees_the_keys_alone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    """They may be as large as they like."""
    columns: list[list[str]] = []
    classic = type(lake.spark.range(1))
    to_arrow = classic.toArrow

    def spied(frame: DataFrame) -> Any:
        columns.append(frame.columns)
        return to_arrow(frame)

    table = first_load(lake)
    monkeypatch.setattr(classic, "toArrow", spied)
    leave_to_spark(monkeypatch)
    lake.applied(table.planned())
    assert added == [("t", 5)]
    assert columns == [["id", "_op"]]
    check(lake, table)


def test_a_first_load_reads_as_many_keys_of_current_as_any_merge(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    table = first_load(lake)
    lake.applied(table.planned())
    chunk = read(table, "3-1", [full(200)], "102:102:")
    change = commit(table, 103, update(1, n=11))
    table.stage_committed([change], (marked(table, chunk),))
    monkeypatch.setattr(target_rows, "MAX_KEY_BYTES", 0)
    (result,) = lake.applied(table.planned(1))
    assert "more keys than the driver reads" in result.why["chunks"]


@pytest.mark.parametrize("held", ["current's keys", "the chunks' keys"])
def test_rows_of_other_writers_are_found_among_the_chunks(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added, held: str
) -> None:
    """Current has two files in the chunks' ranges that are of changes, one of them with a masked row."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage_committed([commit(table, 101, *(insert(key) for key in range(4)))])
    table.stage_committed([commit(table, 102, delete(2), insert(7))])
    lake.applied(table.planned(0, 1))
    lake.applied(table.planned(1, 2))
    if held == "the chunks' keys":
        monkeypatch.setattr(first_load_of, "MAX_KEYS", 0)
        monkeypatch.setattr(target_rows.TargetRows, "keys", None)
    chunks = [
        marked(table, read(table, "1-1", [row_of(table, 1, 0), full(5)], "103:103:")),
        marked(table, read(table, "2-1", [full(6), row_of(table, 7, 0), full(2)], "103:103:")),
    ]
    table.stage_committed([], tuple(chunks))
    lake.applied(table.planned(2))
    assert added == [("t", None), ("t", None), ("t", 2)]
    assert sorted(row["id"] for row in lake.stored("current", table)) == [0, 1, 2, 3, 5, 6, 7]


def test_a_chunk_that_has_a_key_twice_masks_no_other_key(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a corrupt index at the source gives it. By their places, 7 would not be found, and be there twice."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage_committed([commit(table, 101, insert(7))])
    lake.applied(table.planned())
    monkeypatch.setattr(first_load_of, "MAX_KEYS", 0)
    chunk = marked(table, read(table, "1-1", [full(5), full(5), full(6), row_of(table, 7, 0), full(8)], "103:103:"))
    table.stage_committed([], (chunk,))
    result = lake.apply(table.planned(1)).tables[0]
    assert "a key twice" in result.why["chunks"]
    assert [row["id"] for row in lake.stored("current", table)].count(7) == 1


@pytest.mark.parametrize(
    ("module", "limit", "said"),
    [
        (first_load_of, "MAX_CHANGES", "changes may have keys of the chunks"),
        (first_load_of, "MAX_SOUGHT_BYTES", "the keys of the changes are too large"),
        (chunk_fold, "MAX_TOUCHED_CHANGES", "rows of chunks have 1 change"),
    ],
)
def test_more_changes_than_the_driver_holds_are_left_to_spark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, said: str
) -> None:
    table = first_load(lake)
    monkeypatch.setattr(module, limit, 0)
    (result,) = lake.applied(table.planned())
    assert said in "; ".join(result.why.values())
    check(lake, table)


def test_a_sweep_that_looks_for_many_rows_is_left_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Current has five rows from before the backfill. The source has four of them."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage_committed([commit(table, 101, *(insert(key) for key in range(5)))])
    lake.applied(table.planned())
    monkeypatch.setattr(first_load_of, "MAX_UNSPARED", 4)
    chunk = marked(table, read(table, "1-1", [*(full(key) for key in range(4)), full(9)], "103:103:"))
    table.stage_committed([], (chunk,), (Sweep("b1", "102:102:", 1),))
    (result,) = lake.applied(table.planned(1))
    assert "no change that spares them" in result.why["chunks"]
    assert result.swept == {"b1": 1}
    assert sorted(row["id"] for row in lake.stored("current", table)) == [0, 1, 2, 3, 9]


def test_chunks_of_which_many_rows_are_there_are_not_searched_to_their_end(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    """Three rows of each of three chunks are there; the second chunk exceeds the limit."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage_committed([commit(table, 101, *(insert(key) for key in range(9)))])
    lake.applied(table.planned())
    monkeypatch.setattr(first_load_of, "GROUP_ROWS", 1)
    monkeypatch.setattr(first_load_of, "MAX_MASKED", 5)
    searched: list[int] = []
    mask = first_load_of._FirstLoadSearch._mask
    monkeypatch.setattr(
        first_load_of._FirstLoadSearch, "_mask", lambda self, group, *of: searched.append(mask(self, group, *of))
    )
    chunks = [
        marked(
            table, read(table, f"{n}-1", [full(10 + n), *(row_of(table, 3 * n + m, 0) for m in range(3))], "103:103:")
        )
        for n in range(3)
    ]
    table.stage_committed([], tuple(chunks))
    (result,) = lake.applied(table.planned(1))
    assert "many of their keys are there already" in result.why["chunks"]
    assert len(searched) == 2
    assert sorted(row["id"] for row in lake.stored("current", table)) == [*range(9), 10, 11, 12]


@pytest.mark.parametrize("is_at_source", [True, False])
def test_a_masked_row_hides_no_row_of_another_row_group_from_a_sweep(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added, is_at_source: bool
) -> None:
    """The key 305 has the number in its row group that the deleted key 5 has in the file."""
    monkeypatch.setattr(pq, "write_table", _in_many_groups(pq.write_table))
    table = lake.table(table_schema("t", TEXTS))
    table.stage_committed([commit(table, 101, *(insert(key) for key in range(600)))])
    lake.applied(table.planned())
    table.stage_committed([commit(table, 102, delete(5))])
    lake.applied(table.planned(1, 2))
    keys = [key for key in range(601) if key != 5 and (is_at_source or key != 305)]
    chunk = marked(table, read(table, "1-1", [row_of(table, key, 0) for key in keys], "104:104:"))
    table.stage_committed([], (chunk,), (Sweep("b1", "103:103:", 1),))
    (result,) = lake.applied(table.planned(2))
    assert added[-1] == ("t", 1 if is_at_source else None)
    assert result.swept == {"b1": 0 if is_at_source else 1}
    assert sorted(row["id"] for row in lake.stored("current", table)) == keys


def test_many_rows_that_changed_meanwhile_are_folded_for_one_table_at_a_time(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, folded: Folded
) -> None:
    table = first_load(lake)
    monkeypatch.setattr(chunk_fold, "FEW", dataclasses.replace(merge_choice.FEW, rows=0))
    monkeypatch.setattr(driver_memory, "WAIT_S", 0.0)
    driver_memory.reserve()  # as another table has it
    try:
        lake.applied(table.planned())
    finally:
        driver_memory.free()
    assert folded == [("t", None)]
    check(lake, table)
    driver_memory.reserve()
    driver_memory.free()


def test_rows_too_large_for_the_driver_go_through_spark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    table = first_load(lake)
    monkeypatch.setattr(first_load_of, "MAX_MASKED_BYTES", 10)
    lake.applied(table.planned())
    assert added == [("t", None)]
    check(lake, table)


def test_rows_that_are_all_there_are_proven_and_not_folded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = first_load(lake)
    lake.applied(table.planned())
    monkeypatch.setattr(first_load_of, "MAX_PRESENT", 2)
    rows = [{name: row[name] for name in TEXTS} | {"_text": None} for row in lake.stored("current", table)]
    claim = marked(table, table.stage_chunk("b2", "3-1", rows, snapshot="200:200:", low=table.next_lsn()))
    table.stage_committed([], (claim,), (Sweep("b2", "190:190:", 1),))
    (result,) = lake.applied(table.planned(1))
    assert result.way["chunks"] == "proof", result.why
    assert (result.chunks[0].unchanged, result.swept) == (len(rows), {"b2": 0})
    check(lake, table)


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_key_that_became_a_moment_is_the_day_that_it_was(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added, by_spark: bool
) -> None:
    """Changes of before and chunks of afterwards in one plan."""
    if by_spark:
        leave_to_spark(monkeypatch)
    days = [dt.datetime(2024, 1, day) for day in (1, 2, 3)]
    table = lake.table(table_schema("t", {**TEXTS, "id": "date"}))
    table.stage_committed([commit(table, 101, insert(days[0].date()), update(days[1].date(), n=5))])
    moments = table_schema("t", {**TEXTS, "id": "timestamp_ntz"}, version=2)
    table.schema = moments
    claim = marked(table, read(table, "1-1", [full(days[1], n=5), full(days[2])], "102:102:"))
    table.stage_committed([], (claim,), (Sweep("b1", "90:90:", 1),))
    lake.applied(table.planned())
    assert sorted((r["id"], r["n"]) for r in lake.stored("current", table)) == [
        (days[0], 0),
        (days[1], 5),
        (days[2], 0),
    ]


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param("merge.before_history", marks=pytest.mark.thorough),
        "merge.after_history",
        pytest.param("merge.before_current", marks=pytest.mark.thorough),
    ],
)
def test_a_merge_that_died_is_repeated(lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added, reached: str) -> None:
    table = first_load(lake)

    def dies(name: str) -> None:
        if name == reached:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", dies)
        with pytest.raises(KeyboardInterrupt):
            lake.apply(table.planned())
    (result,) = lake.applied(table.planned())
    check(lake, table)
    assert [(c.read, c.inserted, c.overtaken) for c in result.chunks] == [(3, 2, 1), (3, 3, 0)]
    assert result.swept == {"b1": 0}
    (again,) = lake.applied(table.planned())
    assert (again.rows, again.chunks) == ({}, ())
    assert added == [("t", 5), ("t", 5)]


def test_somebody_elses_commit_in_between_is_read_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    """Rows of a key that was to be added, and of another: the one is repaired, the other swept, as Spark does it."""
    table = first_load(lake)
    original = failpoints.reach

    def appends(name: str) -> None:
        original(name)
        if name == "merge.before_current" and len(added) == 1:
            there = lake.read("history", table).where("_op = 'read' AND id IN (0, 2)")
            own = there.withColumns({"n": F.lit(77), "id": F.expr("IF(id = 0, 0, 500)"), "_holes": F.lit(None)})
            shape = lake.read("current", table).schema
            row = own.select(*[F.col(f.name).cast(f.dataType) for f in shape.fields])
            row.write.format("delta").mode("append").save(lake.path("current", table))

    monkeypatch.setattr(failpoints, "reach", appends)
    (result,) = lake.applied(table.planned())
    assert added == [("t", 5), ("t", None)]
    assert sorted((r["id"], r["n"]) for r in lake.stored("current", table)) == [
        *[(0, 0), (1, 10)],
        *[(key, 0) for key in range(2, 6)],
        (100, 0),
    ]
    assert result.error is None


@pytest.mark.parametrize("what", ["flipped", "cut"])
def test_a_file_that_is_not_the_one_that_was_read_is_not_taken(lake: Lake, what: str) -> None:
    table = first_load(lake)
    (file,) = table.batches[0].claims[0].files
    path = lake.root / file.path
    content = bytearray(path.read_bytes())
    content[parquet_footer.read_footer(io.BytesIO(content), len(content)).body - 1] ^= 1  # of no column of the key
    path.write_bytes(content if what == "flipped" else content[:-20])
    result = lake.apply(table.planned()).tables[0]
    assert result.error is not None
    if what == "flipped":
        assert result.error.kind == "StagedFileDiffers"
    assert not lake.stored("history", table)
    assert not lake.stored("current", table)


def test_pages_stay_as_they_were_read_and_every_reader_finds_each_row_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    """Of many row groups, read in pieces that are smaller than one, masked by a vector that lies in a file."""
    monkeypatch.setattr(pq, "write_table", _in_many_groups(pq.write_table))
    rows = 3000
    table = lake.table(table_schema("t", TEXTS))
    first = read(table, "1-1", [full(key) for key in range(rows // 2)])
    second = read(table, "1-2", [full(key) for key in range(rows // 2, rows)])
    changed = sorted(random.Random(1).sample(range(rows), 900))
    changes = commit(table, 101, *[update(key, n=1) for key in changed])
    chunks = marked(table, first), marked(table, second)
    table.stage_committed([changes], chunks, (Sweep("b1", "90:90:", 2),))
    lake.applied(table.planned())
    assert added == [("t", rows - len(changed))]
    there = delta_files.read(Path(lake.path("current", table)))
    assert there is not None
    (name,) = [name for name, vector in there.files if vector is not None and vector["storageType"] == "u"]
    content = (there.path / name).read_bytes()
    for claim in chunks:
        (file,) = claim.files
        staged = (lake.root / file.path).read_bytes()
        assert staged[: parquet_footer.read_footer(io.BytesIO(staged), len(staged)).body] in content
    expected = [(key, int(key in set(changed)), int(c.watermark_lsn)) for c in chunks for key in _keys(lake, c)]
    for session in (lake.spark.newSession(), lake.spark.newSession()):
        session.conf.set("spark.sql.files.maxPartitionBytes", "6000")
        session.conf.set("spark.sql.files.openCostInBytes", "1")
        frame = session.read.format("delta").load(lake.path("current", table))
        assert frame.rdd.getNumPartitions() > 4
        there_now = sorted((r.id, r.n, r._commit_lsn if not r.n else None) for r in frame.collect())
        assert there_now == [(key, n, None if n else lsn) for key, n, lsn in expected]
        lake.spark.sql(f"OPTIMIZE delta.`{lake.path('current', table)}`")
        lake.spark.sql(f"DELETE FROM delta.`{lake.path('history', table)}` WHERE id = 5")
    history = lake.read("history", table).where("_op = 'read'")
    assert history.count() == rows - len(changed) - (5 not in changed)


def _in_many_groups(write: Any) -> Any:
    def write_table(rows: Any, where: Any, **options: Any) -> None:
        write(rows, where, **{"row_group_size": 300, **options})

    return write_table


def _keys(lake: Lake, claim: Claim) -> list[int]:
    (file,) = claim.files
    keys: list[int] = pq.read_table(lake.root / file.path)["id"].to_pylist()
    return keys


def _told_by_chance(lake: Lake, monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int], *, plain: bool = False) -> None:
    """One table per seed, all of them merged together."""
    ways = BothWays(lake, monkeypatch)
    twins = {seed: ways.twin(table_schema(f"s{seed}", TEXTS)) for seed in seeds}
    sources = {
        seed: [Source(random.Random(seed), table, truncates=False, plain=plain) for table in (twin.mine, twin.sparks)]
        for seed, twin in twins.items()
    }
    pinned = {seed: both[0].snapshot() for seed, both in sources.items()}
    for source in (s for both in sources.values() for s in both):
        source.fill(10)
    keys = list(KEYS)
    parts = [keys[:4], keys[4:5], keys[5:9], keys[9:]]
    for part in parts:
        for source in (s for both in sources.values() for s in both):
            if source.rng.random() < 0.6:
                source.write()
            source.show_some()
            source.read("b1", part)
            if source.rng.random() < 0.4:
                source.write()
            if source.rng.random() < 0.6:
                source.stage()
        chances = {seed: [source.rng.random() for source in both] for seed, both in sources.items()}
        ways.merge([twins[seed] for seed, (own, _) in chances.items() if own < 0.7])
    for seed, both in sources.items():
        for source in both:
            source.show_all()
            source.mark_late()
            source.stage([Sweep("b1", str(pinned[seed]), len(parts))])
    ways.merge(list(twins.values()))


def test_whatever_is_written_meanwhile_the_rows_are_the_same(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    _told_by_chance(lake, monkeypatch, [1])
    assert [rows for _, rows in added if rows], "nothing was added as it is"


def test_rows_that_changed_meanwhile_are_folded_by_the_driver(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, folded: Folded
) -> None:
    """As Spark folds them: the same rows, the same counts."""
    _told_by_chance(lake, monkeypatch, range(20, 22), plain=True)
    monkeypatch.setattr(first_load_of, "MAX_KEYS", 0)
    _told_by_chance(lake, monkeypatch, range(22, 24), plain=True)
    assert len(folded) > 4
    assert not [table for table, rows in folded if rows is None], "one was left to Spark"


@pytest.mark.thorough
def test_rows_that_changed_meanwhile_are_folded_by_the_driver_often(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, folded: Folded
) -> None:
    for first in range(100, 180, 10):
        monkeypatch.setattr(first_load_of, "MAX_KEYS", 5_000_000 if first < 140 else 0)
        _told_by_chance(lake, monkeypatch, range(first, first + 10), plain=True)
    assert not [table for table, rows in folded if rows is None], "one was left to Spark"


@pytest.mark.thorough
def test_whatever_is_written_meanwhile_the_rows_are_the_same_often(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, added: Added
) -> None:
    _told_by_chance(lake, monkeypatch, range(2, 16))
    assert len([rows for _, rows in added if rows]) > 20


def test_vacuum_spares_what_was_added_as_it_is_and_needs_no_chunk_any_more(
    lake: Lake, added: Added, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names are the driver's own, and it is older than any retention."""
    monkeypatch.setattr(table_compaction, "MANY_SMALL", {"history": 2, "current": 2})
    table = lake.table(table_schema("t", TEXTS))
    first = marked(table, read(table, "1-1", [full(key) for key in range(5)]))
    second = marked(table, read(table, "2-1", [full(key) for key in range(5, 8)]))
    table.stage_committed([], (first, second), (Sweep("b1", "90:90:", 2),))
    table.stage_committed([commit(table, 110, delete(3), update(6, "body"))])
    lake.applied(table.planned(0, 1))
    assert added == [("t", 8)]
    lake.applied(table.planned(1))
    for claim in (first, second):
        for chunk_file in claim.files:
            (lake.root / chunk_file.path).unlink()
    there = lake.current(table), lake.history(table)
    files = [file for step in ("history", "current") for file in Path(lake.path(step, table)).glob("*.parquet")]
    for file in files:
        os.utime(file, (file.stat().st_mtime - 30 * 86_400,) * 2)

    def keep_up(step: Step) -> None:
        plan = CompactionPlan("m1", PIPELINE, str(lake.root), step, (table.id,), 2, 7, thorough=True)
        assert [one.left for one in table_compaction.maintain_tables(lake.spark, plan).tables if one.left] == []

    keep_up("look")
    assert (lake.current(table), lake.history(table)) == there
    keep_up("current")
    for log in (lake.root / PIPELINE).rglob("_delta_log/*.json"):
        os.utime(log, (log.stat().st_mtime - 30 * 86_400,) * 2)
    keep_up("look")
    assert (lake.current(table), lake.history(table)) == there
