"""Compacted and cleaned tables hold the same rows in the same order, at the same positions, for merges and readers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from sandbox.services.postgres import wait_for
from tests.support.thorough import either, thorough
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.test_rivals import KEYED, _call_once, _expected, _found, _staged
from tests.target.test_values import delete, insert, update
from tidemark.formats.compaction_plan import CompactionPlan, Step, TableCompaction
from tidemark.target import table_compaction
from tidemark.target.delta import data_files, delta_tables

DAY_S = 86_400
BATCHES = [*KEYED, *([insert(n)] for n in (6, 7, 8))]


@pytest.fixture(autouse=True)
def few_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds for tables of four files."""
    monkeypatch.setitem(table_compaction.MANY_SMALL, "history", 3)
    monkeypatch.setitem(table_compaction.MANY_SMALL, "current", 3)
    monkeypatch.setattr(table_compaction, "LITTLE_BYTES", 0)


def keep_up(lake: Lake, step: Step, *tables: StagedTable, thorough: bool = False) -> list[TableCompaction]:
    plan = CompactionPlan("m1", "shop", str(lake.root), step, tuple(t.id for t in tables), 2, 7, thorough)
    assert CompactionPlan.from_json(plan.to_json()) == plan
    return list(table_compaction.maintain_tables(lake.spark, plan).tables)


def positions(lake: Lake, table: StagedTable) -> list[Any]:
    reached = []
    for step in ("history", "current"):
        pinned = delta_tables.pin(lake.spark, lake.path(step, table))
        reached.append(pinned.position(f"tidemark:shop:1:{table.id}:{step}"))
    return reached


def said(reports: list[TableCompaction]) -> list[tuple[str, int, bool, bool, str]]:
    return [(one.kind, one.files_after, one.compacted, one.due, one.left) for one in reports]


def test_upkeep_changes_neither_rows_nor_order_nor_positions(lake: Lake) -> None:
    table = _staged(lake.table(table_schema("t", TEXTS)), BATCHES)
    for number in range(len(BATCHES)):
        lake.applied(table.planned(number, number + 1))
    before, at = _found(lake, table), positions(lake, table)
    first = lake.read("history", table).count()
    dead, young = (Path(lake.path("history", table)) / f"{name}.parquet" for name in ("dead", "young"))
    for file in (dead, young):
        file.write_bytes(b"a driver died behind its copy")
    os.utime(dead, (file.stat().st_mtime - 30 * DAY_S,) * 2)

    looked = keep_up(lake, "look", table)
    rows = [lake.read(kind, table).count() for kind in ("history", "current")]
    assert [one.rows for one in looked] == rows
    assert all(one.bytes is not None and one.bytes > 0 for one in looked)
    history, current = said(looked)
    assert history == ("history", 1, True, False, "")
    assert current[2:] == (False, True, "")
    assert dead.exists(), "only a thorough look finds what no version names"
    keep_up(lake, "look", table, thorough=True)
    assert (dead.exists(), young.exists()) == (False, True)
    assert said(keep_up(lake, "current", table)) == [("current", 1, True, False, "")]

    assert _found(lake, table) == before == _expected(table, BATCHES, len(BATCHES))
    assert positions(lake, table) == at
    for step in ("history", "current"):
        properties = delta_tables.pin(lake.spark, lake.path(step, table)).properties
        assert properties["delta.deletedFileRetentionDuration"] == "interval 7 days"
        assert properties["delta.logRetentionDuration"] == "interval 7 days"
        assert "delta.setTransactionRetentionDuration" not in properties
    early = lake.spark.read.format("delta").option("versionAsOf", 1).load(lake.path("history", table))
    assert 0 < early.count() < first, "what was compacted can still be read as it was"

    table.stage([insert(9, n=9)])
    lake.applied(table.planned(len(BATCHES)))
    assert _found(lake, table) == _expected(table, [*BATCHES, [insert(9, n=9)]], len(BATCHES) + 1)
    versions = [delta_tables.pin(lake.spark, lake.path(step, table)).version for step in ("history", "current")]
    assert not any(one.compacted or one.due for one in keep_up(lake, "look", table))
    again = [delta_tables.pin(lake.spark, lake.path(step, table)).version for step in ("history", "current")]
    assert again == versions


