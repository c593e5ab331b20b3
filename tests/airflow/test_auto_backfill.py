"""Capture's last step: a run of the backfill DAG where the file says so, a table needs it and none is there yet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import DagRunTriggerException

from tests.airflow.conftest import SHOP
from tests.support.airflow_home import postgres_connection
from tidemark.backfill import backfill_requests
from tidemark.backfill.backfill_requests import RequestedTable
from tidemark.capture import confirm
from tidemark.capture.confirm import ConfirmResult
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark_airflow.dag_factory import capture_dag
from tidemark_airflow.operators.capture_operators import ConfirmOperator

CONFIRMED = ConfirmResult(Lsn(1), Lsn(2), Lsn(2), ())


class Capture:
    """A run's last task, with what it would find."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.found = [
            RequestedTable(table="shop.orders", mode="chunks", keys=(), reason="it had rows before its capture began")
        ]
        self.runs = 0
        self.user: str | None = None
        self.asked: list[tuple[str, list[str]]] = []

    def confirm(self) -> dict[str, Any]:
        task = capture_dag(self.config).get_task("confirm")
        assert isinstance(task, ConfirmOperator)
        ti = SimpleNamespace(
            dag_id="shop_capture", run_id="scheduled__1", task_id="confirm", map_index=-1, get_dr_count=self._count
        )
        context: Any = {"ti": ti, "dag_run": SimpleNamespace(triggering_user_name=self.user)}
        return task.execute(context)

    def _count(self, dag_id: str, states: list[str]) -> int:
        self.asked.append((dag_id, states))
        return self.runs


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", postgres_connection("host=h port=1 user=u dbname=d"))
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP + "auto_backfill: true\n")
    capture_dag = Capture(load(file))
    monkeypatch.setattr(confirm, "confirm", lambda *_, **__: CONFIRMED)
    monkeypatch.setattr(backfill_requests, "requested_tables", lambda *_, **__: capture_dag.found)
    return capture_dag


def test_a_table_that_needs_it_starts_a_run_of_the_backfill_dag(capture: Capture) -> None:
    with pytest.raises(DagRunTriggerException) as trigger:
        capture.confirm()
    assert trigger.value.trigger_dag_id == "shop_backfill"
    assert trigger.value.dag_run_id.startswith("operator_triggered__")
    assert trigger.value.conf == {}, "all tables that are wanted when it begins"
    assert not trigger.value.wait_for_completion
    assert "shop.orders" in str(trigger.value.note)


def test_nothing_is_started_while_a_run_is_queued_or_running(capture: Capture) -> None:
    capture.runs = 1
    assert capture.confirm()["after"] == "0/2"
    assert capture.asked == [("shop_backfill", ["queued", "running"])]


def test_nothing_is_started_where_nothing_is_wanted(capture: Capture) -> None:
    capture.found = []
    assert capture.confirm()["after"] == "0/2"


def test_nothing_is_started_where_the_file_does_not_say_so(capture: Capture) -> None:
    capture.config = dataclasses.replace(capture.config, auto_backfill=False)
    assert capture.confirm()["after"] == "0/2"


def test_a_table_that_is_built_beside_another_one_gets_a_run_of_its_own(capture: Capture) -> None:
    capture.config = dataclasses.replace(capture.config, auto_backfill=False)
    capture.found.append(RequestedTable("shop.lines~2", "chunks", (), "its key changed", builds=True))
    with pytest.raises(DagRunTriggerException) as trigger:
        capture.confirm()
    assert trigger.value.conf == {"tables": ["shop.lines~2"]}
    assert "shop.orders" not in str(trigger.value.note), "what the file does not have started"


def test_dags_test_says_what_to_run_next(capture: Capture, caplog: pytest.LogCaptureFixture) -> None:
    capture.user = "dag_test"
    assert capture.confirm()["after"] == "0/2"


def test_a_note_fits_however_many_tables_are_wanted(capture: Capture) -> None:
    one = capture.found[0]
    capture.found = [dataclasses.replace(one, table=str(TableName("shop", f"t{n}"))) for n in range(500)]
    with pytest.raises(DagRunTriggerException) as trigger:
        capture.confirm()
    assert len(str(trigger.value.note)) <= 1000
