"""A checkpoint keeps all that a table's log says, is written once it is due, and by Delta where it is left to Delta."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.support.merge_ways import take_the_public_path
from tests.support.thorough import thorough
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.test_few_changes import driver
from tests.target.test_values import delete, insert, update
from tidemark.target.delta import checkpoints, hadoop_files, internals
from tidemark.target.delta.checkpoints import LeftToDelta
from tidemark.target.delta.internals import DeltaSnapshot
from tidemark.target.plans.plan_execution import write_checkpoints

EVERY = 2
STEPS = ("history", "current")


@pytest.fixture(autouse=True)
def soon_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_COMMITS", EVERY)
    monkeypatch.setattr(checkpoints, "SPREAD", 1)
    be_a_new_driver(monkeypatch)


def be_a_new_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_last", {})
    monkeypatch.setattr(checkpoints, "_actions_in", {})
    monkeypatch.setattr(checkpoints, "_cleaned_at", {})
    monkeypatch.setattr(checkpoints, "_by_delta", set())


@pytest.fixture
def by_delta(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions whose checkpoints were left to Delta."""
    versions: list[int] = []
    write = DeltaSnapshot.write_checkpoint

    def spied(snapshot: DeltaSnapshot) -> None:
        versions.append(snapshot.version)
        write(snapshot)

    monkeypatch.setattr(DeltaSnapshot, "write_checkpoint", spied)
    return versions


@pytest.fixture
def table(lake: Lake) -> StagedTable:
    """One with column mapping, and with another table feature."""
    return lake.table(table_schema("t", {**TEXTS, "with a space": "timestamp_ntz"}))


@pytest.fixture
def plain(lake: Lake) -> StagedTable:
    """One whose few changes the driver folds, which costs a tenth of the CPU."""
    return lake.table(table_schema("t", TEXTS))


def merge(lake: Lake, table: StagedTable, *numbers: int, dies: bool = False) -> None:
    """Merge batches of a few changes, one after another. A driver that dies writes no checkpoint."""
    for number in numbers:
        table.stage([insert(number), insert(1000 + number)], [update(number, n=-number), delete(1000 + number - 1)])
        plan = lake.plan(table.planned(number))
        result = lake.apply(*plan.tables)
        assert [t.error for t in result.tables] == [None]
        if not dies:
            write_checkpoints(lake.spark, plan, result)


def checkpointed(lake: Lake, step: str, table: StagedTable) -> list[int]:
    log = lake.folder(step, table) / "_delta_log"
    return sorted(int(file.name.partition(".")[0]) for file in log.glob("*.checkpoint*.parquet"))


def state(lake: Lake, path: str) -> dict[str, Any]:
    """What Delta makes of the table's log, which it reads anew, without the checksum files."""
    for checksum in (Path(path) / "_delta_log").glob("*.crc"):
        checksum.unlink()
    java: Any = lake.spark._jvm
    java.org.apache.spark.sql.delta.DeltaLog.clearCache()
    known = internals.newest(lake.spark, path)
    files = [json.loads(row) for row in known.added.toJSON().collectAsList()]
    removed = [json.loads(row) for row in known.snapshot.tombstones().toJSON().collectAsList()]
    for file in files:
        file.pop("dataChange")  # of an action in a checkpoint it is false
    kept = ("path", "deletionTimestamp", "deletionVector", "size")  # Delta's own checkpoints leave out others
    positions = internals.json_of(
        lake.spark, java.scala.jdk.CollectionConverters.SeqHasAsJava(known.snapshot.setTransactions()).asJava()
    )
    return {
        "version": known.version,
        "files": sorted(files, key=json.dumps),
        "removed": sorted(({name: file.get(name) for name in kept} for file in removed), key=json.dumps),
        "positions": sorted(positions, key=json.dumps),
        "metadata": known.metadata,
        "protocol": known.protocol,
    }


def assert_nothing_is_lost(lake: Lake, table: StagedTable) -> None:
    """With the checkpoints Delta reads of the log what it reads of the commits alone."""
    for step in STEPS:
        with_them = state(lake, lake.path(step, table))
        log = lake.folder(step, table) / "_delta_log"
        for file in (*log.glob("*.checkpoint*"), log / "_last_checkpoint"):
            file.unlink()
        assert with_them == state(lake, lake.path(step, table)), step
        assert with_them["positions"], step


@pytest.mark.parametrize("way", ["driver", *thorough("spark", "public")], indirect=True)
def test_a_checkpoint_keeps_what_the_log_says(lake: Lake, table: StagedTable, by_delta: list[int]) -> None:
    """Files with statistics, tags and deletion vectors, removed files, positions, schema and properties."""
    merge(lake, table, *range(2 * EVERY + 1))
    for step in STEPS:
        assert len(checkpointed(lake, step, table)) >= 2, step
    assert by_delta == []
    assert state(lake, lake.path("current", table))["removed"]
    assert_nothing_is_lost(lake, table)


@pytest.mark.thorough
@driver
def test_a_checkpoint_of_deltas_own_is_continued(lake: Lake, table: StagedTable, by_delta: list[int]) -> None:
    merge(lake, table, *range(EVERY - 1))
    for step in STEPS:
        internals.newest(lake.spark, lake.path(step, table)).write_checkpoint()
    first = {step: checkpointed(lake, step, table) for step in STEPS}
    by_delta.clear()
    merge(lake, table, *range(EVERY - 1, 2 * EVERY + 1))
    for step in STEPS:
        assert len(checkpointed(lake, step, table)) > len(first[step]) == 1, step
    assert by_delta == []
    assert_nothing_is_lost(lake, table)


