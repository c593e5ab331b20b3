"""The DAG as Airflow runs it: `airflow dags test`, and a real scheduler with triggerer on a schedule.

The judge is the demo's: every row of `current` is compared with the source's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from standalone.comparison import compare
from standalone.postgres import wait_for
from tests.support.airflow_home import AirflowHome, postgres_connection, spark_connection
from tidemark.capture.preflight import preflight
from tidemark.config import PipelineConfig
from tidemark.config_file import load

TABLES = ("shop.customers", "shop.orders", "shop.audit")
SCHEMA = """
CREATE SCHEMA shop;
CREATE TABLE shop.customers (id bigint PRIMARY KEY, email text NOT NULL, born date, prefs jsonb);
CREATE TABLE shop.orders
    (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), customer bigint, total numeric(12, 2), note text);
CREATE TABLE shop.audit (at timestamptz DEFAULT now(), what text);
ALTER TABLE shop.audit REPLICA IDENTITY FULL;
"""
FIRST_ORDERS = """
INSERT INTO shop.customers
    SELECT n, 'c' || n || '@example.org', date '1970-01-01' + n, '{"n": 1}' FROM generate_series(1, 500) n;
INSERT INTO shop.orders (customer, total, note)
    SELECT n, n * 1.01, (SELECT string_agg(md5((n * i)::text), '') FROM generate_series(1, 200) i)
    FROM generate_series(1, 300) n;
