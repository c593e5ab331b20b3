"""Chunks read beside writers, some of whose commits are not visible yet, against a model of the source.

In all tests but one each seed is a table: rows from before the stream, transactions that commit and become visible in
any order, chunks whose high watermark is late, batches and plans cut anywhere, truncates, keys that move. Whatever
happens, current ends equal to the source, and the last rows of history are current.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame

from tests.support.thorough import thorough
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.model import Change, Row
from tests.target.source import KEYS, Source
from tests.target.test_columns_come_and_go import called, numbered_schema, with_names
from tests.target.test_values import delete, move, update
from tidemark.formats.manifest import Claim, Sweep
from tidemark.formats.merge_result import TableResult
from tidemark.formats.snapshot import Snapshot
from tidemark.lsn import Lsn
from tidemark.target import merge_choice
from tidemark.target.chunks import first_load
from tidemark.target.spark import spark_chunk_merge
from tidemark.target.spark.spark_merge import Changes

SEEDS = range(1)
CHUNKS = 4


@dataclass
class Backfilled:
    """One table, and the backfill that goes on in it."""

    rng: random.Random
    table: StagedTable
    source: Source
    done: int = 0
    number: int = 0
    left: list[list[int]] = field(default_factory=list)
    pinned: Snapshot | None = None

    def begin(self) -> None:
        self.number += 1
        cuts = sorted(self.rng.sample(range(1, len(KEYS)), CHUNKS - 1))
        self.left = [list(KEYS)[a:b] for a, b in zip([0, *cuts], [*cuts, len(KEYS)], strict=True)]
        self.pinned = self.source.snapshot()

    @property
    def backfill(self) -> str:
        return f"b{self.number}"

    def happen(self, writes: int) -> None:
        """Some of everything, in any order."""
        acts = ["write"] * writes + ["show", "read", "mark", "stage"]
        self.rng.shuffle(acts)
        for act in acts:
            match act:
                case "write":
                    self.source.write()
                case "show":
                    self.source.show_some()
                case "read" if self.left:
                    self.source.read(self.backfill, self.left.pop(0))
                case "mark":
                    self.source.mark_late()
                case "stage":
                    self.stage()

    def stage(self) -> None:
        claims = [entry for entry in self.source.wal if isinstance(entry, Claim)]
        ends = bool(claims) and not self.left and not self.source.late and self.pinned is not None
        self.source.stage([Sweep(self.backfill, str(self.pinned), CHUNKS)] if ends else [])
        if ends:
            self.pinned = None

    def finish(self) -> None:
        self.source.show_all()
        while self.left:
            self.source.read(self.backfill, self.left.pop(0))
        self.source.mark_late()
        self.stage()


@pytest.mark.thorough
def test_the_text_of_a_value_that_does_not_fit_is_in_history_whatever_left_it_unchanged(lake: Lake) -> None:
    """The snapshot saw none of three transactions: 101 was merged before the chunk, 102 and 103 are merged with it,
    below and above its watermark. Of key 5, which 102 overtook, history has no `read` row."""
    table = lake.table(table_schema("unfit", TEXTS))
    low = table.next_lsn()
    applied = [update(1, "body"), update(2, body=None, text={"body": "newer"}), update(2, "body"), move(4, 3, "body")]
    table.stage_committed([(table.next_lsn(), 101, [delete(3), *applied])])
    lake.applied(table.planned())
    rows = [{"id": n, "n": 0, "body": None, "note": "c", "_text": [("body", f"of {n}")]} for n in range(1, 7)]
    claim = table.stage_chunk("b1", "1-1", rows, snapshot="100:100:", low=low)
    with_it = [(table.next_lsn(), 102, [update(5, "body")])]
    claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()))
    above = [(table.next_lsn(), 103, [update(6, "body", n=1)])]
    table.stage_committed([*with_it, *above], (claim,))
    lake.applied(table.planned(1))
    texts = [(r["_op"], r["id"], dict(r["_text"] or {}).get("body")) for r in lake.stored("history", table)]
    merged_before = [("delete", 3), ("update", 1), ("update", 2), ("update", 2), ("delete", 4), ("insert", 3)]
    assert [(op, key) for op, key, _ in texts[:6]] == merged_before
    assert [text for *_, text in texts[:6]] == [None, None, "newer", None, None, None]
    assert texts[6] == ("update", 5, "of 5")
    assert sorted(texts[7:-1]) == [("read", 1, "of 1"), ("read", 3, "of 4"), ("read", 6, "of 6")]
    assert texts[-1] == ("update", 6, "of 6")
    assert not any(r["_holes"] for r in lake.stored("current", table))


def _tables(lake: Lake, salt: int, seeds: range = SEEDS) -> list[Backfilled]:
    tables = []
    for seed in seeds:
        rng = random.Random(1000 * salt + seed)
        table = lake.table(table_schema(f"t{seed}", TEXTS))
        tables.append(Backfilled(rng, table, Source(rng, table)))
        tables[-1].source.fill(rng.choice([0, 5, 10]))
    return tables


def _merge(lake: Lake, tables: list[Backfilled]) -> list[TableResult]:
    with_work = [t for t in tables if t.done < len(t.table.batches)]
    results = lake.applied(*[t.table.planned(t.done) for t in with_work]) if with_work else []
    for table in with_work:
        table.done = len(table.table.batches)
    return results


def _check(lake: Lake, table: Backfilled, *, holes: bool = False) -> None:
    """Current equals the source, save for values that it says it lacks; history leads to current."""
    expected = {row["id"]: row for row in table.source.committed.values()}
    current = {row["id"]: row for row in lake.stored("current", table.table)}
    assert set(current) == set(expected)
    for key, row in current.items():
        lacking = row["_holes"] or []
        assert holes or not lacking
        assert all(row[name] is None for name in lacking)
        assert {n: row[n] for n in TEXTS if n not in lacking} == {
            n: expected[key][n] for n in TEXTS if n not in lacking
        }
    last: dict[int, Row] = {}
    for change in lake.stored("history", table.table):
        if change["_op"] == "truncate":
            last.clear()
        elif change["_op"] in ("delete", "sweep"):
            last.pop(change["id"], None)
        else:
            last[change["id"]] = {n: change[n] for n in TEXTS}
    assert last == {key: {n: row[n] for n in TEXTS} for key, row in current.items()}


@pytest.mark.thorough
def test_a_backfill_beside_writers_ends_equal_to_the_source(lake: Lake) -> None:
    tables = _tables(lake, 1)
    for table in tables:
        table.happen(2)
        table.begin()
    for _ in range(3):
        for table in tables:
            table.happen(5)
        _merge(lake, tables)
    for table in tables:
        table.finish()
    results = _merge(lake, tables)
    for table in tables:
        _check(lake, table, holes=True)
    # What moved behind the reader is read by the next backfill, which finds everything else as it is.
    for table in tables:
        table.begin()
        table.finish()
    results = _merge(lake, tables)
    for table, result in zip(tables, results, strict=True):
        _check(lake, table)
        assert sum(c.read for c in result.chunks) == len(table.source.committed)
        assert result.swept == {table.backfill: 0}
        repaired = sum(c.repaired for c in result.chunks)
        assert (result.rows["history"], result.rows["inserted"], result.rows["deleted"]) == (repaired, 0, 0)


@pytest.mark.thorough
def test_a_backfill_of_one_column_beside_writers_leaves_the_others_as_they_are(lake: Lake) -> None:
    """Rows whose key no change touches, and those under changes that their snapshot saw, did not see, or that were
    merged before; keys that move, unchanged values and truncates among them."""
    tables = _tables(lake, 5, range(3))
    for table in tables:
        columns = tuple(replace(c, attnum=n) for n, c in enumerate(table.table.schema.columns, 1))
        table.table.schema = replace(table.table.schema, columns=columns, published=(1, 2, 3, 4))
        table.begin()
        table.finish()
    _merge(lake, tables)
    for table in tables:
        for _ in range(3):
            table.source.write()
        table.source.rewrite("n")
        table.source.columns = ("n",)
        table.begin()
        table.pinned = None
    for _ in range(3):
        for table in tables:
            table.happen(4)
        _merge(lake, tables)
    for table in tables:
        table.finish()
    results = _merge(lake, tables)
    for table in tables:
        _check(lake, table)
    assert not any(c.lacking or c.inserted for result in results for c in result.chunks)


@pytest.mark.thorough
def test_rows_that_the_target_lacks_are_counted_and_not_made_of_one_column(lake: Lake) -> None:
    table = lake.table(table_schema("t", TEXTS))
    columns = tuple(replace(c, attnum=n) for n, c in enumerate(table.schema.columns, 1))
    table.schema = replace(table.schema, columns=columns, published=(1, 2, 3, 4))
    row = {"id": 1, "n": 0, "body": None, "note": "c"}
    table.stage([Change("insert", row), update(2, "body", n=1)])
    lake.applied(table.planned())
    read = [{"id": n, "n": 9, "body": None, "note": None} for n in (1, 2, 3)]
    claim = table.stage_chunk("b1", "1-1", read, snapshot=f"{2**40}:{2**40}:", low=table.next_lsn())
    table.stage_committed([], (replace(claim, watermark_lsn=Lsn(table.next_lsn()), columns=(2,)),))
    (result,) = lake.applied(table.planned(1))
    assert [(c.repaired, c.lacking, c.inserted) for c in result.chunks] == [(2, 1, 0)]
    rows = sorted(lake.stored("current", table), key=lambda row: row["id"])
    assert [(r["id"], r["n"], r["body"], r["note"], r["_holes"]) for r in rows] == [
        (1, 9, None, "c", None),
        (2, 9, None, "c", ["body"]),
    ]
    said = [(r["_op"], r["id"], r["n"], r["body"], r["_unchanged"]) for r in lake.stored("history", table)[-2:]]
    assert sorted(said) == [("read", 1, 9, None, ["note"]), ("read", 2, 9, None, ["body", "note"])]


@pytest.mark.parametrize("few_changes", [*thorough(0), 1000])
def test_many_rows_are_joined_without_sending_them_to_the_driver(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, few_changes: int
) -> None:
    """Whether the changes beside the chunks are few or many too: those may go to where the chunks' rows are."""
    monkeypatch.setattr(merge_choice, "UNCOMPILED_ROWS", -1)
    monkeypatch.setattr(spark_chunk_merge, "FEW_CHANGES", few_changes)
    plans: list[str] = []

    def keep(changes: Changes, frame: DataFrame) -> DataFrame:
        plans.append(frame._jdf.queryExecution().executedPlan().toString())
        return frame.persist()

    monkeypatch.setattr(Changes, "_computed_once", keep)
    (table,) = _tables(lake, 3, range(1))
    table.source.fill(12)
    table.begin()
    table.happen(8)
    table.finish()
    _merge(lake, [table])
    _check(lake, table, holes=True)
    placed = plans[0]
    assert "FileScan parquet" in placed
    broadcast = placed.count("BroadcastHashJoin")
    # The claims, twice: of the rows and of the keys; and the changes' keys where they are few.
    assert (broadcast, placed.count("SortMergeJoin")) == ((3, 1) if few_changes else (2, 1)), placed


