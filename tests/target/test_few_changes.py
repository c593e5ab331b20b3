"""What the driver folds is what Spark folds: the same rows with all that stands beside them, the same counts."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support import delta_files
from tests.support.merge_ways import leave_to_spark
from tests.support.thorough import thorough
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema, with_columns
from tests.target.model import Change, Key, Row, apply, random_changes
from tests.target.test_values import delete, insert, move, update
from tidemark.formats.merge_result import TableResult
from tidemark.schema.table import TableSchema
from tidemark.target import merge_choice
from tidemark.target.delta import data_files
from tidemark.target.delta.session import table_session
from tidemark.target.driver import driver_fold, small_files, target_rows
from tidemark.target.driver.text_pages import pages_of_texts
from tidemark.target.merge_choice import Step, Way
from tidemark.target.merge_record import MergeRecord

driver = pytest.mark.parametrize("way", ["driver"], indirect=True)
pytestmark = driver


@pytest.fixture(autouse=True)
def folded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Per table that was folded, whether the driver did it."""
    folds: list[bool] = []
    took = MergeRecord.took

    def spied(record: MergeRecord, step: Step, way: Way, why: str = "") -> None:
        if step == "changes":
            folds.append(way == Way.DRIVER)
        took(record, step, way, why)

    monkeypatch.setattr(MergeRecord, "took", spied)
    return folds


class BothWays:
    """A table staged twice, once for each way; `step` plans what was staged since."""

    def __init__(self, lake: Lake, schema: TableSchema, patch: pytest.MonkeyPatch) -> None:
        self.lake = lake
        self.spark = Lake(lake.spark, lake.root.parent / "spark")
        self.tables = lake.table(schema), self.spark.table(schema)
        self.done = 0
        self.patch = patch

    def stage(self, *transactions: list[Change]) -> None:
        for table in self.tables:
            table.stage(*transactions)

    def step(self) -> TableResult:
        mine, sparks = self.tables
        (result,) = self.lake.applied(mine.planned(self.done))
        with self.patch.context() as patched:
            leave_to_spark(patched)
            (other,) = self.spark.applied(sparks.planned(self.done))
        self.done = len(mine.batches)
        for step in ("history", "current"):
            assert _sorted(self.lake.stored(step, mine)) == _sorted(self.spark.stored(step, sparks)), step
        rows = {what: count for what, count in result.rows.items() if count}
        assert rows == {what: count for what, count in other.rows.items() if count}
        assert result.holes == other.holes
        return result


