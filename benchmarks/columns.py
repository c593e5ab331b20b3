"""A merge over the columns of its table: `python -m benchmarks.columns`.

Per width a table of mixed types is merged, then changed in 100 rows, twice, each change a run of a capture; plans
are applied by one warm session. Beside it a plain script in the same session: append the staged files, MERGE the newest
per key, with clauses for all columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from delta.tables import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.new_table import files_of
from benchmarks.pairs import Curve, Meter, Pair, main
from benchmarks.pipeline import one_pipeline
from benchmarks.warm_spark import applied, jvm_pid, warm_session
from tidemark.capture.merge_planning import ingest

ROWS = 2_000
CHANGED = 100

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


def create(connection: psycopg.Connection[Any], table: str, width: int) -> None:
    columns = ", ".join(f"c{n} {TYPES[n % len(TYPES)][0]}" for n in range(width - 1))
    connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})".encode())


def fill(connection: psycopg.Connection[Any], table: str, width: int) -> None:
    kinds = [TYPES[n % len(TYPES)] for n in range(width - 1)]
    values = ", ".join(f"({value})::{kind}" for kind, value in kinds)
    connection.execute(f"INSERT INTO {table} SELECT i, {values} FROM generate_series(1, {ROWS}) i".encode())


def append_and_merge(spark: SparkSession, target: str, files: Sequence[str]) -> None:
    rows = spark.read.parquet(*files)
    names = [name for name in rows.columns if not name.startswith("_")]
    rows.write.format("delta").mode("append").save(f"{target}/history")
    newest = Window.partitionBy("id").orderBy(F.col("_commit_lsn").desc(), F.col("_ordinal").desc())
    source = rows.withColumn("_n", F.row_number().over(newest)).where("_n = 1")
    if not DeltaTable.isDeltaTable(spark, f"{target}/current"):
        current = source.where("_op <> 'delete'").select(*names).write.format("delta")
        current.option("delta.enableDeletionVectors", "true").save(f"{target}/current")
        return
    values = {name: f"s.{name}" for name in names}
    merge = DeltaTable.forPath(spark, f"{target}/current").alias("t").merge(source.alias("s"), "s.id = t.id")
    merge = merge.whenMatchedDelete("s._op = 'delete'").whenMatchedUpdate(set=dict(values))
    merge.whenNotMatchedInsert("s._op <> 'delete'", values=dict(values)).execute()


def widths(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Pair]]:
    """The second change of each table counts; the first width is measured once before, which warms the session up."""
    with (
        one_pipeline(folder) as pipeline,
        warm_session() as spark,
        psycopg.connect(pipeline.source, autocommit=True) as connection,
    ):
        meter = Meter(jvm_pid(spark))
        for place, width in enumerate((sizes[0], *sizes)):
            table = f"t{place}"
            create(connection, table, width)
            pipeline.begin()
            fill(connection, table, width)
            for number in range(3):
                if number:
                    change = sql.SQL("UPDATE {} SET c0 = c0 + 1 WHERE id <= %s").format(sql.Identifier(table))
                    connection.execute(change, (CHANGED,))
                pipeline.drain()
                plan, beside = pipeline.plan(), str(folder / "plain" / table)
                pair = meter.pair(
                    number,
                    partial(applied, spark, plan),
                    partial(append_and_merge, spark, beside, files_of(plan)),
                )
                ingest(pipeline.task("merge"))
            if place:
                yield width, pair


CURVES = (
    Curve(
        name="columns",
        title=f"{CHANGED} changes of a table of {ROWS:,} rows, merged in a warm session",
        x="columns",
        y="seconds",
        ours="Tidemark",
        beside="bare append and MERGE",
        sizes={"tiny": (13,), "small": (13, 51, 101, 201), "full": (13, 51, 101, 201, 401, 801)},
        points=widths,
    ),
)

if __name__ == "__main__":
    main(curves=CURVES, about=__doc__)
