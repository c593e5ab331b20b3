"""What a maintenance makes of an application that leaves a result, dies, or takes too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.pipeline import Pipeline
from tidemark.errors import SparkApplicationFailed, SparkApplicationTooLong
from tidemark.formats import layout
from tidemark.formats.compaction_plan import CompactionPlan, CompactionResult, TableCompaction
from tidemark.maintenance.compaction_runs import ordered_result, plan_inspection, take_result
from tidemark.run import Run
from tidemark.spark_submit.plan_orders import plan_orders

TABLE = "public.item"
LIMIT_S = 60.0


class Scripted:
    """An application that does `work` with the plan that is ordered, and has ended then."""

    def __init__(self, work: Callable[[str], None]) -> None:
        self.work = work
        self.ended = False

    def is_ready(self) -> bool:
        return True

    def order(self, plan: str) -> None:
        self.work(plan)
        self.ended = True

    def has_ended(self) -> bool:
        return self.ended


@pytest.fixture
def run(pipeline: Pipeline) -> Run:
    """Its clock moves on by a second each time it is read."""
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline.begin()
    pipeline.execute("INSERT INTO item VALUES (1)")
    pipeline.drain()
    seconds: Iterator[int] = iter(range(1_000_000))
    return replace(pipeline.task("compact"), clock=lambda: float(next(seconds)))


@pytest.fixture
def plan(run: Run) -> CompactionPlan:
    inspection = plan_inspection(run)
    assert inspection is not None
    return inspection


def test_a_result_counts_even_if_the_application_ended_behind_it(
    pipeline: Pipeline, run: Run, plan: CompactionPlan
) -> None:
    result = CompactionResult(plan.plan, (TableCompaction(TABLE, "history", 9, 1, compacted=True),))

    def leave_result(named: str) -> None:
        folder = layout.maintenance_folder(run.pipeline, named)
        pipeline.store.write_atomic(f"{folder}/result.json", result.to_json().encode())

    assert ordered_result(run, plan, Scripted(leave_result), LIMIT_S, pause=lambda _: None) == result
    assert pipeline.store.list(layout.maintenance_root(run.pipeline)) == []


def test_an_application_that_ends_without_a_result_failed(run: Run, plan: CompactionPlan) -> None:
    with pytest.raises(SparkApplicationFailed, match="left no result"):
        ordered_result(run, plan, Scripted(lambda _: None), LIMIT_S, pause=lambda _: None)


def test_an_application_that_takes_longer_than_it_may_is_named_so(run: Run, plan: CompactionPlan) -> None:
    application = Scripted(lambda _: None)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        application.ended = False

    with pytest.raises(SparkApplicationTooLong):
        ordered_result(run, plan, application, LIMIT_S, pause=pause)
    assert len(pauses) == LIMIT_S


def test_orders_are_removed_once_their_results_are_read(pipeline: Pipeline, run: Run, plan: CompactionPlan) -> None:
    """A driver that a cluster starts anew would look for their plans, which are deleted then."""
    for name in ("second", "third"):
        pipeline.store.write_new(layout.maintenance_file(run.pipeline, name), b"{}")
    with plan_orders(run, pipeline.store, layout.maintenance_folder) as orders:
        folder = layout.orders_folder(run.pipeline, orders.attempt)
        orders.order(plan.plan)
        orders.order("second")
        assert sorted(pipeline.store.list(folder)) == ["beat", "order-1", "order-2"]
        take_result(run.config, plan)
        orders.order("third")
        assert sorted(pipeline.store.list(folder)) == ["beat", "order-2", "order-3"]