def _sorted(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.fixture
def both(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> BothWays:
    return BothWays(lake, table_schema("t", TEXTS), monkeypatch)


@pytest.mark.some(1)
@pytest.mark.parametrize("most", [small_files.MIN_SMALL_FILES, 1])
def test_random_changes_come_to_what_the_model_says(
    lake: Lake, folded: list[bool], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Ten tables, three plans each: keys deleted, used again, moved and swapped, values not sent, truncates; all files
    written anew by each merge, and several files, which are read as large ones: in pieces, beside each other."""
    monkeypatch.setattr(small_files, "MIN_SMALL_FILES", most)
    if most > 1:
        monkeypatch.setattr(target_rows, "BY_ONE_BYTES", 0)
        monkeypatch.setattr(target_rows, "PIECE_BYTES", 1)
    played = [(lake.table(table_schema(f"t{seed}", TEXTS)), random.Random(seed)) for seed in range(10)]
    states: list[dict[Key, Row]] = [{} for _ in played]
    histories: list[list[tuple[str, Row]]] = [[] for _ in played]
    merged = [0] * len(played)
    for _ in range(3):
        for (table, rng), state, history in zip(played, states, histories, strict=True):
            for _ in range(rng.randint(1, 3)):
                listed = list(random_changes(rng, state, rng.randint(1, 20)))
                for change in listed:
                    history += [(op, {n: row.get(n) for n in TEXTS}) for op, row in apply(state, ("id",), change)]
                table.stage(*_cut(rng, listed))
        lake.applied(*[table.planned(first) for (table, _), first in zip(played, merged, strict=True)])
        for (table, _), state, history in zip(played, states, histories, strict=True):
            assert lake.current(table) == [state[key] for key in sorted(state)]
            assert lake.history(table) == history
        merged = [len(table.batches) for table, _ in played]
    assert all(folded)


def _cut(rng: random.Random, listed: list[Change]) -> Iterator[list[Change]]:
    while listed:
        size = rng.randint(1, 5)
        yield listed[:size]
        listed = listed[size:]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *thorough(1)])
def test_random_changes_come_to_what_spark_says(both: BothWays, folded: list[bool], seed: int) -> None:
    rng, state = random.Random(100 + seed), dict[Key, Row]()
    for _ in range(3):
        listed = list(random_changes(rng, state, rng.randint(5, 25)))
        for change in listed:
            apply(state, ("id",), change)
        both.stage(*_cut(rng, listed))
        both.step()
    assert folded == [True, False] * 3


@pytest.mark.thorough  # the driver's cases of tests/target/test_values.py have them too
def test_holes_texts_and_values_before_a_truncate_are_those_of_spark(both: BothWays) -> None:
    text = Change("insert", insert(7).row, text={"n": "99999999999"})
    both.stage([insert(1), insert(2), text])
    both.step()
    # 8 and 9 were never there: their values are known nowhere, wherever the row goes.
    both.stage([update(1, "body"), update(8, "body"), move(9, 10, "body", "note"), update(10, "note")])
    result = both.step()
    assert result.holes is not None
    assert result.holes.columns == {"body": 1, "note": 1}
    both.stage([update(8, "body"), update(8, n=4), delete(10), insert(10), update(10, "body")])
    both.step()
    both.stage([update(1, "body"), Change("truncate"), insert(3), update(3, "note"), update(2, "body")])
    both.step()


@pytest.mark.thorough
def test_nan_is_found_above_all_numbers(lake: Lake, folded: list[bool]) -> None:
    """Spark passes over what a file's own bounds leave out."""
    table = lake.table(table_schema("t", {"id": "int", "d": "double", "f": "float"}))
    table.stage([Change("insert", {"id": n, "d": value, "f": value}) for n, value in enumerate((0.5, math.nan))])
    lake.applied(table.planned())
    for step in ("current", "history"):
        rows = lake.read(step, table)
        for condition in ("d > 1", "f > 1", "d = double('NaN')", "f >= float('NaN')"):
            assert [row.id for row in rows.where(condition).collect()] == [1], (step, condition)
    assert folded == [True]


@pytest.mark.thorough
def test_many_rows_of_a_file_are_masked_by_a_vector_beside_it(lake: Lake, spark: SparkSession) -> None:
    """Also a small vector is no line of the log. What a DELETE of Spark's had masked stays so; of a file that
    has no row left nothing stays."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(n) for n in range(4000)])
    lake.applied(table.planned())
    path = lake.path("current", table)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3")
    table.stage([update(n, "body", n=5) for n in range(0, 4000, 3)])
    (result,) = lake.applied(table.planned(1))
    assert result.rows == {"history": 1334, "inserted": 1, "updated": 1333, "deleted": 0}
    assert result.holes is not None
    assert result.holes.columns == {"body": 1}
    assert [v["storageType"] for _, v in _files(lake, table) if v] == ["u"]
    assert _by_spark(spark, path) == (4000, 1334)
    table.stage([delete(n) for n in range(4000) if n % 3])
    lake.applied(table.planned(2))
    assert len(_files(lake, table)) == 1  # the first file is gone
    assert _by_spark(spark, path) == (1334, 1334)
    table.stage([update(0, n=6)])
    lake.applied(table.planned(3))
    assert sorted(v["storageType"] for _, v in _files(lake, table) if v) == ["u"]
    assert _by_spark(spark, path) == (1334, 1333)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    table.stage([update(6, n=6)])
    lake.applied(table.planned(4))
    assert _by_spark(spark, path) == (1334, 1332)


def _files(lake: Lake, table: StagedTable) -> list[tuple[str, Any]]:
    there = delta_files.read(Path(lake.path("current", table)))
    assert there is not None
    return there.files


def _by_spark(spark: SparkSession, path: str) -> tuple[int, int]:
    (row,) = spark.sql(f"SELECT count(*) AS n, count_if(n = 5) AS fives FROM delta.`{path}`").collect()
    return row["n"], row["fives"]


KEYS = {
    "a": "bigint",
    "b": "string",
    "c": "date",
    "d": "timestamp",
    "e": "decimal(12,3)",
    "f": "binary",
    "g": "boolean",
}


def test_keys_of_every_type_that_the_driver_compares(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time beyond what Python has a date for is one that Arrow and Spark have."""
    schema = table_schema("t", {**KEYS, "n": "int"}, tuple(KEYS))
    both = BothWays(lake, schema, monkeypatch)
    day, noon = dt.date(2026, 1, 2), dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    values = [2**40, "é ", day, noon, Decimal("1.500"), b"\x00", False]
    others = [2**40 + 1, "e\u0301 ", dt.date(1, 1, 1), noon + dt.timedelta(microseconds=1), Decimal("1.501"), b"", True]
    rows = [dict(zip(KEYS, values, strict=True))]
    rows += [{**rows[0], name: other} for name, other in zip(KEYS, others, strict=True)]
    both.stage([Change("insert", {**row, "n": n}) for n, row in enumerate(rows)])
    both.step()
    both.stage([Change("update", {**rows[n], "n": 10 + n}) for n in (0, 2, 4, 6)])
    both.stage([Change("delete", {**rows[n], "n": None}) for n in (1, 3, 5, 7)])
    result = both.step()
    assert result.rows["updated"] == result.rows["deleted"] == 4


@pytest.mark.thorough
def test_a_column_that_was_added_is_known_to_be_nothing_in_older_files(both: BothWays) -> None:
    both.stage([insert(1), insert(2)])
    both.step()
    for table in both.tables:
        table.schema = with_columns(table.schema, {"later": "string"})
    late = [Change("update", {**update(1).row, "later": "x"}), Change("update", {**update(2).row}, ("later",))]
    both.stage(late)
    result = both.step()
    assert result.holes is None


def test_what_is_not_plain_is_left_to_spark(lake: Lake, spark: SparkSession, folded: list[bool]) -> None:
    floating = lake.table(table_schema("f", {"id": "double", "n": "int"}))
    mapped = lake.table(table_schema("m", {"id": "int", "a b": "int"}))
    for table, values in ((floating, {"id": 0.5, "n": 1}), (mapped, {"id": 1, "a b": 1})):
        table.stage([Change("insert", values)])
        lake.applied(table.planned())
    assert folded == [False, False]
    fed = lake.table(table_schema("cdf", TEXTS))
    fed.stage([insert(1)])
    lake.applied(fed.planned())
    current = lake.path("current", fed)
    spark.sql(f"ALTER TABLE delta.`{current}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    fed.stage([update(1, n=9)])
    lake.applied(fed.planned(1))
    assert folded == [False, False, True, False]
    assert [row["n"] for row in lake.current(fed)] == [9]


@pytest.mark.thorough
def test_a_day_that_another_writer_stored_by_the_julian_calendar_is_found(lake: Lake, spark: SparkSession) -> None:
    """Spark knows such a file by its footer; Arrow would read another day, and the row would stand there twice."""
    table = lake.table(table_schema("t", {"id": "date", "n": "int"}))
    days = [dt.date(year, 1, 1) for year in (1500, 2026)]
    for day in days:
        table.stage([Change("insert", {"id": day, "n": 0})])
        lake.applied(table.planned(len(table.batches) - 1))
    other = spark.newSession()
    other.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    other.sql(f"OPTIMIZE delta.`{lake.path('current', table)}`")
    table.stage([Change("update", {"id": day, "n": 1}) for day in days])
    lake.applied(table.planned(2))
    counts = spark.sql(f"SELECT n, count(*) AS rows FROM delta.`{lake.path('current', table)}` GROUP BY n").collect()
    assert [tuple(row) for row in counts] == [(1, 2)]


def test_what_a_row_has_in_a_column_that_is_not_of_the_source_stays(
    lake: Lake, spark: SparkSession, folded: list[bool]
) -> None:
    """Somebody added a column to current: an update leaves it alone."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(1), insert(2)])
    lake.applied(table.planned())
    current = lake.path("current", table)
    spark.sql(f"ALTER TABLE delta.`{current}` ADD COLUMNS (remark string)")
    spark.sql(f"UPDATE delta.`{current}` SET remark = 'kept'")
    table.stage([insert(3), delete(2)])
    lake.applied(table.planned(1))
    table.stage([update(1, n=9)])
    lake.applied(table.planned(2))
    stored = {row["id"]: (row["n"], row["remark"]) for row in lake.stored("current", table)}
    assert stored == {1: (9, "kept"), 3: (0, None)}
    assert folded == [True, True, False]


def test_rows_are_found_in_the_row_groups_that_may_have_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, folded: list[bool]
) -> None:
    """By the row groups' bounds, and by their numbers in the file, also those that are masked."""
    whole = partial(pq.write_table, row_group_size=4)
    monkeypatch.setattr(data_files.pq, "write_table", whole)
    both = BothWays(lake, table_schema("t", TEXTS), monkeypatch)
    both.stage([insert(n) for n in range(0, 24, 2)])
    both.step()
    read: list[int] = []
    count = target_rows.TargetRows._count

    def noted(target: Any, parquet: Any, only: int | None = None, bytes_as_one: int = 1) -> None:
        read.append(-1 if only is None else only)
        count(target, parquet, only, bytes_as_one)

    monkeypatch.setattr(target_rows.TargetRows, "_count", noted)
    both.stage([update(10, n=1), delete(8), insert(7, n=2)])  # 7 lies between two groups
    both.step()
    assert read == [1]
    both.stage([update(10, n=3), insert(8), update(22, "body"), delete(0)])
    both.step()
    assert folded == [True, False] * 3


def test_texts_in_files_of_spark_are_read_by_their_pages(lake: Lake) -> None:
    """Of unique texts Spark writes no dictionary, and a session of a table compresses as the driver does."""
    written = lake.root / "written"
    rows = table_session(lake.spark, "texts", str(lake.root)).range(0, 30_000, numPartitions=1)
    texts = rows.selectExpr("uuid() AS id")
    texts.withColumn("id", F.when(F.length("id") == 36, F.col("id"))).write.parquet(str(written))
    (file,) = written.glob("*.parquet")
    with open(file, "rb") as source:
        parquet = pq.ParquetFile(source)
        assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"
        assert parquet.schema.column(0).max_definition_level == 1
        pages = [page.copy() for page in pages_of_texts(source, parquet, 0, "id")]
    assert len(pages) > 1
    assert [bytes(text).decode() for page in pages for text in page] == pq.read_table(file)["id"].to_pylist()


def test_more_keys_than_the_driver_should_read_are_left_to_spark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, folded: list[bool]
) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(n) for n in range(50)])
    lake.applied(table.planned())
    monkeypatch.setattr(target_rows, "MAX_KEY_BYTES", 10)
    table.stage([update(90, n=1)])  # no file can have it, and none is read
    lake.applied(table.planned(1))
    table.stage([update(9, n=1)])
    lake.applied(table.planned(2))
    assert folded == [True, True, False]
    assert len(lake.current(table)) == 51


def in_folder(lake: Lake, table: StagedTable) -> list[str]:
    """The files of current's newest version."""
    current = delta_files.read(Path(lake.path("current", table)))
    assert current is not None
    return [name for name, _ in current.files]


def test_small_files_of_earlier_merges_become_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many merges there were, a merge finds a few small files; masked rows do not come back, and files that are
    another's, or larger, stay as they are."""
    monkeypatch.setattr(small_files, "MIN_SMALL_FILES", 4)
    monkeypatch.setattr(small_files, "SMALL_BYTES", 20_000)
    table = lake.table(table_schema("t", TEXTS))
    rng = random.Random(1)
    table.stage([insert(n, body=rng.randbytes(50).hex()) for n in range(1000, 2000)])
    lake.applied(table.planned())
    (large,) = in_folder(lake, table)
    state, counts = set(range(1000, 2000)), []
    for n in range(1, 24):
        table.stage([insert(n), update(1000 + n, "body", n=n), *([delete(n - 1)] if n % 3 == 0 else [])])
        state = (state | {n}) - ({n - 1} if n % 3 == 0 else set())
        lake.applied(table.planned(n))
        files = in_folder(lake, table)
        assert large in files
        counts.append(len(files) - 1)
    assert {row["id"] for row in lake.current(table)} == state
    assert [row["n"] for row in lake.current(table) if 1000 < row["id"] < 1024] == list(range(1, 24))
    assert counts[:9] == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert max(counts) <= 4


def test_small_files_of_large_rows_are_not_all_in_memory_at_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, folded: list[bool]
) -> None:
    """A text that says one thing often is small as it lies there; a hundred of such files may be a hundred megabytes
    each. What one merge takes of them is bounded, and they become fewer all the same."""
    monkeypatch.setattr(small_files, "MIN_SMALL_FILES", 4)
    monkeypatch.setattr(small_files, "MAX_DECODED", 25_000, raising=False)
    gathered: list[int] = []
    original = small_files.join_small_files

    def spied(*arguments: Any) -> small_files.SmallFiles:
        of = original(*arguments)
        gathered.append(of.rows.nbytes)
        return of

    monkeypatch.setattr(small_files, "join_small_files", spied)
    table = lake.table(table_schema("t", TEXTS))
    for n in range(7):
        table.stage([insert(n, body=f"{n}" * 10_000)])
        lake.applied(table.planned(n))
    assert [len(row["body"]) for row in lake.current(table)] == [10_000] * 7
    assert 20_000 < max(gathered) < 25_000
    assert len(in_folder(lake, table)) < 7
    assert all(folded)