INSERT INTO shop.audit (what) VALUES ('opened');
"""
MORE_ORDERS = """
UPDATE shop.orders SET total = total + 1 WHERE customer <= 100;
DELETE FROM shop.orders WHERE customer > 250;
UPDATE shop.customers SET id = id + 10000 WHERE id <= 10;
INSERT INTO shop.audit (what) VALUES ('priced'), ('priced');
"""


class Shop:
    """A source database with its pipeline and an Airflow of its own."""

    def __init__(self, folder: Path, new_database: Callable[[str], str], schedule: str, bounds: str) -> None:
        self.source, self.ledger = new_database("source"), new_database("ledger")
        pipelines = folder / "pipelines"
        pipelines.mkdir()
        file = pipelines / "shop.yaml"
        file.write_text(
            "source: {connection: shop_source}\n"
            "tables: [shop.*]\n"
            "lake: ../lake\n"
            "spark: {conf: {spark.driver.memory: 1g, spark.ui.enabled: 'false', spark.driver.host: 127.0.0.1}}\n"
            f"schedule: {schedule}\n"
            f"bounds: {bounds}\n"
        )
        self.config: PipelineConfig = load(file)
        self.execute(SCHEMA)
        self.airflow = AirflowHome(
            folder / "airflow",
            new_database("airflow"),
            pipelines,
            {
                "shop_source": postgres_connection(self.source, application_name="shop"),
                "tidemark_ledger": postgres_connection(self.ledger),
                "spark_default": spark_connection(),
            },
        )
        self.airflow.migrate()

    def execute(self, statements: str) -> None:
        with psycopg.connect(self.source, autocommit=True) as connection:
            connection.execute(statements.encode())

    def differences(self, spark: SparkSession) -> dict[str, tuple[int, str]]:
        found = [compare(spark, source=self.source, lake=self.config.lake, pipeline="shop", table=t) for t in TABLES]
        assert all(c.source_rows for c in found), "nothing to compare"
        return {c.table: (c.differences, "\n".join(map(str, c.examples))) for c in found if not c.equal}

    def confirmed_lsn(self) -> str:
        with psycopg.connect(self.source) as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (self.config.slot,)
            ).fetchone()
        assert row is not None
        return str(row[0])


def test_dags_test_brings_the_tables_to_the_source_and_an_idle_run_starts_no_spark(
    tmp_path: Path, new_database: Callable[[str], str], spark: SparkSession
) -> None:
    shop = Shop(tmp_path, new_database, "null", "{}")
    preflight(shop.config, source=shop.source, ledger=shop.ledger).raise_for_errors()
    before = shop.confirmed_lsn()
    shop.execute(FIRST_ORDERS)
    shop.execute(MORE_ORDERS)

    done = shop.airflow.run("dags", "test", "shop_capture")
    assert done.returncode == 0, done.stdout[-6000:]
    assert shop.differences(spark) == {}
    assert shop.confirmed_lsn() > before
    events = dict(shop.airflow.asset_events())
    assert set(events) == {f"tidemark://shop/{table.replace('.', '/')}" for table in TABLES}
    assert events["tidemark://shop/shop/orders"]["rows"]["deleted"] == 0
    assert events["tidemark://shop/shop/orders"]["end_lsn"]

    idle = shop.airflow.run("dags", "test", "shop_capture")
    assert idle.returncode == 0, idle.stdout[-6000:]
    assert "Spark-Submit cmd" in done.stdout
    assert "Spark-Submit cmd" not in idle.stdout
    assert shop.airflow.task_states("shop_capture") == [
        dict.fromkeys(("preflight", "changes_waiting", "drain", "merge", "confirm"), "success"),
        {
            **dict.fromkeys(("preflight", "confirm"), "success"),
            **dict.fromkeys(("changes_waiting", "drain", "merge"), "skipped"),
        },
    ]


def test_an_error_that_no_retry_mends_fails_the_run_at_once_and_confirms_nothing(
    tmp_path: Path, new_database: Callable[[str], str]
) -> None:
    shop = Shop(tmp_path, new_database, "null", "{}")
    done = shop.airflow.run("dags", "test", "shop_capture", AIRFLOW_CONN_SPARK_DEFAULT="spark://local[2]")
    assert done.returncode != 0
    assert "resolves to --master yarn" in done.stdout
    assert shop.airflow.task_states("shop_capture") == [
        {
            "preflight": "failed",
            **dict.fromkeys(("changes_waiting", "drain", "merge", "confirm"), "upstream_failed"),
        }
    ]


def test_a_scheduler_runs_the_dag_twice_on_its_schedule_and_the_triggerer_wakes_it(
    tmp_path: Path, new_database: Callable[[str], str], spark: SparkSession
) -> None:
    shop = Shop(tmp_path, new_database, '"* * * * *"', "{wait_s: 55}")
    preflight(shop.config, source=shop.source, ledger=shop.ledger).raise_for_errors()
    shop.execute(FIRST_ORDERS)
    airflow = shop.airflow

    def finished(runs: int) -> bool:
        states = airflow.task_states("shop_capture")
        assert not any(state in ("failed", "upstream_failed") for run in states for state in run.values()), states
        return sum(run.get("confirm") == "success" for run in states) >= runs

    def deferred() -> bool:
        return any(run.get("changes_waiting") == "deferred" for run in airflow.task_states("shop_capture"))

    with airflow.services("api-server", "scheduler", "dag-processor", "triggerer"):
        airflow.wait_until_healthy("scheduler", "dag_processor", "triggerer")
        for dag_id in ("shop_capture", "example_orders_report"):
            wait_for(f"{dag_id} is known", lambda dag_id=dag_id: airflow.unpause(dag_id), 60)
        wait_for("the first scheduled run is over", lambda: finished(1), 150)
        assert shop.differences(spark) == {}
        wait_for("the next run waits in the triggerer", deferred, 150)
        shop.execute(MORE_ORDERS)
        wait_for("the second scheduled run is over", lambda: finished(2), 150)
        assert shop.differences(spark) == {}
        wait_for(
            "the report ran for the orders' asset",
            lambda: {"report": "success"} in airflow.task_states("example_orders_report"),
            60,
        )


@pytest.mark.parametrize("broken", ["tabels: [shop.*]\n", "source: 3\n"])
def test_a_broken_pipeline_file_is_a_red_run_with_its_problems(
    tmp_path: Path, new_database: Callable[[str], str], broken: str
) -> None:
    shop = Shop(tmp_path, new_database, "null", "{}")
    (shop.airflow.pipelines / "stock.yaml").write_text(broken)
    done = shop.airflow.run("dags", "test", "stock_capture")
    assert done.returncode != 0
    assert "stock.yaml:1" in done.stdout
    assert shop.airflow.task_states("stock_capture") == [{"pipeline_file": "failed"}]
