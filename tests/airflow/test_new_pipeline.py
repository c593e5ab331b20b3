"""Of a pipeline that has captured nothing, the DAGs that prove and clean up are skipped: un-pause all at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from tests.airflow.conftest import SHOP
from tests.support.airflow_home import postgres_connection
from tests.support.runs import a_run
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.ledger import migrations
from tidemark_airflow.dag_factory import capture_dag, maintenance_dag, verify_dag

TASKS: dict[str, Callable[[PipelineConfig], BaseOperator]] = {
    "plan": lambda config: verify_dag(config).get_task("plan"),
    "retire": lambda config: maintenance_dag(config).get_task("retire"),
    "compact": lambda config: maintenance_dag(config).get_task("compact"),
    "watch": lambda config: maintenance_dag(config).get_task("watch"),
}


@pytest.fixture
def config(tmp_path: Path, source: str, empty_ledger_database: str, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_SOURCE", postgres_connection(source))
    monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_LEDGER", postgres_connection(empty_ledger_database))
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return load(file)


def execute(task: BaseOperator) -> Any:
    ti = SimpleNamespace(dag_id="shop", run_id="scheduled__1", task_id=task.task_id, map_index=-1)
    params: dict[str, Any] = {}
    context: Any = {"ti": ti, "dag": None, "params": params, "dag_run": SimpleNamespace(conf={}, run_type="scheduled")}
    return task.execute(context)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ledger", ["without a schema", "with a schema"])
def test_nothing_captured_is_nothing_to_do(
    config: PipelineConfig, empty_ledger_database: str, task: str, ledger: str
) -> None:
    if ledger == "with a schema":
        migrations.migrate(empty_ledger_database)
    with pytest.raises(AirflowSkipException, match="shop_capture has not run yet"):
        execute(TASKS[task](config))


def test_a_database_without_a_table_is_nothing_to_do(
    config: PipelineConfig, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[*]"}')
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("DROP SCHEMA shop CASCADE")
    with pytest.raises(AirflowSkipException, match="The database has no table yet"):
        execute(capture_dag(config).get_task("preflight"))


def test_a_pipeline_that_captures_is_cleaned_up(
    config: PipelineConfig, source: str, empty_ledger_database: str
) -> None:
    preflight(a_run(config, source=source, ledger=empty_ledger_database)).raise_for_errors()
    assert execute(TASKS["retire"](config))["batches"] == 0
