"""Chunks whose files become files of history and current: when they may, when Spark has to read their rows, and what
becomes of the files. `test_chunks_as_by_spark` compares the rows."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import os
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.support import delta_files
from tests.support.merge_ways import leave_to_spark
from tests.target.conftest import Added, Folded
from tests.target.lake import PIPELINE, TEXTS, Lake, StagedTable, table_schema
from tests.target.test_values import delete, insert, update
from tests.target.whole_chunks import commit, full, marked, read, row_of
from tidemark import failpoints
from tidemark.formats.compaction_plan import CompactionPlan, Step
from tidemark.formats.manifest import Claim, Sweep
from tidemark.target import merge_choice, table_compaction
from tidemark.target.chunks import chunk_fold
from tidemark.target.chunks import first_load as first_load_of
from tidemark.target.delta import parquet_footer
from tidemark.target.driver import driver_memory, target_rows

driver = pytest.mark.parametrize("way", ["driver"], indirect=True)
pytestmark = driver


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
