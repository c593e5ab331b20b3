"""A table that was parked is announced once (R6): by the pipeline's notifier, or by one red run."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from tests.airflow.conftest import SHOP
from tests.support.airflow_home import postgres_connection
from tidemark.capture import confirm
from tidemark.capture.confirm import ConfirmResult
from tidemark.config import Alerts, PipelineConfig
from tidemark.config_file import load
from tidemark.errors import UnexpectedError
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.migrations import migrate
from tidemark.lsn import Lsn
from tidemark_airflow.operators import ConfirmOperator

ERROR = ErrorRecord("TargetDiffers", "FIX_TARGET", "The Delta table has other columns. Undo that.")
CONTEXT: Any = {
    "ti": SimpleNamespace(dag_id="shop_capture", run_id="manual__1", task_id="confirm", map_index=-1),
    "dag": None,
}
told: list[str] = []


class Telling(BaseNotifier):
    """A notifier that keeps what it is told, or cannot be reached."""

    reachable = True

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Any) -> None:
        if not self.reachable:
            raise ConnectionError("the notifier's server is down")
        told.append(self.message)


@pytest.fixture
def config(tmp_path: Path, ledger_database: str, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", postgres_connection(ledger_database))
    monkeypatch.setattr(confirm, "confirm", lambda *_, **__: ConfirmResult(Lsn(1), Lsn(2), Lsn(2), ()))
    migrate(ledger_database)
    with open_ledger(ledger_database, "shop") as connection:
        connection.execute("INSERT INTO tidemark.pipelines (pipeline) VALUES ('shop')")
        tables.add(connection, "shop.orders")
        tables.add(connection, "shop.stock")
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    told.clear()
    return load(file)


def park(ledger: str, table: str) -> None:
    with open_ledger(ledger, "shop") as connection:
        tables.park(connection, table, ERROR)


def execute(config: PipelineConfig) -> dict[str, Any]:
    return ConfirmOperator(task_id="confirm", config=config).execute(CONTEXT)


def with_notifier(config: PipelineConfig) -> PipelineConfig:
    return dataclasses.replace(config, alerts=Alerts(notifier=f"{__name__}.Telling"))


def test_without_a_notifier_one_run_is_red_after_it_confirmed(config: PipelineConfig, ledger_database: str) -> None:
    assert execute(config)["after"] == "0/2"
    park(ledger_database, "shop.orders")
    with pytest.raises(AirflowFailException, match=r"shop\.orders of pipeline shop was parked") as red:
        execute(config)
    assert "Undo that." in str(red.value)
    assert "tidemark unpark" in str(red.value)
    assert execute(config)["after"] == "0/2"


def test_the_message_has_the_commands_of_every_way_that_it_offers(config: PipelineConfig, ledger_database: str) -> None:
    config = with_notifier(config)
    error = ErrorRecord("SchemaNotFollowed", "BACKFILL", "It changed. Do this or that.")
    with open_ledger(ledger_database, "shop") as connection:
        tables.park(connection, "shop.orders", error)
        tables.park(connection, "shop.stock", replace(error, kind="MergeFailed", move="RETRY"))
    execute(config)
    orders, stock = told
    unpark = f"tidemark unpark {config.path} shop.orders"
    backfill = """airflow dags trigger shop_backfill --conf '{"tables": ["shop.orders"]}'"""
    assert orders.splitlines()[1:] == [
        f"To go on with its Delta tables, once they fit: {unpark}; then: {backfill}",
        f"To begin anew, once shop/history/shop/orders and shop/current/shop/orders are removed from {config.lake}: "
        f"{unpark} --anew; then let a run of shop_capture end; then: {backfill}",
    ]
    assert "It is tried again 1 h after the last time" in stock
    assert "--anew" not in stock


def test_the_notifier_is_called_once_per_parked_table(config: PipelineConfig, ledger_database: str) -> None:
    config = with_notifier(config)
    for table in ("shop.orders", "shop.stock"):
        park(ledger_database, table)
    for _ in range(2):
        assert execute(config)["after"] == "0/2"
    assert [message.split()[1] for message in told] == ["shop.orders", "shop.stock"]


def test_a_notifier_that_fails_is_called_again(
    config: PipelineConfig, ledger_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_notifier(config)
    park(ledger_database, "shop.orders")
    monkeypatch.setattr(Telling, "reachable", False)
    with pytest.raises(UnexpectedError, match="ConnectionError"):
        execute(config)
    monkeypatch.setattr(Telling, "reachable", True)
    execute(config)
    assert len(told) == 1


def test_a_table_parked_anew_is_announced_anew(config: PipelineConfig, ledger_database: str) -> None:
    config = with_notifier(config)
    for _ in range(2):
        park(ledger_database, "shop.orders")
        execute(config)
        with open_ledger(ledger_database, "shop") as connection:
            assert tables.unpark(connection, "shop.orders")
    assert len(told) == 2
