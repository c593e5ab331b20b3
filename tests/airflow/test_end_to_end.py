"""The DAG as Airflow runs it: `airflow dags test`, and a real scheduler with triggerer on a schedule.

The judge is the demo's: every row of `current` is compared with the source's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from standalone.comparison import compare
from standalone.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database, drop_database
from tests.support.airflow_home import AirflowHome, postgres_connection, spark_connection
from tidemark.capture.preflight import preflight
from tidemark.config import PipelineConfig
from tidemark.config_file import load
from tidemark.lsn import Lsn

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


TASKS = ("preflight", "changes_waiting", "drain", "merge", "confirm")


# Nothing here takes so long; a machine that does other things besides may.
SLOW_S = 300


class Shop:
    """A source database with its pipeline, its slot, and an Airflow of its own."""

    def __init__(self, folder: Path, source: str, ledger: str, metadata: str) -> None:
        self.source, self.ledger = source, ledger
        self.file = folder / "pipelines" / "shop.yaml"
        self.file.parent.mkdir()
        self.config: PipelineConfig = self.configure(schedule="null", wait_s=0)
        self.execute(SCHEMA)
        # The slot comes first, so that no row is older than it.
        preflight(self.config, source=source, ledger=ledger).raise_for_errors()
        self.airflow = AirflowHome(
            folder / "airflow",
            metadata,
            self.file.parent,
            {
                "shop_source": postgres_connection(source, application_name="shop"),
                "tidemark_ledger": postgres_connection(ledger),
                "spark_default": spark_connection(),
            },
        )
        self.airflow.migrate()

    def configure(self, schedule: str, wait_s: int) -> PipelineConfig:
        self.file.write_text(
            "source: {connection: shop_source}\n"
            "tables: [shop.*]\n"
            "lake: ../lake\n"
            "spark: {conf: {spark.driver.memory: 1g, spark.driver.host: 127.0.0.1}}\n"
            f"schedule: {schedule}\n"
            f"bounds: {{wait_s: {wait_s}}}\n"
        )
        return load(self.file)

    def execute(self, statements: str) -> None:
        with psycopg.connect(self.source, autocommit=True) as connection:
            connection.execute(statements.encode())

    def differences(self, spark: SparkSession) -> dict[str, tuple[int, str]]:
        found = [compare(spark, source=self.source, lake=self.config.lake, pipeline="shop", table=t) for t in TABLES]
        assert all(c.source_rows for c in found), "nothing to compare"
        return {c.table: (c.differences, "\n".join(map(str, c.examples))) for c in found if not c.equal}

    def confirmed_lsn(self) -> Lsn:
        with psycopg.connect(self.source) as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (self.config.slot,)
            ).fetchone()
        assert row is not None
        return Lsn.parse(row[0])


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    # A server of its own for the source, that writes no WAL by itself: what ledger and metadata write beside it, or a
    # vacuum, looks like work unread, and then an idle run drains an empty batch.
    quiet = {"fsync": "off", "autovacuum": "off", "full_page_writes": "off"}
    with running(tmp_path_factory.mktemp("source"), 18, **quiet) as server:
        source = create_database(server, "source")
        ledger, metadata = create_database(postgres, "ledger"), create_database(postgres, "airflow")
        yield Shop(tmp_path_factory.mktemp("shop"), source, ledger, metadata)
    for database in (ledger, metadata):
        drop_database(postgres, database)


def test_dags_test_brings_the_tables_to_the_source_and_an_idle_run_starts_no_spark(
    shop: Shop, spark: SparkSession
) -> None:
    before = shop.confirmed_lsn()
    shop.execute(FIRST_ORDERS)
    shop.execute(MORE_ORDERS)
    done = shop.airflow.run("dags", "test", "shop_capture")
    assert done.returncode == 0, done.stdout[-6000:]
    assert shop.differences(spark) == {}
    assert shop.confirmed_lsn() > before
    events = dict(shop.airflow.asset_events())
    assert set(events) == {f"tidemark://shop/{table.replace('.', '/')}" for table in TABLES}
    assert events["tidemark://shop/shop/orders"]["rows"]["inserted"] == 250
    assert Lsn.parse(events["tidemark://shop/shop/orders"]["end_lsn"]) > before

    idle = shop.airflow.run("dags", "test", "shop_capture")
    assert idle.returncode == 0, idle.stdout[-6000:]
    assert "Spark-Submit cmd" in done.stdout
    assert "Spark-Submit cmd" not in idle.stdout
    assert "Changes wait" not in idle.stdout, [line for line in idle.stdout.splitlines() if "Changes wait" in line]
    assert shop.airflow.task_states("shop_capture") == [
        dict.fromkeys(TASKS, "success"),
        {**dict.fromkeys(TASKS, "skipped"), "preflight": "success", "confirm": "success"},
    ]


def test_an_error_that_no_retry_mends_fails_the_run_at_once_and_confirms_nothing(shop: Shop) -> None:
    before = shop.confirmed_lsn()
    shop.execute("INSERT INTO shop.audit (what) VALUES ('waits')")
    done = shop.airflow.run("dags", "test", "shop_capture", AIRFLOW_CONN_SPARK_DEFAULT="spark://local[2]")
    assert done.returncode != 0
    assert "resolves to --master yarn" in done.stdout
    states = shop.airflow.task_states("shop_capture")[-1]
    assert states == {**dict.fromkeys(TASKS, "upstream_failed"), "preflight": "failed"}
    assert shop.confirmed_lsn() == before


def test_a_broken_pipeline_file_is_a_red_run_with_its_problems(shop: Shop) -> None:
    broken = shop.file.with_name("stock.yaml")
    broken.write_text("tabels: [shop.*]\n")
    try:
        done = shop.airflow.run("dags", "test", "stock_capture")
    finally:
        broken.unlink()
    assert done.returncode != 0
    assert "stock.yaml:1: unknown key 'tabels'" in done.stdout
    assert shop.airflow.task_states("stock_capture") == [{"pipeline_file": "failed"}]


def test_a_scheduler_runs_the_dag_twice_on_its_schedule_and_the_triggerer_wakes_it(
    shop: Shop, spark: SparkSession
) -> None:
    airflow = shop.airflow
    earlier = len(airflow.task_states("shop_capture"))
    shop.configure(schedule='"* * * * *"', wait_s=55)
    shop.execute(FIRST_ORDERS.replace("generate_series(1,", "generate_series(20001, 20000 +"))

    def runs() -> list[dict[str, str]]:
        found = airflow.task_states("shop_capture")[earlier:]
        assert not [run for run in found if {"failed", "upstream_failed"} & set(run.values())], found
        return found

    def finished(count: int) -> bool:
        return [run["confirm"] for run in runs()[:count]] == ["success"] * count

    with airflow.services("api-server", "scheduler", "dag-processor", "triggerer"):
        airflow.wait_until_healthy("scheduler", "dag_processor", "triggerer", seconds=SLOW_S)
        for dag_id in ("shop_capture", "example_orders_report"):
            wait_for(f"{dag_id} is known", lambda dag_id=dag_id: airflow.unpause(dag_id), SLOW_S)  # type: ignore[misc]
        wait_for("the first scheduled run is over", lambda: finished(1), SLOW_S)
        assert shop.differences(spark) == {}
        wait_for(
            "the second run waits in the triggerer",
            lambda: [run["changes_waiting"] for run in runs()[1:2]] == ["deferred"],
            SLOW_S,
        )
        shop.execute("UPDATE shop.orders SET total = total + 1 WHERE customer <= 20100")
        wait_for("the second scheduled run is over", lambda: finished(2), SLOW_S)
        assert shop.differences(spark) == {}
        wait_for(
            "the report ran for the orders' asset",
            lambda: {"report": "success"} in airflow.task_states("example_orders_report"),
            SLOW_S,
        )
