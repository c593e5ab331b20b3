"""Somebody removes a file of the lake: what is said, if anything has to be, and the smallest repair, followed to
its end.

docs/operations.md, "What was removed by hand", is this file as a table.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_apps import replay_tables
from tests.support import judge
from tests.support.capture import Environment
from tests.support.remedies import Told, ends_equal
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import TableRule
from tidemark.errors import MomentNotApplied, StagingMissing
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.lake.lake_tables import Lake, TableAtPosition
from tidemark.maintenance import replay_runs
from tidemark.maintenance.replay_runs import ReplayRequest
from tidemark.observe import table_commands
from tidemark.spark_submit.spark_connection import SparkConnection

pytestmark = pytest.mark.thorough

ITEM = "shop.item"
_numbers = itertools.count(1)


@pytest.fixture
def shop(request: pytest.FixtureRequest, new_environment: Callable[..., Environment]) -> Environment:
    """A table with rows of three batches, merged, and rows that were there before."""
    shop = new_environment(f"removed_{next(_numbers)}", (TableRule("shop.*"),))
    shop.execute("CREATE SCHEMA shop", f"CREATE TABLE {ITEM} (id int PRIMARY KEY, note text)")
    shop.execute(f"INSERT INTO {ITEM} SELECT i, 'from before' FROM generate_series(1, 6) i")
    shop.run()
    shop.backfill()
    change(shop, 1)
    shop.run()
    change(shop, 2)
    shop.run()
    return shop


def change(shop: Environment, number: int) -> None:
    shop.execute(
        f"INSERT INTO {ITEM} VALUES ({10 * number}, 'new'), ({10 * number + 1}, 'new')",
        f"UPDATE {ITEM} SET note = 'changed {number}' WHERE id = {number}",
        f"DELETE FROM {ITEM} WHERE id = {number + 3}",
    )


def error_of(shop: Environment) -> ErrorRecord | None:
    row = shop.table_row(ITEM)
    return row.error if row.life.is_parked else None


def folder(shop: Environment, kind: str) -> Path:
    return judge.table_path(shop, kind, ITEM)


def staged_files(shop: Environment, number: int) -> list[Path]:
    """Of the batch, counted from the newest (-1)."""
    mine = [m for m in shop.manifests() if any(t.table == ITEM for t in m.tables)][number]
    return [Path(shop.config.lake) / f.path for t in mine.tables if t.table == ITEM for f in t.files]


def manifest_of(shop: Environment, number: int) -> Path:
    return staged_files(shop, number)[0].parents[1] / "manifest.json"


def rebuild(shop: Environment) -> None:
    """What `<pipeline>_replay` does with `rebuild`."""
    task = shop.task("replay")
    with replay_runs.leased_replay(task, ReplayRequest("rebuild", (ITEM,))) as plan:
        replay_tables.run(shop.spark(), f"{plan.lake}/{layout.replay_file(plan.pipeline, plan.plan)}")
        result = replay_runs.take_result(task, plan)
    assert result is not None
    assert [table.error for table in result.tables] == [None]


def pass_over_and_backfill(shop: Environment) -> None:
    """The remedy's words, one after the other."""
    sentence, done = table_commands.pass_over(shop.config, ITEM, ledger=shop.ledger)
    assert done, sentence
    change(shop, 4)
    shop.run()
    assert shop.table_row(ITEM).life.needs_backfill
    shop.backfill(ITEM)


# --- staging ---------------------------------------------------------------------------------------------------------


@pytest.mark.walks("StagedFileGone")
def test_a_staged_file_that_was_not_applied_is_passed_over_and_history_stays(shop: Environment, told: Told) -> None:
    change(shop, 3)
    shop.step("drain")
    for file in staged_files(shop, -1):
        file.unlink()
    shop.run()
    told.parked(error_of(shop), "StagedFileGone", "unpark --past", "start a backfill")
    version = judge.delta_versions(shop)["history/shop/item"]
    pass_over_and_backfill(shop)
    assert judge.delta_versions(shop)["history/shop/item"] > version, "history began anew"
    history = judge.read(shop, "history", ITEM)
    assert history is not None
    assert {row["id"] for row in history.rows() if row["_op"] == "sweep"} == {6}
    ends_equal(shop)


@pytest.mark.walks("StagedFileDiffers")
def test_a_staged_file_that_was_damaged_is_passed_over_too(shop: Environment, told: Told) -> None:
    change(shop, 3)
    shop.step("drain")
    for file in staged_files(shop, -1):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    shop.run()
    told.parked(error_of(shop), "StagedFileDiffers", "unpark --past", "start a backfill")
    pass_over_and_backfill(shop)
    ends_equal(shop)


