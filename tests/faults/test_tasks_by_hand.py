"""Tasks cleared, or marked successful by hand: the ledger and the tables keep the order, never the state of a task."""

from __future__ import annotations

import pytest

from tests.faults import workload
from tests.support import judge
from tests.support.capture import Environment
from tests.support.thorough import thorough


@pytest.mark.parametrize(
    "skipped", [("merge",), *thorough(("drain", "merge"), ("drain",), ("confirm",), ("merge", "confirm"))]
)
def test_a_stage_marked_successful_by_hand_confirms_nothing_and_loses_nothing(
    skipped: tuple[str, ...], shop: Environment
) -> None:
    workload.change(shop)
    applied = shop.confirmed_lsn()
    shop.begin_run()
    for stage in ("drain", "merge", "confirm"):
        if stage not in skipped:
            getattr(shop, stage)()
    assert shop.confirmed_lsn() == applied, "something was confirmed that is not in the tables"
    workload.change(shop)
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


def test_any_task_of_any_run_cleared_changes_nothing(shop: Environment) -> None:
    runs = []
    for _ in range(3):
        workload.change(shop)
        runs.append(shop.run().run_id)
    versions = judge.delta_versions(shop)
    for run_id in (*runs, "run-1"):
        for stage in ("confirm", "merge", "drain"):
            shop.begin_run(run_id)
            getattr(shop, stage)()
        shop.run(run_id)
    assert judge.delta_versions(shop) == versions
    assert judge.wrongs(shop) == []
    workload.change(shop)
    shop.run()
    assert judge.wrongs(shop) == []


def test_a_cleared_drain_returns_the_batches_of_its_run(shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    first = shop.drain()
    again = shop.drain()
    assert first.batches
    assert again.batches[: len(first.batches)] == first.batches
    shop.merge()
    shop.confirm()
    assert judge.wrongs(shop) == []
