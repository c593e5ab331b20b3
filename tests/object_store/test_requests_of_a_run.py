"""What the tasks of a run ask a bucket for: as often in a pipeline's first runs as in one that is ten times as old, and
has ten times as many batches and plans. The driver is played; what real ones ask, tests/faults/test_lake_on_s3.py has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import access
from tidemark.capture.merge_planning import ingest
from tidemark.capture.waiting import changes_waiting
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import Holes, PlanResult, TableResult

pytestmark = pytest.mark.thorough

TABLES: Final = ("customer", "item", "purchase")
YOUNG, OLD = 3, 33
Asked = dict[str, Counter[str]]


@pytest.fixture
def shop(captured: Pipeline, s3_proxy: Proxy, bucket: str) -> Pipeline:
    captured.config = replace(captured.config, lake=f"s3a://{bucket}/lake", lake_access=access(s3_proxy.url))
    s3_proxy.page = 20  # a listing that grew would be asked for in more parts
    captured.execute(*(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in TABLES))
    captured.capture()
    return captured


def run(shop: Pipeline, number: int, *, changes: bool) -> dict[str, Callable[[], object]]:
    """The tasks of a run, by name, in their order."""
    if changes:
        shop.execute(*(f"INSERT INTO {table} VALUES ({number}, 0)" for table in TABLES))
    before = {
        "preflight": shop.sound,
        "waiting": lambda: changes_waiting(shop.config, source=shop.source, ledger=shop.ledger),
    }
    staged = {"drain": lambda: shop.drain(f"run {number}"), "merge": lambda: merge(shop)}
    return {**before, **(staged if changes else {}), "confirm": shop.confirm}


def merge(shop: Pipeline) -> None:
    """Of the task's requests, and of the result that a driver leaves."""
    task = shop.task("merge")
    ingest(task)
    plan = make_plan(task)
    assert plan is not None
    leave_result(shop, plan)
    assert ingest(task).plans == (plan.plan,)


def leave_result(shop: Pipeline, plan: MergePlan) -> None:
    tables = tuple(TableResult(t.table, t.end_lsn, t.end_lsn, {"history": t.rows}, Holes({}, ())) for t in plan.tables)
    result = PlanResult(plan.plan, plan.pipeline, plan.generation, tables)
    shop.store.write_atomic(layout.result_file(plan.pipeline, plan.plan), result.to_json().encode())


def asked(shop: Pipeline, proxy: Proxy, number: int) -> Asked:
    """Of a run with changes in three tables, and of an idle one behind it."""
    by_task: Asked = {}
    for changes in (True, False):
        for name, task in run(shop, number, changes=changes).items():
            proxy.forget()
            task()
            by_task[name if changes else f"idle {name}"] = proxy.counted()
    return by_task


def test_a_pipeline_that_is_ten_times_as_old_asks_no_more(shop: Pipeline, s3_proxy: Proxy) -> None:
    for number in range(1, OLD + 1):
        counted = asked(shop, s3_proxy, number)
        if number == YOUNG:
            young = counted
    assert counted == young
    lists = {task: kinds["LIST"] for task, kinds in counted.items() if kinds["LIST"]}
    assert lists == {"preflight": 1, "drain": 1, "idle preflight": 1}
    assert [kinds for task, kinds in counted.items() if task in ("idle waiting", "idle confirm")] == [{}, {}]