def test_a_staged_file_that_is_applied_is_missed_by_nobody(shop: Environment) -> None:
    for file in staged_files(shop, -1):
        file.unlink()
    change(shop, 3)
    shop.run()
    assert error_of(shop) is None
    ends_equal(shop)


def test_a_file_of_a_claimed_chunk_is_passed_over_and_the_backfill_begins_anew(shop: Environment, told: Told) -> None:
    shop.begin_backfill(ITEM)
    (backfill,) = shop.plan()
    shop.read()
    shop.drain()
    _remove_chunks(shop, backfill.backfill)
    shop.merge()
    assert error_of(shop) is not None
    assert error_of(shop).kind == "StagedFileGone"  # type: ignore[union-attr]
    shop.confirm()
    pass_over_and_backfill(shop)
    ends_equal(shop)


def test_a_file_of_a_chunk_that_is_not_claimed_is_passed_over_as_well(shop: Environment) -> None:
    shop.begin_backfill(ITEM)
    (backfill,) = shop.plan()
    shop.read()
    _remove_chunks(shop, backfill.backfill)
    shop.drain()
    shop.merge()
    shop.confirm()
    assert error_of(shop) is not None
    pass_over_and_backfill(shop)
    ends_equal(shop)


def _remove_chunks(shop: Environment, backfill: str) -> None:
    root = Path(shop.config.lake) / shop.config.pipeline / "chunks" / backfill
    files = list(root.rglob("*.parquet"))
    assert files
    for file in files:
        file.unlink()


@pytest.mark.parametrize("number", [-1, -2], ids=["not_applied", "applied"])
def test_a_manifest_is_missed_by_a_ledger_that_is_lost_and_by_nobody_else(number: int, shop: Environment) -> None:
    change(shop, 3)
    shop.step("drain")
    manifest_of(shop, number).unlink()
    shop.run()
    assert error_of(shop) is None
    ends_equal_without_manifests(shop)


def ends_equal_without_manifests(shop: Environment) -> None:
    shop.let_leases_end()
    change(shop, 5)
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


@pytest.mark.walks("StagingMissing")
def test_staging_as_a_whole_is_missed_by_every_run_until_a_person_says_so(shop: Environment, told: Told) -> None:
    shutil.rmtree(Path(shop.config.lake) / shop.config.pipeline / "staging")
    change(shop, 3)
    with told(StagingMissing, "--staging-is-lost", "plans, but not staging/g1/generation.json"):
        shop.step("drain")
    shop.begin_run()
    with pytest.raises(StagingMissing, match="--staging-is-lost"):
        shop.preflight()
    preflight(shop.task("preflight"), spark=SparkConnection("local[2]"), says=["staging_is_lost"]).raise_for_errors()
    ends_equal_without_manifests(shop)


# --- plan and result -------------------------------------------------------------------------------------------------


def test_a_plan_that_is_gone_before_its_driver_reads_it_costs_one_run(shop: Environment) -> None:
    change(shop, 3)
    shop.begin_run()
    shop.drain()
    apply = shop._apply

    def gone(uri: str) -> None:
        Path(uri).unlink()
        apply(uri)

    shop._apply = gone  # type: ignore[method-assign]
    with pytest.raises(Exception, match=r"plan\.json"):
        shop.merge()
    shop._apply = apply  # type: ignore[method-assign]
    ends_equal(shop)


def test_a_result_that_is_gone_before_it_is_read_is_found_in_the_delta_tables(shop: Environment) -> None:
    change(shop, 3)
    shop.begin_run()
    shop.drain()
    shop.crash("merge.after_result")
    for result in (Path(shop.config.lake) / shop.config.pipeline / "plans").rglob("result.json"):
        result.unlink()
    versions = judge.delta_versions(shop)
    shop.let_leases_end()
    shop.run()
    assert judge.data_written_since(shop, versions) == {}
    ends_equal(shop)


# --- Delta tables ----------------------------------------------------------------------------------------------------


@pytest.mark.walks("PositionBelowPlan")
@pytest.mark.parametrize("what", ["the table", "its newest commit"])
def test_a_current_that_is_gone_or_older_is_rebuilt_from_history(what: str, shop: Environment, told: Told) -> None:
    if what == "the table":
        shutil.rmtree(folder(shop, "current"))
    else:
        newest(folder(shop, "current")).unlink()
    change(shop, 3)
    shop.run()
    told.parked(error_of(shop), "PositionBelowPlan", "`rebuild`", "unpark the table")
    rebuild(shop)
    assert table_commands.unpark(shop.config, ITEM, ledger=shop.ledger)[1]
    ends_equal(shop)


def newest(table: Path) -> Path:
    return max(file for file in (table / "_delta_log").glob("*.json"))


