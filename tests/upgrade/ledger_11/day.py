"""What a pipeline was left as by the Tidemark whose ledger was at version 11: `python day.py INPUT`.

Runs with that version's code (code.zip) in front of everything else on PYTHONPATH, so nothing here may import what it
did not have. INPUT is JSON: `source`, `ledger` (connection strings), `lake`, `pipeline`; `scratch` is a folder for
Spark.

Of each table, how the day ends:

    orders      read by a backfill, changed since; the last changes are staged and not merged
    lines       two columns as key; read and not claimed: its chunks wait for the next drain
    customers   a mask and a column that is left out; its backfill is planned and not read
    visits      without a key
    parked      a column of it was dropped, which that version could not follow: parked
    widened     a column of it was widened, which that version could not follow: parked
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psycopg

from tidemark.backfill.planning import BackfillRequest, plan
from tidemark.backfill.ranges import read_chunks
from tidemark.backfill.reporting import report
from tidemark.capture.confirm import confirm
from tidemark.capture.drain import drain
from tidemark.capture.merging import ingest, planned
from tidemark.capture.preflight import preflight
from tidemark.config import Bounds, PipelineConfig, TableRule
from tidemark.formats import layout

SALT = b"the salt of the tests"

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id bigint PRIMARY KEY, total numeric(12, 2), note text, placed_at timestamptz);
CREATE TABLE shop.lines ("order" bigint, line int, tags text[], PRIMARY KEY ("order", line));
CREATE TABLE shop.customers (id int PRIMARY KEY, email text, secret text, born date);
CREATE TABLE shop.visits (page text, seconds float8);
ALTER TABLE shop.visits REPLICA IDENTITY FULL;
CREATE TABLE shop.parked (id int PRIMARY KEY, gone text, stays text);
CREATE TABLE shop.widened (id int PRIMARY KEY, size numeric(6, 2));
INSERT INTO shop.orders SELECT i, i * 1.5, 'old', '2026-01-01' FROM generate_series(1, 300) i;
INSERT INTO shop.lines SELECT i, 1, ARRAY['a', 'b'] FROM generate_series(1, 200) i;
INSERT INTO shop.customers SELECT i, 'c' || i, 'kept out', '2000-01-01' FROM generate_series(1, 50) i;
"""

MORNING = """
INSERT INTO shop.orders SELECT i, i, 'new', '2026-02-01' FROM generate_series(301, 320) i;
UPDATE shop.orders SET note = 'paid' WHERE id % 50 = 0;
DELETE FROM shop.orders WHERE id = 7;
INSERT INTO shop.lines VALUES (1, 2, NULL);
INSERT INTO shop.customers VALUES (51, 'c51', 'kept out', '2001-01-01');
INSERT INTO shop.visits VALUES ('home', 1.5), ('home', 1.5), ('cart', 'NaN');
INSERT INTO shop.parked VALUES (1, 'a', 'b'), (2, 'c', 'd');
INSERT INTO shop.widened VALUES (1, 1234.56);
"""

NOON = """
ALTER TABLE shop.parked DROP COLUMN gone;
INSERT INTO shop.parked VALUES (3, 'e');
ALTER TABLE shop.widened ALTER COLUMN size TYPE numeric(8, 2);
INSERT INTO shop.widened VALUES (2, 123456.78);
UPDATE shop.orders SET total = total + 1 WHERE id < 20;
"""

EVENING = """
UPDATE shop.orders SET note = NULL, total = 0 WHERE id BETWEEN 10 AND 15;
UPDATE shop.orders SET id = 1000 WHERE id = 16;
DELETE FROM shop.visits WHERE page = 'cart';
INSERT INTO shop.parked VALUES (4, 'f');
"""


class Day:
    def __init__(self, where: dict[str, str]) -> None:
        self.source, self.ledger, self.scratch = where["source"], where["ledger"], where["scratch"]
        name = where["pipeline"]
        self.config = PipelineConfig(
            pipeline=name,
            source_connection="source",
            slot=f"tidemark_{name}",
            publication=f"tidemark_{name}",
            manage_publication=True,
            tables=(
                TableRule("shop.*"),
                TableRule("shop.customers", leave_out=("secret",), mask={"email": "sha256"}, line=4),
            ),
            lake=where["lake"],
            ledger_connection="ledger",
            mask_salt_connection="salt",
            bounds=Bounds(drain_stall_s=30, file_settle_s=0),
        )
        self.run_id = ""
        self._spark: Any = None

    def of(self, task: str) -> dict[str, str]:
        return {"ledger": self.ledger, "run_id": self.run_id, "holder": f"{self.config.pipeline}/{self.run_id}/{task}"}

    def sql(self, script: str) -> None:
        with psycopg.connect(self.source, autocommit=True) as connection:
            for statement in script.split(";\n"):
                if statement.strip():
                    connection.execute(statement.encode())

    def preflight(self) -> None:
        preflight(self.config, source=self.source, ledger=self.ledger, spark_master="local[2]").raise_for_errors()

    def drain(self) -> None:
        drain(self.config, source=self.source, salt=SALT, **self.of("drain"))

    def merge(self) -> None:
        ingest(self.config, ledger=self.ledger)
        with planned(self.config, **self.of("merge")) as made:
            if made is not None:
                self.apply(f"{self.config.lake}/{layout.plan_file(made.pipeline, made.plan)}")
        ingest(self.config, ledger=self.ledger)
        confirm(self.config, source=self.source, ledger=self.ledger, holder=self.of("confirm")["holder"])

    def apply(self, uri: str) -> None:
        from spark_apps import merge_batch

        merge_batch.run(self.spark(), uri)

    def spark(self) -> Any:
        if self._spark is None:
            from tests.support import local_spark

            attached = "PYSPARK_GATEWAY_PORT" in os.environ
            self._spark = local_spark.attach() if attached else local_spark.start(Path(self.scratch))
        return self._spark

    def run(self, run_id: str) -> None:
        self.run_id = run_id
        self.preflight()
        self.drain()
        self.merge()

    def plan(self, run_id: str, table: str) -> None:
        self.run_id = run_id
        plan(
            self.config, source=self.source, request=BackfillRequest(tables=(table,), chunk_rows=100), **self.of("plan")
        )

    def read(self) -> None:
        read_chunks(self.config, source=self.source, salt=SALT, **self.of("read_chunks/1"))

    def live(self) -> None:
        self.sql(SHOP)
        self.run("first")
        self.sql(MORNING)
        self.run("morning")
        self.plan("orders", "shop.orders")
        self.read()
        self.drain()
        self.merge()
        report(self.config, ledger=self.ledger, run_id=self.run_id)
        self.sql(NOON)
        self.run("noon")
        self.sql(EVENING)
        self.run_id = "evening"
        self.preflight()
        self.drain()
        self.plan("lines", "shop.lines")
        self.read()
        self.plan("customers", "shop.customers")


if __name__ == "__main__":
    day = Day(json.loads(Path(sys.argv[1]).read_text()))
    day.live()