@driver
def test_the_next_driver_writes_what_a_dead_one_did_not(
    lake: Lake, plain: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(lake, plain, *range(2 * EVERY), dies=True)
    assert [checkpointed(lake, step, plain) for step in STEPS] == [[], []]
    be_a_new_driver(monkeypatch)
    merge(lake, plain, 2 * EVERY)
    written = {step: checkpointed(lake, step, plain) for step in STEPS}
    assert written == {step: [lake.version(step, plain)] for step in STEPS}
    be_a_new_driver(monkeypatch)
    merge(lake, plain, 2 * EVERY + 1)
    assert {step: checkpointed(lake, step, plain) for step in STEPS} == written


@driver
def test_a_checkpoint_of_many_actions_is_followed_by_more_commits(
    lake: Lake, plain: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "ACTIONS_A_COMMIT", 1)
    monkeypatch.setattr(checkpoints, "MOST_FURTHER", 3)
    merge(lake, plain, *range(2 * EVERY + 4))
    for step in STEPS:
        first, second = checkpointed(lake, step, plain)
        assert second - first == EVERY + 3, step


@pytest.mark.thorough
@driver
def test_checkpoints_that_are_left_to_delta_are_followed_by_more_commits_too(
    lake: Lake, plain: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(lake, plain, *range(EVERY + 1))
    be_a_new_driver(monkeypatch)
    monkeypatch.setattr(checkpoints, "MAX_ACTIONS", 1)
    monkeypatch.setattr(checkpoints, "ACTIONS_A_COMMIT", 1)
    monkeypatch.setattr(checkpoints, "MOST_FURTHER", 3)
    before = {step: len(checkpointed(lake, step, plain)) for step in STEPS}
    merge(lake, plain, *range(EVERY + 1, 3 * EVERY + 5))
    for step in STEPS:
        by_delta = checkpointed(lake, step, plain)[before[step] :]
        assert len(by_delta) == 2, step
        assert by_delta[1] - by_delta[0] > EVERY, step


@driver
def test_it_is_told_if_nobody_could_write_one(
    lake: Lake, plain: StagedTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise LeftToDelta

    monkeypatch.setattr(checkpoints, "_write", refuse)
    monkeypatch.setattr(DeltaSnapshot, "write_checkpoint", lambda _: None)
    merge(lake, plain, *range(EVERY + 1), dies=True)
    assert not checkpoints.write_if_due(lake.spark, lake.path("current", plain))
    assert "Delta did not write the checkpoint of" in caplog.text


@driver
def test_a_table_whose_plan_is_invalid_gets_none(lake: Lake, table: StagedTable) -> None:
    """Its error is in the result, and the driver goes on."""
    merge(lake, table, 0)
    table.stage([insert(1)])
    plan = lake.plan(replace(table.planned(1), schemas=()))
    result = lake.apply(*plan.tables)
    assert result.tables[0].error is not None
    write_checkpoints(lake.spark, plan, replace(result, tables=(replace(result.tables[0], history_version=1),)))


def test_a_write_that_fails_leaves_what_was_there(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    hadoop_files.write_whole(lake.spark, f"{tmp_path}/file", b"first")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(MemoryError):
            hadoop_files.write_whole(lake.spark, f"{tmp_path}/file", b"second")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == {"file": b"first"}
    hadoop_files.write_whole(lake.spark, f"file://{tmp_path}/file", b"third")
    assert (tmp_path / "file").read_bytes() == b"third"


@driver
def test_another_table_at_a_path_gets_checkpoints_of_its_own(lake: Lake, plain: StagedTable) -> None:
    merge(lake, plain, *range(2 * EVERY))
    for step in STEPS:
        shutil.rmtree(lake.folder(step, plain))
    java: Any = lake.spark._jvm
    java.org.apache.spark.sql.delta.DeltaLog.clearCache()
    plain.batches.clear()
    merge(lake, plain, *range(EVERY + 1))
    assert all(checkpointed(lake, step, plain) for step in STEPS)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "properties",
    [
        {"delta.feature.changeDataFeed": "supported"},
        {"delta.checkpoint.writeStatsAsStruct": "true"},
        {"delta.checkpointPolicy": "v2"},
    ],
    ids=["a table feature", "a property of checkpoints", "the second version"],
)
def test_what_is_not_known_is_left_to_delta(
    lake: Lake, table: StagedTable, by_delta: list[int], properties: dict[str, str]
) -> None:
    merge(lake, table, 0, dies=True)
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    for step in STEPS:
        lake.spark.sql(f"ALTER TABLE delta.`{lake.path(step, table)}` SET TBLPROPERTIES ({listed})")
    merge(lake, table, *range(1, 2 * EVERY))
    assert len(by_delta) >= 2
    assert_nothing_is_lost(lake, table)


@pytest.mark.thorough
def test_a_log_that_was_misread_is_left_to_delta(
    lake: Lake, table: StagedTable, by_delta: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciled = checkpoints.reconciled

    def misread(*arguments: Any) -> pa.Table:
        rows = reconciled(*arguments)
        first = rows["add"].is_valid().to_pylist().index(True)
        return pa.concat_tables([rows[:first], rows[first + 1 :]])

    monkeypatch.setattr(checkpoints, "reconciled", misread)
    merge(lake, table, *range(EVERY + 1))
    assert by_delta
    assert_nothing_is_lost(lake, table)


@pytest.mark.thorough
def test_on_the_public_path_delta_writes_them_again(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(lake, table, 0, dies=True)
    be_a_new_driver(monkeypatch)
    take_the_public_path(monkeypatch)
    merge(lake, table, *range(1, 2 * EVERY + 1))
    for step in STEPS:
        assert checkpointed(lake, step, table), step
    assert_nothing_is_lost(lake, table)
