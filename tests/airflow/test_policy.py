"""What every pipeline DAG has to be, whatever its file says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

TASKS = ["preflight", "changes_waiting", "drain", "merge", "confirm"]


@pytest.fixture
def capture(shop: dict[str, Any]) -> dict[str, Any]:
    return dict(shop["dags"]["shop_capture"])


def test_the_tasks_stand_in_one_chain(capture: dict[str, Any]) -> None:
    upstream = {name: task["upstream"] for name, task in capture["tasks"].items()}
    assert upstream == {"preflight": [], **{after: [before] for before, after in pairwise(TASKS)}}


def test_confirm_runs_after_a_skip_and_not_after_a_failure(capture: dict[str, Any]) -> None:
    rules = {name: task["trigger_rule"] for name, task in capture["tasks"].items()}
    assert rules == {**dict.fromkeys(TASKS, "all_success"), "confirm": "none_failed"}


def test_runs_do_not_overlap_and_nothing_is_backfilled_by_airflow(capture: dict[str, Any]) -> None:
    assert capture["max_active_runs"] == 1
    assert capture["catchup"] is False
    assert capture["allowed_run_types"] == ["manual", "scheduled"]
    for name in ("drain", "merge", "confirm"):
        assert capture["tasks"][name]["max_active_tis_per_dag"] == 1


def test_no_task_waits_for_a_pool_that_nobody_created(capture: dict[str, Any]) -> None:
    assert {task["pool"] for task in capture["tasks"].values()} == {"default_pool"}


def test_merge_is_bounded_and_retried_once_within_a_bounded_run(capture: dict[str, Any]) -> None:
    merge = capture["tasks"]["merge"]
    assert merge["execution_timeout_s"] == 3600
    assert merge["retries"] == 1
    assert capture["dagrun_timeout_s"] > 2 * merge["execution_timeout_s"]


def test_whose_move_it_is_decides_about_every_retry(capture: dict[str, Any]) -> None:
    assert {task["retry_policy"] for task in capture["tasks"].values()} == {"MovePolicy"}
    assert all(task["retries"] >= 1 for task in capture["tasks"].values())


def test_airflow_alone_decides_whether_a_new_pipeline_starts_paused(capture: dict[str, Any]) -> None:
    assert capture["is_paused_upon_creation"] is None