def test_rows_that_came_back_unchanged_behind_a_truncate_are_there(lake: Lake) -> None:
    """The table left the publication behind its truncate and was filled again as it was; then it was backfilled."""
    table = lake.table(table_schema("t", TEXTS))
    filled = [{"id": key, "n": key, "body": None, "note": None} for key in (1, 2)]
    table.stage([Change("insert", row) for row in filled])
    lake.applied(table.planned())
    truncate, low = table.next_lsn(), table.next_lsn()
    before = Change("update", {**filled[0], "n": 7}), Change("update", filled[0])
    claim = table.stage_chunk("b1", "1-1", filled, snapshot="50:50:", low=low)
    claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()))
    table.stage_committed([(truncate, 10, [*before, Change("truncate")])], (claim,))
    (result,) = lake.applied(table.planned(1))
    assert lake.current(table) == filled
    assert [c.inserted for c in result.chunks] == [2]
    assert [op for op, _ in lake.history(table)][-3:] == ["truncate", "read", "read"]


def test_a_sweep_without_all_of_its_chunks_removes_nothing(lake: Lake) -> None:
    (table,) = _tables(lake, 2, range(1))
    table.source.fill(4)
    for _ in range(2):
        table.begin()
        table.finish()
        if not table.done:
            _merge(lake, [table])
    rows = lake.current(table.table)
    whole = table.table.batches[-1]
    table.table.batches[-1] = replace(whole, claims=whole.claims[1:])
    result = lake.apply(table.table.planned(table.done)).tables[0]
    assert result.error is not None
    assert result.error.kind == "ChunksMissing"
    assert lake.current(table.table) == rows


