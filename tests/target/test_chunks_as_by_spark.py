"""Chunks whose files become files of history and current give the same tables as chunks whose rows Spark reads: the
same rows, metadata columns and counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import functions as F

from tests.support.merge_ways import leave_to_spark
from tests.target.conftest import Added, Folded
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema, with_columns
from tests.target.model import Change
from tests.target.source import KEYS, Source
from tests.target.test_columns_come_and_go import numbered_schema, with_names
from tests.target.test_values import delete, insert, move, update
from tests.target.whole_chunks import commit, full, marked, read, row_of
from tidemark.formats.manifest import Sweep
from tidemark.formats.merge_result import TableResult
from tidemark.schema.table import TableSchema
from tidemark.target.chunks import chunk_equality
from tidemark.target.chunks import first_load as first_load_of

driver = pytest.mark.parametrize("way", ["driver"], indirect=True)
pytestmark = driver

Act = Callable[[Lake, StagedTable], None]
Story = Callable[[StagedTable], Iterator[Act | None]]


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
    """The snapshot saw changes of rows 2, 3 and 4. Row 3 of the chunk has another value. Row 4 was deleted before."""
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
