"""The lake goes between a plan and its driver's end: the volume is unmounted, which leaves an empty folder, or a name
leads to a store with an empty bucket. All that is missing then is of no table: none is parked, nothing is confirmed,
and when the lake is back the next run goes on.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_apps import compact_tables, replay_tables
from tests.conftest import on_s3
from tests.support.capture import Environment
from tests.support.remedies import Told, ends_equal
from tests.support.s3_server import S3Server
from tests.support.thorough import thorough
from tidemark.config import TableRule
from tidemark.errors import PlanMissing, StagingMissing
from tidemark.formats import layout
from tidemark.maintenance import compaction_runs, replay_runs
from tidemark.maintenance.replay_runs import ReplayRequest
from tidemark.target.driver.driver_merge import DriverMerge
from tidemark.target.plans import plan_execution

ITEM, NEW = "shop.item", "shop.new"
_numbers = itertools.count(1)


class Lake:
    """What has the lake, and may go with it."""

    def __init__(self, shop: Environment) -> None:
        self.shop = shop
        self.is_away = False

    def goes(self) -> None:
        self.is_away = True
        if self.shop.buckets is None:
            self._folder.rename(self._aside)
            self._folder.mkdir()
        else:
            _empty(self.shop.buckets, self._bucket, f"{self._bucket}-aside")

    def comes_back(self) -> None:
        """What was written in its place is below the mount point, or in the other store, and not seen any more."""
        if not self.is_away:
            return
        self.is_away = False
        if self.shop.buckets is None:
            shutil.rmtree(self._folder)
            self._aside.rename(self._folder)
        else:
            _empty(self.shop.buckets, self._bucket, f"{self._bucket}-below")
            _empty(self.shop.buckets, f"{self._bucket}-aside", self._bucket)
        self.forget()

    def forget(self) -> None:
        """As a driver begins: no log is open."""
        self.shop.spark()._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    @property
    def _folder(self) -> Path:
        return Path(self.shop.config.lake)

    @property
    def _aside(self) -> Path:
        return self._folder.with_name("lake-aside")

    @property
    def _bucket(self) -> str:
        return self.shop.config.lake.removeprefix("s3a://").partition("/")[0]


def _empty(server: S3Server, bucket: str, into: str) -> None:
    client = server.client()
    client.create_bucket(Bucket=into)
    for key in server.keys(bucket):
        client.copy_object(Bucket=into, Key=key, CopySource={"Bucket": bucket, "Key": key})
        client.delete_object(Bucket=bucket, Key=key)


@pytest.fixture
def shop(new_environment: Callable[..., Environment]) -> Environment:
    """A table that is merged, with further changes, and the first ones of another: an error of one run would park."""
    shop = new_environment(f"meanwhile_{next(_numbers)}", (TableRule("shop.*"),), {"park_after": 1})
    shop.execute("CREATE SCHEMA shop", *(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in (ITEM, NEW)))
    shop.run()
    shop.execute(f"INSERT INTO {ITEM} VALUES (1), (2)")
    shop.run()
    shop.execute(f"DELETE FROM {ITEM} WHERE id = 1", f"INSERT INTO {ITEM} VALUES (3)", f"INSERT INTO {NEW} VALUES (1)")
    return shop


@pytest.fixture
def lake(shop: Environment) -> Lake:
    return Lake(shop)


def before_the_plan_is_read(shop: Environment, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = shop._apply

    def gone(uri: str) -> None:
        lake.goes()
        lake.forget()
        apply(uri)

    monkeypatch.setattr(shop, "_apply", gone)


def before_tables_are_read(shop: Environment, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_plan = plan_execution.apply_plan

    def gone(*plan: object) -> object:
        lake.goes()
        lake.forget()
        return apply_plan(*plan)  # type: ignore[arg-type]

    monkeypatch.setattr(plan_execution, "apply_plan", gone)


def before_tables_are_made(shop: Environment, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes are in memory by then, and logs are open: they could be committed to nowhere."""
    move_history, one_at_a_time = DriverMerge.move_history, threading.Lock()

    def gone(*changes: object) -> int:
        with one_at_a_time:
            if not lake.is_away:
                lake.goes()
        return move_history(*changes)  # type: ignore[arg-type]

    monkeypatch.setattr(DriverMerge, "move_history", gone)


def before_the_result_is_left(shop: Environment, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_plan = plan_execution.apply_plan

    def gone(*plan: object) -> object:
        result = apply_plan(*plan)  # type: ignore[arg-type]
        lake.goes()
        return result

    monkeypatch.setattr(plan_execution, "apply_plan", gone)


MOMENTS = {
    moment.__name__: moment
    for moment in (before_the_plan_is_read, before_tables_are_read, before_tables_are_made, before_the_result_is_left)
}


@pytest.mark.walks("PlanMissing", "StagingMissing")
@pytest.mark.parametrize(
    "moment",
    [
        "before_tables_are_read",
        *thorough("before_the_plan_is_read", "before_tables_are_made", "before_the_result_is_left"),
    ],
)
def test_no_table_is_parked_for_a_lake_that_went_between_plan_and_driver(
    moment: str, shop: Environment, lake: Lake, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    shop.begin_run()
    shop.drain()
    with monkeypatch.context() as patched:
        MOMENTS[moment](shop, lake, patched)
        with told(PlanMissing, "the next driver goes on from the tables' positions"):
            shop.merge()
    position, confirmed = shop.staged_lsn(), shop.confirmed_lsn()
    for stage in ("merge", "drain"):
        with told(StagingMissing, "whether `lake` and its" if on_s3() else "whether the lake's volume is mounted"):
            shop.step(stage)
    shop.confirm()
    assert shop.confirmed_lsn() == confirmed < position
    lake.comes_back()
    assert [shop.table_row(table).error for table in (ITEM, NEW)] == [None, None]
    ends_equal(shop)
    assert shop.confirmed_lsn() > position


def test_a_maintenance_or_a_replay_whose_lake_went_leaves_no_result(shop: Environment, lake: Lake) -> None:
    plan = compaction_runs.plan_inspection(shop.task("compact"))
    with replay_runs.leased_replay(shop.task("replay"), ReplayRequest("rebuild", (ITEM,))) as replay:
        uris = [
            f"{shop.config.lake}/{layout.maintenance_file(plan.pipeline, plan.plan)}",
            f"{shop.config.lake}/{layout.replay_file(replay.pipeline, replay.plan)}",
        ]
    lake.goes()
    for work, uri in zip((compact_tables.compact, replay_tables.run), uris, strict=True):
        with pytest.raises(PlanMissing):
            work(shop.spark(), uri)
    lake.comes_back()
    ends_equal(shop)
