"""Time of a merge over the columns of its table: `python -m benchmarks.columns [--columns 13,51,101 …] [--rows N]`.

Per width a table of mixed types is backfilled into nothing, changed in 100 rows, changed once more, and backfilled
again with all of its rows there, each by a capture or a backfill of its own; all plans are applied by one warm Spark
session on `local[*]`. The last column is the time of the slowest step per column of the table: level or falling where
time is linear.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.backfill import REPOSITORY, Pipeline
from sandbox.services.postgres import running
from tidemark.backfill.planning import BackfillRequest, plan
from tidemark.backfill.ranges import read_chunks
from tidemark.backfill.reporting import report
from tidemark.capture.preflight import preflight
from tidemark.config import PipelineConfig, TableRule
from tidemark.formats.plan import MergePlan
from tidemark.ledger import migrations
from tidemark.spark_connection import SparkConnection
from tidemark.target import session
from tidemark.target.merge import apply_plan

WIDTHS = (13, 51, 101, 201, 401, 801, 1600)
CHANGED = 100
QUIET = {"spark.ui.showConsoleProgress": "false"}

# PostgreSQL's types with a value per row number; the values of 1,600 columns have to fit into one page.
TYPES = (
    ("int", "i"),
    ("text", "'t' || i % 10"),
    ("numeric(6,2)", "i % 100"),
    ("boolean", "i % 2 = 0"),
    ("smallint", "i % 100"),
    ("date", "date '2024-01-01' + i % 30"),
    ("jsonb", "NULL"),
    ("uuid", "NULL"),
    ("text[]", "NULL"),
    ("timestamptz", "NULL"),
)


def fill(connection: psycopg.Connection[Any], table: str, width: int, rows: int) -> None:
    kinds = [TYPES[n % len(TYPES)] for n in range(width - 1)]
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(kinds))
    values = ", ".join(f"({value})::{kind}" for kind, value in kinds)
    connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})".encode())
    connection.execute(f"INSERT INTO {table} SELECT i, {values} FROM generate_series(1, {rows}) i".encode())


class InOneSpark(Pipeline):
    """Applies plans in this process's own Spark; `took` is the time of the last one."""

    spark: Any = None
    took: float = 0.0

    def submit(self, uri: str) -> None:
        began = time.perf_counter()
        result = apply_plan(self.spark, MergePlan.from_json(session.read_text(self.spark, uri)))
        self.took = time.perf_counter() - began
        if failed := [t.error for t in result.tables if t.error is not None]:
            raise RuntimeError(str(failed))
        session.write_text(self.spark, f"{uri.rpartition('/')[0]}/result.json", result.to_json())

    def backfill(self, table: str, run: str) -> float:
        plan(self.run(run, "plan"), request=BackfillRequest(tables=(table,)))
        read_chunks(self.run(run, "read"))
        self.stages("backfill", run)
        report(self.run(run, "report"))
        return self.took

    def capture(self, run: str) -> float:
        self.stages("capture", run)
        return self.took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=lambda text: [int(n) for n in text.split(",")], default=list(WIDTHS))
    parser.add_argument("--rows", type=int, default=2000)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    folder = Path(os.environ.get("TIDEMARK_SPARK_JARS") or REPOSITORY / ".tidemark" / "jars")
    jars = ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))
    with tempfile.TemporaryDirectory() as temporary, running(Path(temporary) / "postgres", 18) as server:
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE ledger")
        source, ledger = server.conninfo(), server.conninfo("ledger")
        migrations.migrate(ledger)
        config = PipelineConfig(
            pipeline="columns",
            source_connection="source",
            slot="columns",
            publication="columns",
            manage_publication=True,
            tables=(TableRule("public.*"),),
            lake=str(Path(temporary) / "lake"),
            ledger_connection="ledger",
        )
        pipeline = InOneSpark(config, source, ledger, jars)
        # The driver's memory is spark-submit's own default.
        settings = {"spark.master": "local[*]", "spark.jars": jars, "spark.local.dir": temporary, **QUIET}
        InOneSpark.spark = session.start("benchmark", settings)
        InOneSpark.spark.sparkContext.setLogLevel("ERROR")
        print(f"{arguments.rows:,} rows, {CHANGED} of them changed, seconds per merge on {os.cpu_count()} cores")
        heads = ("first backfill", "100 changes", "100 more", "backfill again", "ms per column")
        print(f"{'columns':>8}" + "".join(f"{head:>16}" for head in heads), flush=True)
        with psycopg.connect(source, autocommit=True) as connection:
            for width in (WIDTHS[0], *arguments.columns):  # the first one warms the session up, twice
                table = f"t{time.time_ns()}"
                fill(connection, table, width, arguments.rows)
                preflight(pipeline.run(table, "preflight"), spark=SparkConnection("local[*]")).raise_for_errors()
                pipeline.capture(f"{table}/joined")
                took = [pipeline.backfill(f"public.{table}", f"{table}/first")]
                for number in range(2):
                    change = sql.SQL("UPDATE {} SET c0 = c0 + 1 WHERE id <= %s").format(sql.Identifier(table))
                    connection.execute(change, (CHANGED,))
                    took.append(pipeline.capture(f"{table}/{number}"))
                took.append(pipeline.backfill(f"public.{table}", f"{table}/again"))
                per_column = 1000 * max(took) / width
                print(f"{width:>8}" + "".join(f"{s:>16.2f}" for s in took) + f"{per_column:>16.1f}", flush=True)
        InOneSpark.spark.stop()


if __name__ == "__main__":
    main()