@pytest.mark.thorough
def test_a_chunk_of_a_table_that_holds_rows_looks_into_the_files_that_may_have_its_keys(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three files of current one is read for the chunk's keys, and searched by the MERGE."""
    monkeypatch.setattr(merge_choice, "UNCOMPILED_ROWS", -1)
    monkeypatch.setattr(first_load, "MAX_FILES", -1)
    table = lake.table(table_schema("t", TEXTS))
    for number in range(3):
        table.stage([Change("insert", {"id": 10 * number + n, "n": 0, "body": "b", "note": "c"}) for n in range(4)])
        lake.applied(table.planned(number))
    rows = [{"id": key, "n": int(key == 12), "body": "b", "note": "c", "_text": None} for key in (10, 11, 12, 13, 14)]
    claim = table.stage_chunk("b1", "1-1", rows, snapshot=f"{2**40}:{2**40}:", low=table.next_lsn())
    table.stage_committed([], (replace(claim, watermark_lsn=Lsn(table.next_lsn())),))
    looked: list[int] = []
    with_narrow_target = spark_chunk_merge.KeyedChunkChanges._add_verdicts

    def spied(changes: spark_chunk_merge.KeyedChunkChanges) -> Any:
        assert changes._target_rows is not None
        looked.append(len(changes._target_rows.inputFiles()))
        return with_narrow_target(changes)

    monkeypatch.setattr(spark_chunk_merge.KeyedChunkChanges, "_add_verdicts", spied)
    (result,) = lake.applied(table.planned(3))
    assert [(c.inserted, c.repaired, c.unchanged) for c in result.chunks] == [(1, 1, 3)]
    assert looked == [1]
    assert {row["id"]: row["n"] for row in lake.current(table) if row["n"]} == {12: 1}
    assert len(lake.current(table)) == 13
    merged = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.path('current', table)}` LIMIT 1").collect()[0]
    assert merged["operation"] == "MERGE"
    assert (
        "BETWEEN" in merged["operationParameters"]["predicate"].upper()
        or ">=" in merged["operationParameters"]["predicate"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("names", [*thorough({"id": "ident"}), {"id": "n", "n": "id"}], ids=["renamed", "exchanged"])
def test_a_chunk_from_before_its_key_was_renamed_finds_its_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, names: dict[str, str]
) -> None:
    """Two chunks of one plan, of a table that holds their rows: in the file of the first, the key's name of by now is
    no column's, or that of another column, between whose values no key lies."""
    monkeypatch.setattr(merge_choice, "UNCOMPILED_ROWS", -1)
    table = lake.table(numbered_schema("t"))
    rows = [{"id": key, "n": 1000 + key, "body": "b", "note": "c"} for key in range(1, 7)]
    table.stage([Change("insert", row) for row in rows])
    lake.applied(table.planned())
    for number, some in enumerate((rows[:4], rows[4:])):
        if number:
            with_names(table, names)
        read = [{**called(row, names if number else {}), "note": "d", "_text": None} for row in some]
        claim = table.stage_chunk("b1", f"1-{number}", read, snapshot=f"{2**40}:{2**40}:", low=table.next_lsn())
        table.stage_committed([], (replace(claim, watermark_lsn=Lsn(table.next_lsn())),))
    (result,) = lake.applied(table.planned(1))
    assert [(c.inserted, c.repaired) for c in result.chunks] == [(0, 4), (0, 2)]
    assert lake.current(table) == [{**called(row, names), "note": "d"} for row in rows]
