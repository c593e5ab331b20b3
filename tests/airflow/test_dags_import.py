"""Every DAG imports without the network, fast, and one broken file harms no other pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import FOLDERS, parse_folders
from tests.unit.test_architecture import REPOSITORY

HEAVY = {"pyspark", "psycopg", "psycopg2", "pyarrow", "pandas", "numpy", "delta", "fsspec"}
CAPTURE_TASKS = {"preflight", "changes_waiting", "drain", "merge", "confirm", "health"}


def test_every_dag_imports_and_serializes_with_the_network_blocked(sound: dict[str, Any]) -> None:
    assert sound["import_errors"] == {}
    named = {"shop_capture", "shop_backfill", "shop_verify", "shop_maintenance", "shop_replay"}
    named |= {path.stem for path in (REPOSITORY / "dags").glob("example_*.py")}
    assert len(named) > 8
    assert named <= set(sound["dags"])
    assert all(sound["serialized"].values())


def test_a_verify_has_a_backfills_tasks_and_runs_every_night(sound: dict[str, Any]) -> None:
    verify, backfill = sound["dags"]["shop_verify"], sound["dags"]["shop_backfill"]
    assert set(verify["tasks"]) == set(backfill["tasks"])
    assert verify["schedule"] == "0 2 * * *"
    assert backfill["schedule"] == "None"


def test_parsing_imports_nothing_heavy(sound: dict[str, Any]) -> None:
    assert not HEAVY & {module.partition(".")[0] for module in sound["imported_by_dags"]}
    assert "tidemark.config.file_reader" in sound["imported_by_dags"], "the list of modules says nothing"


@pytest.mark.thorough
def test_parsing_in_another_process_gives_the_same_dags(sound: dict[str, Any], parsed_below: Path) -> None:
    (again,) = parse_folders(FOLDERS["sound"], below=parsed_below)
    assert again["dags"] == sound["dags"]


def test_a_broken_file_fails_alone_and_shows_every_problem(parsed: dict[str, dict[str, Any]]) -> None:
    facts = parsed["broken"]
    assert facts["import_errors"] == {}
    assert set(facts["dags"]["shop_capture"]["tasks"]) == CAPTURE_TASKS
    stock = facts["dags"]["stock_capture"]
    assert list(stock["tasks"]) == ["pipeline_file"]
    assert "did you mean 'tables'?" in stock["doc_md"]
    assert "did you mean 'schedule'?" in stock["doc_md"]
    assert stock["is_paused_upon_creation"] is False
    assert stock["schedule"] is not None
    assert "notes.yaml" in facts["dags"]["notes_capture"]["doc_md"]


def test_a_schedule_that_airflow_refuses_fails_alone(parsed: dict[str, dict[str, Any]]) -> None:
    facts = parsed["refused schedule"]
    assert facts["import_errors"] == {}
    assert set(facts["dags"]["shop_capture"]["tasks"]) == CAPTURE_TASKS
    assert list(facts["dags"]["stock_capture"]["tasks"]) == ["pipeline_file"]


def test_two_files_of_one_name_keep_the_first(parsed: dict[str, dict[str, Any]]) -> None:
    facts = parsed["one name twice"]
    assert facts["import_errors"] == {}
    assert set(facts["dags"]["shop_capture"]["tasks"]) == CAPTURE_TASKS
    assert "is also named 'shop'" in facts["dags"]["zzz_capture"]["doc_md"]


def test_a_broken_file_does_not_take_the_name_of_a_sound_pipeline(parsed: dict[str, dict[str, Any]]) -> None:
    facts = parsed["broken with the name of a sound one"]
    assert set(facts["dags"]["shop_capture"]["tasks"]) == CAPTURE_TASKS
    assert list(facts["dags"]["shop.yaml_broken"]["tasks"]) == ["pipeline_file"]
