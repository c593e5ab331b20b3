"""Drain and merge beside each other, with one Spark application for all plans: the tables equal the source at the end,
whoever dies or has to wait meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from sandbox.services.postgres import wait_for
from spark_apps import follow_plans
from tests.support import judge
from tests.support.capture import Environment
from tests.support.following import Follower
from tidemark.capture.confirm import confirm
from tidemark.capture.following.merge_cycles import MergeCycles
from tidemark.capture.table_progress import advanced, merged_in_run
from tidemark.config import TableRule
from tidemark.errors import LeaseLost, PlanMissing, SparkApplicationFailed
from tidemark.formats import layout
from tidemark.formats.merge_result import TableResult
from tidemark.ledger import leases
from tidemark.spark_submit import plan_orders as plan_orders_module
from tidemark.spark_submit.plan_orders import PlanOrders, plan_orders
from tidemark.target.plans.ordered_plans import ordered_plans
from tidemark.target.table_merge import TableMerge

_numbers = itertools.count(1)


class Application:
    """What spark_apps/follow_plans.py does, on a thread and the session that is there."""

    def __init__(self, spark: SparkSession, orders: PlanOrders) -> None:
        self.orders = orders
        self.dies = False
        self.thread = threading.Thread(target=self._run, args=(spark,), daemon=True)
        self.thread.start()

    def _run(self, spark: SparkSession) -> None:
        with suppress(PlanMissing):  # its operator is gone
            follow_plans.run(spark, self.orders.manifest)

    def is_ready(self) -> bool:
        return self.orders.is_ready()

    def order(self, plan: str) -> None:
        if not self.dies:
            self.orders.order(plan)

    def has_ended(self) -> bool:
        return self.dies or not self.thread.is_alive()


class Merger:
    """A merge that follows a drain, on a thread."""

    def __init__(self, shop: Environment, spark: SparkSession, follower: Follower) -> None:
        self.shop, self.spark, self.follower = shop, spark, follower
        self.application: Application | None = None
        self.error: BaseException | None = None
        self.plans = 0
        self.thread = threading.Thread(target=self._merge)
        self.thread.start()

    def _merge(self) -> None:
        run = self.shop.task("merge", "following", now=self.follower.now)
        try:
            with plan_orders(run, self.shop.store) as orders:
                self.application = Application(self.spark, orders)
                cycles = MergeCycles(run, self.follower.window, self.follower.run.holder, lambda: False)
                for cycle in cycles.results(self.application):
                    self.plans += bool(cycle.plan)
                orders.end()
                self.application.thread.join(60)
        except BaseException as failed:
            self.error = failed

    def end(self) -> None:
        self.thread.join(120)
        if self.error is not None:
            raise self.error


@pytest.fixture
def shop(new_environment: Callable[..., Environment]) -> Environment:
    environment = new_environment(f"following{next(_numbers)}", (TableRule("public.*"),))
    environment.sql("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    environment.sql("CREATE TABLE lines (id int PRIMARY KEY, note text)")
    environment.preflight()
    return environment


@contextmanager
def followed(shop: Environment, spark: SparkSession) -> Iterator[tuple[Follower, Merger]]:
    """Both at work; they end with the block."""
    follower = Follower(shop, "following", 0.2)
    merger = Merger(shop, spark, follower)
    try:
        yield follower, merger
        follower.end()
        merger.end()
    finally:
        follower.is_over = True
        follower.thread.join(60)
        merger.thread.join(120)


def is_level(shop: Environment) -> bool:
    try:
        return judge.wrongs(shop) == []
    except AssertionError:  # a column that the table does not have yet
        return False


@pytest.mark.thorough
def test_tables_follow_the_source_while_definitions_change(shop: Environment, spark: SparkSession) -> None:
    with followed(shop, spark) as (_, merger):
        for number in range(3):
            shop.sql(f"INSERT INTO orders SELECT i, 'n' FROM generate_series({number} * 10, {number} * 10 + 9) i")
            shop.sql(f"UPDATE orders SET note = 'u' WHERE id % 3 = {number}", "DELETE FROM orders WHERE id % 7 = 1")
            wait_for("the tables equal the source", lambda: is_level(shop), 60)
        shop.sql("ALTER TABLE orders ADD COLUMN more int DEFAULT 7", "INSERT INTO orders VALUES (100, 'm', 1)")
        wait_for("the tables equal the source", lambda: is_level(shop), 60)
        shop.sql("TRUNCATE orders", "INSERT INTO lines VALUES (1, 'n')", "INSERT INTO orders VALUES (101, 'm', 1)")
        wait_for("the tables equal the source", lambda: is_level(shop), 60)
        staged = shop.staged_lsn()
        wait_for("the slot stands at what is applied everywhere", lambda: shop.confirmed_lsn() == staged, 60)
    assert merger.plans >= 5
    assert shop.store.list(layout.orders_root(shop.config.pipeline)) == []


def test_who_waits_for_slot_or_table_is_let_in(shop: Environment, spark: SparkSession) -> None:
    shop.sql("INSERT INTO orders VALUES (1, 'n')")
    with followed(shop, spark):
        wait_for("the tables equal the source", lambda: is_level(shop), 60)
        for number in range(2, 5):
            shop.sql(f"INSERT INTO orders VALUES ({number}, 'n')")
            with leases.hold(shop.ledger, shop.config.pipeline, leases.of_table("public.orders"), "other", wait_s=60):
                shop.sql(f"INSERT INTO lines VALUES ({number}, 'n')")
                wait_for("another table goes on", lambda: judge.wrongs(shop, ["public.lines"]) == [], 60)
            confirm(shop.task("confirm", "other"), wait_s=60)
        wait_for("the tables equal the source", lambda: is_level(shop), 60)


def test_a_table_whose_merge_takes_long_holds_back_no_other(
    shop: Environment, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders are merged as slowly as the test likes. That shows in their first merge."""
    goes_on, at_work = threading.Event(), threading.Event()
    merge_table = TableMerge.run

    def run(merge: TableMerge) -> TableResult:
        if merge.planned.table != "public.orders":
            return merge_table(merge)
        at_work.set()
        goes_on.wait(60)
        return replace(merge_table(merge), seconds=3600.0)

    monkeypatch.setattr(TableMerge, "run", run)
    shop.sql("INSERT INTO orders VALUES (0, 'n')")
    goes_on.set()
    with followed(shop, spark) as (follower, merger):
        wait_for("the tables equal the source", lambda: is_level(shop), 60)
        goes_on.clear()
        at_work.clear()
        shop.sql("INSERT INTO orders VALUES (1, 'n')")
        wait_for("the slow table is merged", at_work.is_set, 60)
        for number in range(3):
            shop.sql(f"INSERT INTO lines VALUES ({number}, 'n')", f"INSERT INTO orders VALUES ({number + 2}, 'n')")
            wait_for("another table goes on", lambda: judge.wrongs(shop, ["public.lines"]) == [], 20)
        assert judge.wrongs(shop, ["public.orders"]) != []
        goes_on.set()
        wait_for("the tables equal the source", lambda: is_level(shop), 60)
        # Both lanes are at work when the run ends.
        shop.sql("INSERT INTO lines VALUES (3, 'n')", "INSERT INTO orders VALUES (5, 'n')")
        follower.await_staged()
    assert is_level(shop)
    assert merger.error is None


