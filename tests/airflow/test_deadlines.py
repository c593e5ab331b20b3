"""A run that does not come to its end tells what is red all the same, as far as Airflow is there to notice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk import BaseNotifier
from airflow.serialization.serialized_objects import DagSerialization

from sandbox.services.postgres import wait_for
from tests.airflow.captured_shop import SLOW_S, Shop
from tests.support.airflow_home import AirflowHome, postgres_connection
from tests.support.pipeline import Pipeline
from tidemark.config.file_reader import load
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import merge_states
from tidemark.ledger.connection import open_ledger
from tidemark.observe.table_commands import unpark
from tidemark_airflow import deadlines
from tidemark_airflow.dag_factory import backfill_dag, capture_dag

ERROR = ErrorRecord("TargetDiffers", "FIX_TARGET", "The Delta table has other columns. Undo that.")
NOTIFIERS = """
from pathlib import Path
from airflow.sdk import BaseNotifier

class Writing(BaseNotifier):
    def __init__(self, message):
        super().__init__()
        self.message = message

    def notify(self, context):
        assert context["dag_run"]["dag_id"] == "shop_capture"
        with Path({told!r}).open("a") as file:
            file.write(self.message + "\\n\\n")
"""
DAG_FILE = """
from tidemark.config.file_reader import load
from tidemark_airflow import deadlines
from tidemark_airflow.dag_factory import capture_dag
deadlines.of_capture = lambda config: deadlines.after(config, 1)
dag = capture_dag(load({file!r}))
"""


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    file = tmp_path / "shop.yaml"
    file.write_text("source: {connection: shop_source}\ntables: [shop.*]\nlake: lake\n")
    return file


@pytest.mark.parametrize("program", ["/usr/bin/airflow", "/lib/airflow/__main__.py"])
def test_a_run_of_dags_test_has_no_deadline(shop_file: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert capture_dag(load(shop_file)).deadline
    monkeypatch.setattr("sys.argv", [program, "dags", "test", "shop_capture"])
    assert not capture_dag(load(shop_file)).deadline


def test_every_run_of_a_scheduled_capture_has_a_deadline(shop_file: Path) -> None:
    config = load(shop_file)
    (alert,) = capture_dag(config).deadline
    assert alert.interval > timedelta(seconds=config.alerts.max_lag_s)
    assert alert.callback.path == "tidemark_airflow.deadlines.look"
    assert alert.callback.kwargs == {"path": str(shop_file)}
    assert DagSerialization.to_dict(capture_dag(config))["dag"]["deadline"]
    assert not capture_dag(replace(config, schedule=None)).deadline
    assert not backfill_dag(config).deadline


told: list[str] = []


class Telling(BaseNotifier):
    """A notifier that keeps what it is told."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def notify(self, context: object) -> None:
        told.append(self.message)


def test_a_missed_deadline_tells_once_what_is_red_and_once_when_it_is_over(
    captured: Pipeline, shop_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_SOURCE", postgres_connection(captured.source))
    monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_LEDGER", postgres_connection(captured.ledger))
    captured.execute("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int PRIMARY KEY)")
    shop_file.write_text(shop_file.read_text() + f"alerts: {{notifier: {__name__}.Telling}}\n")
    captured.config = load(shop_file)
    captured.capture()
    told.clear()

    def missed() -> list[str]:
        asyncio.run(deadlines.look(str(shop_file), {"dag_run": {}}))
        return told

    assert missed() == [], "a run that is merely long is no reason to tell anything"
    with open_ledger(captured.ledger, "shop") as book:
        merge_states.park(book, "shop.orders", ERROR)
    for _ in range(2):
        (parked,) = missed()
    assert parked.startswith("Pipeline shop: shop.orders is parked")
    captured.ledger_query(
        "UPDATE tidemark.generations SET heartbeat_at = past, opened_at = past "
        "FROM (SELECT now() - interval '2 days') AS t (past)"
    )
    (_, stands_still) = missed()
    assert "Nothing was staged since" in stands_still
    assert captured.ledger_query("SELECT count(*) FROM tidemark.runs") == [(0,)], "it is no run of the capture"
    captured.ledger_query("UPDATE tidemark.generations SET opened_at = now()")
    unpark(captured.config, "shop.orders", ledger=captured.ledger)
    for _ in range(2):
        (_, _, *over) = missed()
    assert sorted(", over, told" in message or ": over, told" in message for message in over) == [True, True]


@pytest.mark.thorough
def test_a_scheduler_and_a_triggerer_tell_of_a_run_that_does_not_begin(shop: Shop, tmp_path: Path) -> None:
    """The DAG is paused, and somebody triggered it."""
    airflow, written = shop.airflow, tmp_path / "told"
    with open_ledger(shop.ledger, "shop") as book:
        merge_states.park(book, "shop.audit", ERROR)
    config = airflow.folder / "config"
    config.mkdir()
    (config / "writing_notifiers.py").write_text(NOTIFIERS.format(told=str(written)))
    shop.configure(schedule='"*/5 * * * *"')
    shop.file.write_text(shop.file.read_text().replace("alerts: {", "alerts: {notifier: writing_notifiers.Writing, "))
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "shop.py").write_text(DAG_FILE.format(file=str(shop.file)))
    there = replace(airflow, settings={**airflow.settings, "AIRFLOW__CORE__DAGS_FOLDER": str(dags)})
    with there.services("api-server", "scheduler", "dag-processor", "triggerer"):
        there.wait_until_healthy("scheduler", "dag_processor", "triggerer", seconds=SLOW_S)
        wait_for("the DAG is known", lambda: _is_known(there), SLOW_S)
        there.send("POST", "/api/v2/dags/shop_capture/dagRuns", {"logical_date": None})
        wait_for("somebody is told", written.exists, SLOW_S)
    assert written.read_text().startswith("Pipeline shop: shop.audit is parked")


def _is_known(airflow: AirflowHome) -> bool:
    return any(dag["dag_id"] == "shop_capture" and dag["is_paused"] for dag in airflow.get("/api/v2/dags")["dags"])
