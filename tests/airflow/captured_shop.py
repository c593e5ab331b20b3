"""A shop with its pipeline, its slot and an Airflow of its own, for the tests that run whole DAGs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.conftest import QUIET, create_database, drop_database
from tests.support import delta_files, judge
from tests.support.airflow_home import AirflowHome, postgres_connection, spark_connection
from tests.support.pipeline import Pipeline
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.formats import layout
from tidemark.names import TableName

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

# Nothing here takes so long; a machine that does other things besides may.
SLOW_S = 300


class Shop(Pipeline):
    """A source database with its pipeline, its slot, and an Airflow of its own."""

    def __init__(self, folder: Path, source: str, ledger: str, metadata: str) -> None:
        """`metadata` is a migrated database of Airflow's."""
        self.file = folder / "pipelines" / "shop.yaml"
        self.file.parent.mkdir()
        super().__init__(self.configure(), source, ledger)
        self.sql(SCHEMA)
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
        self.airflow.folder.mkdir()

    def configure(
        self,
        schedule: str = "null",
        wait_s: int = 0,
        auto_backfill: bool = False,
        health: str = "red",
        merge: str = "{}",
        follow: str = "null",
    ) -> PipelineConfig:
        self.file.write_text(
            "source: {connection: shop_source}\n"
            "tables: [shop.*]\n"
            "lake: ../lake\n"
            "spark:\n"
            "  conf:\n"
            "    spark.driver.memory: 1g\n"
            "    spark.driver.host: 127.0.0.1\n"
            # As in the demo: every driver here lives for seconds.
            "    spark.driver.extraJavaOptions: >-\n"
            "      -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m\n"
            f"schedule: {schedule}\n"
            f"auto_backfill: {str(auto_backfill).lower()}\n"
            f"alerts: {{health: {health}}}\n"
            f"bounds: {{wait_s: {wait_s}}}\n"
            f"merge: {merge}\n"
            f"follow: {follow}\n"
        )
        return load(self.file)

    def dags_test(self, dag: str, exit_code: int = 0, **answers: object) -> str:
        """Run the DAG with these answers of its form by `airflow dags test`; returns what it printed."""
        conf = ("--conf", json.dumps(answers)) if answers else ()
        process = self.airflow.run("dags", "test", dag, *conf, timeout_s=SLOW_S)
        assert process.returncode == exit_code, process.stdout[-4000:]
        return process.stdout

    def differences(self, *more: str) -> dict[str, tuple[int, str]]:
        """Per table that is not as its source, how many rows differ, and some of them; `more` are tables of a test."""
        current = {
            table: Path(self.config.lake) / layout.current_table("shop", TableName.parse(table))
            for table in (*TABLES, *more)
        }
        comparisons = [judge.compare(self.source, delta_files.read(path), table) for table, path in current.items()]
        assert all(c.source_rows for c in comparisons), "nothing to compare"
        return {c.table: (c.differences, "\n".join(map(str, c.examples))) for c in comparisons if not c.equal}


@contextmanager
def open_shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """The shop, still without rows and without a slot."""
    # A server of its own for the source: what ledger and metadata write looks like work unread, and then an idle run
    # drains an empty batch.
    with running(tmp_path_factory.mktemp("source"), 18, **QUIET) as server:
        source = create_database(server, "source")
        ledger, metadata = create_database(postgres, "ledger"), new_metadata()
        yield Shop(tmp_path_factory.mktemp("shop"), source, ledger, metadata)
    for database in (ledger, metadata):
        drop_database(postgres, database)