@pytest.mark.thorough
def test_a_merge_whose_application_dies_fails_and_the_next_one_goes_on(shop: Environment, spark: SparkSession) -> None:
    follower = Follower(shop, "following", 0.2)
    first = Merger(shop, spark, follower)
    try:
        shop.sql("INSERT INTO orders VALUES (1, 'n')")
        wait_for("the tables equal the source", lambda: is_level(shop), 60)
        assert first.application is not None
        first.application.dies = True
        shop.sql("INSERT INTO orders VALUES (2, 'n')")
        with pytest.raises(SparkApplicationFailed):
            first.end()
        with pytest.raises(PlanMissing):
            list(ordered_plans(spark, first.application.orders.manifest))
        second = Merger(shop, spark, follower)
        wait_for("the tables equal the source", lambda: is_level(shop), 60)
    finally:
        follower.end()
    second.end()
    assert is_level(shop)
    run = shop.task("merge", "following")
    (orders,) = advanced(run, [merged_in_run(run)])
    ((last,),) = shop.ledger_query("SELECT applied_lsn FROM tidemark.positions")
    assert (str(orders.table), orders.start_lsn, orders.end_lsn) == ("public.orders", None, last)
    assert orders.rows["history"] == 2


def test_an_operator_that_outlives_its_successor_orders_nothing_more(shop: Environment) -> None:
    with plan_orders(shop.task("merge"), shop.store) as first:
        first.order("a plan")
        with plan_orders(shop.task("merge"), shop.store) as second:
            first.beat_if_ours()
            with pytest.raises(LeaseLost):
                first.order("another plan")
            assert shop.store.list(layout.orders_root(shop.config.pipeline)) == [second.attempt]