@pytest.mark.thorough
@pytest.mark.parametrize("failpoint", [*thorough("merge.before_history"), "merge.before_current"])
def test_a_merge_that_meets_it_goes_on(failpoint: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step `current` under a merge too: as where its lease was lost."""
    table = _staged(lake.table(table_schema("t", TEXTS)), KEYED)
    for number in range(3):
        lake.applied(table.planned(number, number + 1))
    reports: list[TableCompaction] = []

    def meanwhile() -> None:
        reports.extend([*keep_up(lake, "look", table), *keep_up(lake, "current", table)])

    _call_once(monkeypatch, failpoint, meanwhile)
    lake.applied(table.planned(3))
    assert [one.kind for one in reports if one.compacted][:1] == ["history"]
    assert _found(lake, table) == _expected(table, KEYED, 4)


@pytest.mark.parametrize("way", ["driver"], indirect=True)
def test_rows_that_the_driver_masked_keep_no_vacuum_from_its_work(lake: Lake) -> None:
    """In files that are there, and in those that were removed since."""
    inserted = [insert(n) for n in range(20)]
    batches = [inserted, [update(3, "body", n=1), delete(4)], [update(5, "body", n=2)], [update(6, "body", n=3)]]
    table = _staged(lake.table(table_schema("t", TEXTS)), batches)
    for number in range(len(batches)):
        lake.applied(table.planned(number, number + 1))
    assert files_with_deleted_rows(lake, table) > 0
    before = _found(lake, table)
    for step, is_thorough in (("look", False), ("look", True), ("current", False), ("look", True)):
        for one in keep_up(lake, step, table, thorough=is_thorough):
            assert one.left == ""
    assert _found(lake, table) == before
    assert len(before[0]) == 19


@pytest.mark.parametrize("way", ["driver"], indirect=True)
def test_a_file_without_another_beside_it_loses_its_deleted_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPTIMIZE rewrites no file that it has to rewrite alone."""
    monkeypatch.setitem(table_compaction.MANY_SMALL, "current", 50)
    batches = [[insert(n) for n in range(20)], [delete(n) for n in range(5)]]
    table = _staged(lake.table(table_schema("t", TEXTS)), batches)
    for number in range(len(batches)):
        lake.applied(table.planned(number, number + 1))
    assert files_with_deleted_rows(lake, table) == 1
    before, at = _found(lake, table), positions(lake, table)
    assert said(keep_up(lake, "current", table)) == [("current", 1, True, False, "")]
    assert files_with_deleted_rows(lake, table) == 0
    assert _found(lake, table) == before
    assert positions(lake, table) == at
    assert not any(one.due for one in keep_up(lake, "look", table))


@pytest.mark.parametrize("way", ["driver"], indirect=True)
@pytest.mark.parametrize("statement", either(optimize="OPTIMIZE", purge="REORG"))
def test_a_compaction_of_current_loses_to_a_merge_that_commits_before_it(
    statement: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its lease was lost: it has read the table, and waits for a core while the merge masks a row."""
    monkeypatch.setitem(table_compaction.MANY_SMALL, "current", 2 if statement == "OPTIMIZE" else 50)
    monkeypatch.setattr(table_compaction, "DELETED_SHARE", 1.0 if statement == "OPTIMIZE" else 0.1)
    batches = [[insert(n) for n in range(10, 20)], [delete(10), delete(11)], [insert(20)], [delete(12)]]
    table = _staged(lake.table(table_schema("t", TEXTS)), batches)
    for number in range(3):
        lake.applied(table.planned(number, number + 1))
    reports: list[TableCompaction] = []
    with cores_taken(lake.spark) as jobs:
        before = jobs()
        compacting = InheritableThread(target=lambda: reports.extend(keep_up(lake, "current", table)))
        compacting.start()
        wait_for("a Spark job of the compaction", lambda: jobs() > before)
        lake.applied(table.planned(3))
        assert reports == []
    compacting.join()
    assert [(one.compacted, one.left) for one in reports] == [(False, "a merge was faster; the next run tries again")]
    assert _found(lake, table) == _expected(table, batches, 4)
    assert keep_up(lake, "current", table)[0].compacted
    assert _found(lake, table) == _expected(table, batches, 4)


@contextmanager
def cores_taken(spark: SparkSession) -> Iterator[Callable[[], int]]:
    """No other Spark job ends while the block runs; yields what counts the jobs that began."""
    context, group = spark.sparkContext, "cores taken"
    scheduler = context._jsc.sc().dagScheduler()  # type: ignore[attr-defined]

    def take() -> None:
        context.setJobGroup(group, group, interruptOnCancel=True)
        tasks = spark.range(0, context.defaultParallelism, 1, context.defaultParallelism)
        with suppress(Py4JJavaError):  # it is cancelled
            tasks.selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)").collect()

    def running() -> int:
        stages = [context.statusTracker().getStageInfo(n) for n in context.statusTracker().getActiveStageIds()]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    taking = InheritableThread(target=take)
    taking.start()
    try:
        wait_for("all cores to be taken", lambda: running() == context.defaultParallelism)
        yield scheduler.numTotalJobs
    finally:
        context.cancelJobGroup(group)
        taking.join()


def files_with_deleted_rows(lake: Lake, table: StagedTable) -> int:
    pinned = delta_tables.pin(lake.spark, lake.path("current", table))
    return DataFrame(pinned.state.added.toDF(), lake.spark).where("deletionVector IS NOT NULL").count()


@pytest.mark.parametrize("way", ["driver"], indirect=True)
@pytest.mark.parametrize("thorough", [False, True])
def test_a_small_table_that_needs_nothing_costs_no_spark_job(lake: Lake, thorough: bool) -> None:
    """Its files and vectors are older than the retention, and all of them are in use."""
    batches = [[insert(n) for n in range(20)], [update(3, "body", n=1), delete(4)]]
    table = _staged(lake.table(table_schema("t", TEXTS)), batches)
    lake.applied(table.planned(0, 1))
    lake.applied(table.planned(1, 2))
    keep_up(lake, "look", table)
    kept = [delta_tables.pin(lake.spark, lake.path(step, table)) for step in ("history", "current")]
    names = [data_files.names_of(one, data_files.files_in_checksum(one) or []) for one in kept]
    assert any(name.endswith(".bin") for name in names[1]), "a vector"
    for step, used in zip(("history", "current"), names, strict=True):
        for file in Path(lake.path(step, table)).glob("*.*"):
            os.utime(file, (file.stat().st_mtime - 30 * DAY_S,) * 2)
            if file.name not in used:
                file.unlink()

    scheduler = lake.spark.sparkContext._jsc.sc().dagScheduler()  # type: ignore[attr-defined]
    jobs = scheduler.numTotalJobs()
    looked = keep_up(lake, "look", table, thorough=thorough)
    assert scheduler.numTotalJobs() == jobs
    assert [(one.rows, one.left) for one in looked] == [(22, ""), (19, "")]


@pytest.mark.parametrize("way", ["driver"], indirect=True)
def test_young_files_of_a_table_that_the_checksum_does_not_list_cost_no_spark_job(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _staged(lake.table(table_schema("t", TEXTS)), BATCHES)
    for number in range(len(BATCHES)):
        lake.applied(table.planned(number, number + 1))
    pinned = delta_tables.pin(lake.spark, lake.path("history", table))
    monkeypatch.setattr(data_files, "files_in_checksum", lambda _: None)
    scheduler = lake.spark.sparkContext._jsc.sc().dagScheduler()  # type: ignore[attr-defined]
    jobs = scheduler.numTotalJobs()
    sizes = table_compaction.file_sizes(lake.spark, pinned, "history")
    assert (sizes.files, sizes.small) == (pinned.files, pinned.files)
    assert sizes.small >= table_compaction.MANY_SMALL["history"]
    assert not table_compaction._may_have_dead_files(lake.spark, pinned, 7)
    assert scheduler.numTotalJobs() == jobs
    old = next(Path(lake.path("history", table)).glob("*.parquet"))
    os.utime(old, (old.stat().st_mtime - 30 * DAY_S,) * 2)
    assert table_compaction._may_have_dead_files(lake.spark, pinned, 7)


def test_a_large_table_is_looked_at_by_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _staged(lake.table(table_schema("t", TEXTS)), BATCHES)
    lake.applied(table.planned(0, len(BATCHES)))
    pinned = delta_tables.pin(lake.spark, lake.path("current", table))
    small = table_compaction.file_sizes(lake.spark, pinned, "current")
    monkeypatch.setattr(data_files, "files_in_checksum", lambda _: None)
    assert table_compaction.file_sizes(lake.spark, pinned, "current") == small