def test_a_data_file_of_current_that_is_gone_is_no_staged_file_and_current_is_rebuilt(shop: Environment) -> None:
    for file in folder(shop, "current").glob("*.parquet"):
        file.unlink()
    change(shop, 3)
    shop.run()
    row = shop.table_row(ITEM)
    assert row.error is not None
    assert row.error.kind == "MergeFailed"
    assert "FILE_NOT_EXIST" in row.error.message
    assert not row.life.is_parked, "the next run tries again"
    rebuild(shop)
    ends_equal(shop)


def test_a_history_whose_newest_commit_is_gone_is_put_back(shop: Environment) -> None:
    commit = newest(folder(shop, "history"))
    kept = commit.read_bytes()
    commit.unlink()
    change(shop, 3)
    shop.run()
    error = error_of(shop)
    assert error is not None
    assert error.kind == "PositionBelowPlan"
    assert "Put its newest files back and unpark the table" in error.message
    commit.write_bytes(kept)
    assert table_commands.unpark(shop.config, ITEM, ledger=shop.ledger)[1]
    ends_equal(shop)


@pytest.mark.parametrize("kind", ["current", "history"])
def test_a_commit_in_the_middle_of_a_log_is_missed_until_it_is_back(kind: str, shop: Environment) -> None:
    commits = sorted((folder(shop, kind) / "_delta_log").glob("*.json"))
    kept = commits[-2].read_bytes()
    commits[-2].unlink()
    change(shop, 3)
    shop.run()
    row = shop.table_row(ITEM)
    assert row.error is not None
    assert "DELTA_VERSIONS_NOT_CONTIGUOUS" in row.error.message
    assert not row.life.is_parked, "the next run tries again"
    commits[-2].write_bytes(kept)
    ends_equal(shop)


# --- a loss of power at the store ------------------------------------------------------------------------------------


def lose_newest_commits(shop: Environment, number: int, *kinds: str) -> None:
    for kind in kinds:
        for _ in range(number):
            newest(folder(shop, kind)).unlink()


def replay_from_staging(shop: Environment) -> None:
    shop.begin_run("replay")
    replay_runs.begin_replay(shop.task("replay", run_id="replay"), ReplayRequest("staged", (ITEM,)))
    shop.merge()
    shop.confirm()


@pytest.mark.parametrize("kinds", [("current",), ("history", "current")], ids="_and_".join)
def test_commits_that_are_lost_before_the_ledger_has_their_result_are_merged_again(
    kinds: tuple[str, ...], shop: Environment
) -> None:
    change(shop, 3)
    shop.begin_run()
    shop.drain()
    shop.crash("merge.before_result")
    lose_newest_commits(shop, 1, *kinds)
    shop.let_leases_end()
    shop.run()
    assert error_of(shop) is None
    ends_equal(shop)


@pytest.mark.walks("PositionBelowPlan")
def test_commits_that_are_lost_after_that_park_the_table_and_staging_is_replayed(shop: Environment, told: Told) -> None:
    history = shop.spark().read.format("delta").load(str(folder(shop, "history")))
    had = {tuple(row) for row in history.collect()}
    lose_newest_commits(shop, 1, "history", "current")
    change(shop, 3)
    shop.run()
    told.parked(error_of(shop), "PositionBelowPlan", "trigger the replay DAG with `staged`")
    replay_from_staging(shop)
    assert replay_runs.unplaced(shop.task(), (ITEM,)) == {}
    new = shop.spark().read.format("delta").load(str(judge.table_path(shop, "history", f"{ITEM}~2")))
    assert had < {tuple(row) for row in new.collect()}
    ends_equal(shop)


@pytest.mark.walks("PositionBelowPlan")
def test_a_replay_takes_no_history_over_that_lost_rows_below_its_base(shop: Environment, told: Told) -> None:
    lose_newest_commits(shop, 3, "history", "current")
    replay_from_staging(shop)
    told.parked(shop.table_row(f"{ITEM}~2").error, "PositionBelowPlan", "Put its newest files back")


@pytest.mark.parametrize("kinds", [("current",), ("history", "current")], ids="_and_".join)
def test_readers_are_not_given_older_rows_as_those_of_a_position_that_was_lost(
    kinds: tuple[str, ...], shop: Environment
) -> None:
    def read() -> TableAtPosition:
        shop.spark()._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return Lake(f"{shop.config.lake}/{shop.config.pipeline}", spark=shop.spark()).table(ITEM).newest()

    def rows(table: TableAtPosition) -> set[tuple[Any, ...]]:
        return {(row.id, row.note) for row in table.current().collect()}

    whole = read()
    had = rows(whole)
    shop.run()  # `_positions` gets a row that names no version
    lose_newest_commits(shop, 1, *kinds)
    left = read()
    if "history" in kinds:
        assert left.position < whole.position
        with pytest.raises(MomentNotApplied):
            left.reading.lake.as_of(whole.position, ITEM)
    else:
        assert left.position >= whole.position
        assert rows(left) == had