def test_orders_of_another_run_stay_as_long_as_its_operator_beats(
    shop: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_orders_module, "BEAT_S", 0.05)
    root = layout.orders_root(shop.config.pipeline)
    shop.store.write_new(f"{root}/silent/beat", b"7")
    shop.store.write_new(f"{root}/never/order-1", b"a plan")
    first, second = (plan_orders(shop.task("merge", run), shop.store) for run in ("first", "second"))
    with first as earlier, second as later:
        wait_for("the silent ones are gone", lambda: len(shop.store.list(root)) == 2)
        assert shop.store.list(root) == sorted([earlier.attempt, later.attempt])
        earlier.order("a plan")


def order_many(shop: Environment, orders: PlanOrders) -> None:
    """A slow plan is at work all the time."""
    shop.store.write_new(layout.plan_file(shop.config.pipeline, "slow"), b"{}")
    orders.order("slow")
    for number in range(2, 51):
        orders.order(f"p{number}")
        shop.store.write_new(layout.result_file(shop.config.pipeline, f"p{number}"), b"{}")


def test_orders_are_removed_once_their_plans_are_applied(shop: Environment) -> None:
    with plan_orders(shop.task("merge"), shop.store) as orders:
        order_many(shop, orders)
        folder = layout.orders_folder(shop.config.pipeline, orders.attempt)
        assert sorted(shop.store.list(folder)) == ["beat", "order-1", "order-50"]


def test_a_driver_that_a_cluster_starts_anew_goes_on_with_the_orders_that_are_left(
    shop: Environment, spark: SparkSession
) -> None:
    with plan_orders(shop.task("merge"), shop.store) as orders:
        order_many(shop, orders)
        anew = ordered_plans(spark, orders.manifest)
        assert [next(anew).rpartition("/plans/")[2] for _ in range(2)] == ["slow/plan.json", "p50/plan.json"]
        orders.order("p51")
        assert next(anew).endswith("/p51/plan.json")
        orders.end()
        assert list(anew) == []


def test_an_application_that_cannot_apply_a_plan_ends(shop: Environment, spark: SparkSession) -> None:
    ended_by: list[BaseException] = []

    def run(manifest: str) -> None:
        try:
            follow_plans.run(spark, manifest)
        except BaseException as failed:
            ended_by.append(failed)

    with plan_orders(shop.task("merge"), shop.store) as orders:
        orders.order("a plan that is not there")
        application = threading.Thread(target=run, args=(orders.manifest,), daemon=True)
        application.start()
        application.join(60)
        assert [type(failed) for failed in ended_by] == [PlanMissing]


def test_an_application_whose_operator_is_silent_ends(shop: Environment, spark: SparkSession) -> None:
    with plan_orders(shop.task("merge"), shop.store) as orders:
        times = itertools.count(0.0, 20.0)
        with pytest.raises(PlanMissing):
            list(ordered_plans(spark, orders.manifest, clock=lambda: next(times), sleep=lambda _: None))
