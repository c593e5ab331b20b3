"""R6: what is wrong with one table is its own result, says what to do, quotes no value, and stops no other table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from spark_apps import merge_batch
from tests.support.remedies import Told
from tests.support.small_disk import SmallDisk
from tests.target.lake import PIPELINE, TEXTS, Lake, StagedTable, table_schema
from tests.target.model import Change
from tests.target.test_values import insert, update
from tidemark.errors import DeltaMissing, is_of_no_table
from tidemark.formats.merge_plan import PlannedTable
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.lsn import Lsn
from tidemark.schema.table import Column
from tidemark.spark_submit import spark_jars
from tidemark.target.delta import session

SECRET = "a value of a row"


def _table(lake: Lake, name: str = "broken") -> StagedTable:
    table = lake.table(table_schema(name, TEXTS))
    table.stage([insert(1, body=SECRET)])
    table.stage([insert(2, body=SECRET), update(1, "body", note=SECRET)])
    return table


def _fails(lake: Lake, planned: PlannedTable, kind: str, move: str) -> TableResult:
    """Merge it beside a table that is well: that one arrives, this one says what is wrong."""
    well = _table(lake, "well")
    broken, other = lake.apply(planned, well.planned(), threads=1).tables
    assert other.error is None
    assert len(lake.current(well)) == 2
    assert broken.error is not None
    assert (broken.error.kind, broken.error.move) == (kind, move)
    assert SECRET not in broken.error.message
    return broken


def test_a_plan_that_begins_above_the_position_changes_nothing(lake: Lake) -> None:
    table = _table(lake)
    _fails(lake, table.planned(1), "PositionBelowPlan", "FIX_TARGET")
    assert not Path(lake.path("history", table)).exists()
    lake.applied(table.planned(0, 1))
    table.stage([insert(3)])
    failed = _fails(lake, table.planned(2), "PositionBelowPlan", "FIX_TARGET")
    assert failed.history_lsn == failed.current_lsn == table.batches[0].end_lsn
    assert lake.version("history", table) == lake.version("current", table) == 1


def test_no_table_is_created_around_somebodys_files(lake: Lake) -> None:
    table = _table(lake)
    theirs = Path(lake.path("current", table)) / "theirs.parquet"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    failed = _fails(lake, table.planned(), "LocationTaken", "FIX_TARGET")
    assert "theirs.parquet" in str(failed.error)
    theirs.rename(theirs.with_name(".hidden"))
    lake.applied(table.planned())
    assert len(lake.current(table)) == 2


def test_a_position_within_a_batch_is_not_of_this_staging(lake: Lake) -> None:
    table = _table(lake)
    lake.applied(table.planned(0, 1))
    table.batches[0] = replace(table.batches[0], end_lsn=Lsn(table.batches[0].end_lsn + 8))
    _fails(lake, table.planned(), "PositionInsideBatch", "FIX_TARGET")
    assert lake.version("history", table) == 1


def test_history_that_was_removed_is_not_written_again_from_the_middle(lake: Lake) -> None:
    table = _table(lake)
    lake.applied(table.planned(0, 1))
    shutil.rmtree(lake.path("history", table))
    _fails(lake, table.planned(), "HistoryBehindCurrent", "FIX_TARGET")
    assert lake.version("current", table) == 1


@pytest.mark.parametrize("step", ["history", "current"])
def test_a_table_that_is_not_as_tidemark_made_it_is_left_alone(lake: Lake, step: str) -> None:
    table = _table(lake)
    lake.spark.sql(f"CREATE TABLE delta.`{lake.path(step, table)}` (id STRING, n INT) USING delta")
    failed = _fails(lake, table.planned(), "TargetDiffers", "FIX_TARGET")
    assert failed.error is not None
    assert "id" in failed.error.message
    assert lake.version(step, table) == 0


def test_versions_that_differ_by_more_than_added_columns_are_not_merged(lake: Lake) -> None:
    table = _table(lake)
    columns = tuple(Column(c.name, "text", 25, -1, "string") if c.name == "n" else c for c in table.schema.columns)
    table.schema = replace(table.schema, version=2, columns=columns)
    table.stage([insert(3, n="a text")])
    _fails(lake, table.planned(), "SchemaVersionsDiffer", "BACKFILL")


def test_a_staged_file_that_is_gone(lake: Lake) -> None:
    table = _table(lake)
    (lake.root / table.batches[1].files[0].path).unlink()
    _fails(lake, table.planned(), "StagedFileGone", "BACKFILL")


def test_a_staged_file_that_cannot_be_read(lake: Lake) -> None:
    table = _table(lake)
    (lake.root / table.batches[1].files[0].path).write_bytes(b"no parquet" * 100)
    _fails(lake, table.planned(), "MergeFailed", "RETRY")


def test_a_key_without_a_value_is_refused_by_the_target_itself(lake: Lake) -> None:
    table = lake.table(table_schema("broken", TEXTS))
    table.stage([Change("insert", {"id": None, "n": 1, "body": SECRET, "note": SECRET})])
    _fails(lake, table.planned(), "MergeBroken", "BUG")


def test_the_application_writes_its_result_beside_the_plan(lake: Lake, spark: SparkSession) -> None:
    table = _table(lake)
    plan = lake.plan(table.planned(), replace(_table(lake, "second").planned(), after=Lsn(1)))
    folder = lake.root / PIPELINE / "plans" / plan.plan
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(plan.to_json())
    merge_batch.run(spark, f"file://{folder}/plan.json")
    result = PlanResult.from_json((folder / "result.json").read_text())
    assert (result.plan, result.pipeline, result.generation) == (plan.plan, PIPELINE, 1)
    good, bad = result.tables
    assert good.rows == {"history": 3, "inserted": 2}
    assert good.current_lsn == table.batches[1].end_lsn
    assert bad.error is not None
    assert bad.error.kind == "PositionBelowPlan"
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == ["plan.json", "result.json"]
    assert json.loads((folder / "result.json").read_text())["format"] == PlanResult.FORMAT


def test_a_full_disk_is_no_tables_error_and_the_next_plan_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "small")
    try:
        lake = Lake(spark, disk.folder)
        table = lake.table(table_schema("a", TEXTS))
        table.stage([insert(1, body="a")])
        disk.fill()
        (failed,) = lake.apply(table.planned()).tables
        assert failed.error is not None
        assert failed.error.kind == "DiskFull"
        assert is_of_no_table(failed.error)
        disk.resize("64m")
        lake.applied(table.planned())
        assert [row["body"] for row in lake.current(table)] == ["a"]
    finally:
        disk.close()


def test_deltas_classes_are_missed_by_name(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = spark.sparkContext._jvm
    monkeypatch.setattr(session, "java_class", lambda _, name: getattr(jvm, f"nowhere.{name}"))
    with pytest.raises(DeltaMissing, match="does not have Delta Lake"):
        session._require_delta(spark)


@pytest.mark.thorough
@pytest.mark.walks("DeltaMissing", "LogStoreMissing")
def test_a_spark_without_delta_or_the_log_store_is_told_so_before_any_table(lake: Lake, told: Told) -> None:
    plan = lake.plan(_table(lake).planned())
    folder = lake.root / PIPELINE / "plans" / plan.plan
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(plan.to_json())
    command = [sys.executable, merge_batch.__file__, "--manifest", f"file://{folder}/plan.json"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    process = subprocess.run(command, env=inherited, capture_output=True, text=True)
    assert process.returncode == 1
    told.read("DeltaMissing", process.stderr, "a folder of them in TIDEMARK_SPARK_JARS", "does not have Delta Lake")
    assert [file.name for file in folder.iterdir()] == ["plan.json"], "a result says of no table what Spark lacks"
    # The merge task hands that folder to spark-submit so.
    jars = spark_jars.jars("/lake", os.environ, {}) or ""
    of_delta = ",".join(jar for jar in jars.split(",") if not jar.endswith(spark_jars.LOG_STORE))
    submit = {**inherited, "PYSPARK_SUBMIT_ARGS": f"--jars {of_delta} pyspark-shell"}
    process = subprocess.run(command, env=submit, capture_output=True, text=True)
    assert process.returncode == 1
    missing = "the class tidemark.delta.LinkedLogStore does not exist"
    told.read("LogStoreMissing", process.stderr, "tidemark-log-store.jar", missing)
    assert [file.name for file in folder.iterdir()] == ["plan.json"]
    submit = {**inherited, "PYSPARK_SUBMIT_ARGS": f"--jars {jars} pyspark-shell"}
    subprocess.run(command, env=submit, check=True, capture_output=True)
    assert (folder / "result.json").exists()