def test_a_rival_that_rewrites_the_files_is_met(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are masked by their numbers in files: after any other commit the merge looks again."""
    table = lake.table(table_schema("t", TEXTS))
    for n in range(3):
        table.stage([insert(n)])
        lake.applied(table.planned(n))
    path = lake.path("current", table)
    pending = [
        f"OPTIMIZE delta.`{path}`",
        f"DELETE FROM delta.`{path}` WHERE id = 0",
        f"INSERT INTO delta.`{path}` (id) VALUES (7)",  # reads nothing, and is met all the same
    ]
    exchange = data_files.exchange

    tries = 0

    def overtaken(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        if pending:
            spark.sql(pending.pop())
        exchange(*arguments)

    monkeypatch.setattr(data_files, "exchange", overtaken)
    table.stage([update(1, n=5), delete(2)])
    lake.applied(table.planned(3))
    assert not pending
    assert tries == 4
    assert [(row["id"], row["n"]) for row in lake.current(table)] == [(1, 5), (7, None)]


def test_the_driver_costs_no_spark_job(lake: Lake, spark: SparkSession) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(n) for n in range(20)])
    lake.applied(table.planned())
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    table.stage([update(1, "body"), move(2, 22, "body"), delete(3), insert(30)])
    before = scheduler.numTotalJobs()
    lake.applied(table.planned(1))
    assert scheduler.numTotalJobs() == before


@pytest.mark.thorough
def test_values_that_would_fill_the_driver_are_filled_in_by_spark(
    both: BothWays, folded: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    both.stage([insert(1, body="x" * 1000), insert(2)])
    both.step()
    monkeypatch.setattr(driver_fold, "MAX_FILLED_BYTES", 10_000)
    both.stage([update(1, "body", n=n) for n in range(9)])
    both.step()
    both.stage([update(1, "body", n=n) for n in range(11)])
    both.step()
    assert folded == [True, False, True, False, False, False]


def test_changes_that_would_fill_the_driver_are_left_to_spark(
    both: BothWays, folded: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many files, each of which has room."""
    monkeypatch.setattr(merge_choice, "FEW", replace(merge_choice.FEW, decoded_bytes=20_000))
    for key in range(4):
        both.stage([insert(key, body=str(key) * 8000)])
    both.step()
    assert folded == [False, False]
