"""What every pipeline DAG has to be, whatever its file says."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import Any

import pytest

from tests.support.airflow_home import REPOSITORY

TASKS = ["preflight", "changes_waiting", "drain", "merge", "confirm", "health"]
BACKFILL_TASKS = ["plan", "read_chunks", "drain", "merge", "confirm", "report"]


@pytest.fixture
def capture(sound: dict[str, Any]) -> dict[str, Any]:
    return dict(sound["dags"]["shop_capture"])


@pytest.fixture
def backfill(sound: dict[str, Any]) -> dict[str, Any]:
    return dict(sound["dags"]["shop_backfill"])


def test_maintenance_runs_once_a_day_and_compacts_whatever_keeps_staging(sound: dict[str, Any]) -> None:
    maintenance = sound["dags"]["shop_maintenance"]
    assert maintenance["tasks"]["compact"]["upstream"] == ["retire"]
    assert maintenance["tasks"]["compact"]["trigger_rule"] == "all_done"
    assert maintenance["max_active_runs"] == 1
    assert maintenance["catchup"] is False
    assert maintenance["schedule"] == "@daily"


def test_the_tasks_stand_in_one_chain(capture: dict[str, Any], backfill: dict[str, Any]) -> None:
    for dag, tasks in ((capture, TASKS), (backfill, BACKFILL_TASKS)):
        upstream = {name: task["upstream"] for name, task in dag["tasks"].items()}
        assert upstream == {tasks[0]: [], **{after: [before] for before, after in pairwise(tasks)}}


def test_confirm_runs_after_a_skip_and_not_after_a_failure_and_health_whatever_happens(capture: dict[str, Any]) -> None:
    rules = {name: task["trigger_rule"] for name, task in capture["tasks"].items()}
    assert rules == {**dict.fromkeys(TASKS, "all_success"), "confirm": "none_failed", "health": "all_done"}


def test_a_backfill_of_nothing_confirms_and_reports(backfill: dict[str, Any]) -> None:
    rules = {name: task["trigger_rule"] for name, task in backfill["tasks"].items()}
    assert rules == {
        **dict.fromkeys(BACKFILL_TASKS, "all_success"),
        "confirm": "none_failed",
        "report": "none_failed",
    }


def test_runs_do_not_overlap_and_nothing_is_backfilled_by_airflow(capture: dict[str, Any]) -> None:
    assert capture["max_active_runs"] == 1
    assert capture["catchup"] is False
    assert capture["allowed_run_types"] == ["manual", "scheduled"]
    for name in ("drain", "merge", "confirm"):
        assert capture["tasks"][name]["max_active_tis_per_dag"] == 1


def test_a_backfill_is_started_by_a_person_or_by_capture_alone(backfill: dict[str, Any]) -> None:
    assert backfill["schedule"] == "None"
    assert backfill["allowed_run_types"] == ["manual", "operator_triggered"]
    assert backfill["max_active_runs"] == 1
    assert backfill["is_paused_upon_creation"] is False, "a triggered run of a paused DAG would wait for ever"


def test_nothing_ends_a_backfill_that_takes_days(backfill: dict[str, Any]) -> None:
    assert backfill["dagrun_timeout_s"] is None
    assert backfill["tasks"]["read_chunks"]["execution_timeout_s"] is None
    assert backfill["tasks"]["read_chunks"]["retries"] == 10
    assert backfill["tasks"]["report"]["retries"] == 2


def test_the_same_task_of_two_runs_does_not_overlap(backfill: dict[str, Any]) -> None:
    for name in ("plan", "drain", "merge", "confirm"):
        assert backfill["tasks"][name]["max_active_tis_per_dag"] == 1
    assert backfill["tasks"]["read_chunks"]["max_active_tis_per_dag"] is None


def test_no_task_waits_for_a_pool_that_nobody_created(capture: dict[str, Any], backfill: dict[str, Any]) -> None:
    pools = {task["pool"] for dag in (capture, backfill) for task in dag["tasks"].values()}
    assert pools == {"default_pool"}


def test_merge_is_bounded_and_retried_once_within_a_bounded_run(capture: dict[str, Any]) -> None:
    merge = capture["tasks"]["merge"]
    assert merge["execution_timeout_s"] == 3600 + 300, "the application, and all besides"
    assert merge["retries"] == 1
    assert capture["dagrun_timeout_s"] > 2 * merge["execution_timeout_s"]


def test_a_backfills_merge_may_wait_for_a_capture_and_a_captures_waits_for_nobody(
    capture: dict[str, Any], backfill: dict[str, Any]
) -> None:
    assert backfill["tasks"]["merge"]["execution_timeout_s"] == capture["tasks"]["merge"]["execution_timeout_s"] + 600


@pytest.mark.parametrize("dag", ["shop_capture", "shop_backfill", "shop_verify"])
def test_several_applications_are_one_mapped_task_behind_one_that_spreads(
    parsed: dict[str, dict[str, Any]], dag: str
) -> None:
    facts = parsed["spread"]["dags"][dag]
    tasks = facts["tasks"]
    assert parsed["spread"]["serialized"][dag]
    assert tasks["spread"]["upstream"] == ["drain"]
    assert tasks["merge"]["upstream"] == ["spread"]
    assert tasks["confirm"]["upstream"] == ["merge"]
    assert (tasks["merge"]["class"], tasks["merge"]["max_active_tis_per_dag"]) == ("MappedOperator", 3)
    assert (tasks["merge"]["retries"], tasks["confirm"]["trigger_rule"]) == (1, "none_failed")
    if dag == "shop_capture":
        assert facts["dagrun_timeout_s"] > 2 * 3 * tasks["merge"]["execution_timeout_s"], "one worker does them in turn"


def test_drain_and_merge_of_a_run_that_follows_work_beside_each_other(parsed: dict[str, dict[str, Any]]) -> None:
    facts = parsed["following"]["dags"]["shop_capture"]
    tasks = facts["tasks"]
    assert parsed["following"]["serialized"]["shop_capture"]
    upstream = {name: sorted(task["upstream"]) for name, task in tasks.items()}
    both = ["drain", "merge"]
    assert (upstream["drain"], upstream["merge"]) == (["preflight"], ["preflight"])
    assert (upstream["confirm"], upstream["health"], len(tasks)) == (both, ["confirm"], 5)
    lasts_s = 900 + 60 + 120
    assert {tasks[name]["retries"] for name in ("preflight", *both)} == {lasts_s // 10}, "as long as the run lasts"
    assert tasks["merge"]["execution_timeout_s"] == lasts_s + 3600 + 300, "until the next run has taken over"
    assert [facts["max_active_runs"], *(tasks[name]["max_active_tis_per_dag"] for name in both)] == [2, 2, 2]
    assert tasks["confirm"]["max_active_tis_per_dag"] == 1
    assert facts["dagrun_timeout_s"] > 900 + 2 * (3600 + 300)
    assert parsed["following"]["dags"]["shop_backfill"]["tasks"].keys() == {*BACKFILL_TASKS}


def test_runs_that_follow_overlap_unless_their_schedule_forbids_it(parsed: dict[str, dict[str, Any]]) -> None:
    facts = parsed["following continuously"]["dags"]["shop_capture"]
    assert parsed["following continuously"]["serialized"]["shop_capture"]
    assert [facts["max_active_runs"], facts["tasks"]["merge"]["max_active_tis_per_dag"]] == [1, 1]


def test_every_task_is_retried_and_links_to_its_pipeline(sound: dict[str, Any]) -> None:
    tasks = [
        task for dag, facts in sound["dags"].items() if dag.startswith("shop_") for task in facts["tasks"].values()
    ]
    assert all(task["retries"] >= 1 for task in tasks)
    assert {"Tidemark" in task["links"] for task in tasks} == {True}


def test_whose_move_it_is_decides_about_the_retries_of_every_operator() -> None:
    methods = [
        (path.name, node)
        for path in (REPOSITORY / "plugins" / "tidemark_airflow" / "operators").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in ("execute", "execute_complete")
    ]
    unguarded = [path for path, node in methods if ast.unparse(node.decorator_list[0]) != "guarded"]
    assert len(methods) > 10
    assert unguarded == []


def test_airflow_alone_decides_whether_a_new_pipeline_starts_paused(capture: dict[str, Any]) -> None:
    assert capture["is_paused_upon_creation"] is None
