"""Two that believe themselves alone: two drains, a Spark driver that outlives its task, batches merged out of order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.faults import workload
from tests.support import judge, stages
from tests.support.capture import Environment, go_on
from tests.support.runs import make_plan
from tests.support.thorough import thorough
from tidemark.capture.merge_planning import ingest
from tidemark.errors import LeaseTaken
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult
from tidemark.ledger.captured import merge_states


def test_a_second_drain_waits_for_the_first_one_to_end(shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    first = shop.halt("drain", "drain.before_register")
    shop.begin_run()
    with pytest.raises(LeaseTaken):
        shop.drain()
    assert go_on(first) == 0
    _converged(shop)


@pytest.mark.parametrize("at", ["drain.before_register", *thorough("drain.before_files", "drain.after_register")])
def test_of_two_drains_that_both_got_through_one_registers(at: str, shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    zombie = shop.halt("drain", at)
    shop.let_leases_end()
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    ended_well = go_on(zombie) == 0
    assert ended_well == (at == "drain.after_register"), "only a batch that was registered before counts"
    shop.merge()
    shop.confirm()
    _converged(shop)


@pytest.mark.parametrize("at", thorough("merge.before_history", "merge.before_current", "merge.before_result"))
def test_a_driver_that_outlives_its_task_changes_nothing(at: str, shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    zombie = shop.halt("merge", at)
    shop.let_leases_end()
    workload.change(shop)
    shop.run()
    assert judge.changes_of_outlived(shop, zombie) == []
    _converged(shop)


@pytest.mark.thorough
def test_two_drivers_at_once_apply_every_change_once(shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    first = shop.halt("merge", "merge.before_history")
    shop.let_leases_end()
    shop.begin_run()
    second = shop.start("merge")
    go_on(first)
    second.communicate(timeout=120)
    _converged(shop)


def test_a_batch_merged_before_the_one_ahead_of_it_is_an_error_that_changes_nothing(shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    plan = make_plan(shop.task("a test", shop.report.run_id))
    assert plan is not None
    assert all(len(table.batches) == 2 for table in plan.tables)
    _rewrite(shop, _without_its_first_batches(plan))
    before = judge.delta_versions(shop)
    stages.apply(shop.spark(), f"{shop.config.lake}/{layout.plan_file(plan.pipeline, plan.plan)}")
    result = _result(shop, plan)
    assert {table.error and table.error.kind for table in result.tables} == {"PositionBelowPlan"}
    assert judge.delta_versions(shop) == before
    # The plan was a forgery; that its error parks the tables is as it should be for an error whose move is not RETRY.
    ingest(shop.task())
    _unpark(shop)
    shop.let_leases_end()
    _converged(shop)


def _without_its_first_batches(plan: MergePlan) -> MergePlan:
    tables = tuple(replace(table, after=table.batches[0].end_lsn, batches=table.batches[1:]) for table in plan.tables)
    return replace(plan, tables=tables)


def _rewrite(environment: Environment, plan: MergePlan) -> None:
    environment.store.write_atomic(layout.plan_file(plan.pipeline, plan.plan), plan.to_json().encode())


def _result(environment: Environment, plan: MergePlan) -> PlanResult:
    stored = environment.store.read(layout.result_file(plan.pipeline, plan.plan))
    return PlanResult.from_json(stored.decode())


def _unpark(environment: Environment) -> None:
    with environment.ledger_connection() as connection:
        for table in judge.captured(environment):
            merge_states.unpark(connection, table)


def _converged(environment: Environment) -> None:
    environment.let_leases_end()
    environment.run()
    assert judge.wrongs(environment) == []
    assert judge.second_run_changes_nothing(environment) == []
