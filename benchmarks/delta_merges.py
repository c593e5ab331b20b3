"""What a MERGE into a Delta table costs, and what makes it cheaper: `python -m benchmarks.delta_merges`.

Nothing of Tidemark is in it but where its defaults come from. A table of eight columns is made once per shape; then as
many rows as a thousandth of it are updated by MERGE, in one warm session. Beside each shape stands the same without the
one thing that its line names, and both see the same merges in turns: deletion vectors, the keys' range as literals in
ON, ten times as many files, clustering by the key. Keys are those of the newest rows, or lie all over the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.pairs import Benchmark, Meter, Pairs, Setting, main
from benchmarks.warm_spark import jvm_pid, warm_session

UPDATED: Final = 1_000  # one row of so many is updated


@dataclass(frozen=True, slots=True)
class Shape:
    """`files` of the table; `shuffled`: its rows came in no order of the key; `newest`: keys of the newest rows alone;
    `ranged`: their least and greatest as literals in ON."""

    vectors: bool = False
    files: int = 4
    shuffled: bool = False
    clustered: bool = False
    newest: bool = False
    ranged: bool = False


PLAIN: Final = Shape()
SHAPES: Final = {
    "vectors": ("deletion vectors", Shape(vectors=True), PLAIN),
    "vectors-newest": ("deletion vectors, newest keys", Shape(vectors=True, newest=True), Shape(newest=True)),
    "range-newest": (
        "the keys' range in ON, newest keys",
        Shape(vectors=True, newest=True, ranged=True),
        Shape(vectors=True, newest=True),
    ),
    "range-files": (
        "the keys' range in ON, newest keys, ten times as many files",
        Shape(vectors=True, files=40, newest=True, ranged=True),
        Shape(vectors=True, files=40, newest=True),
    ),
    "range-random": ("the keys' range in ON, random keys", Shape(vectors=True, ranged=True), Shape(vectors=True)),
    "small-files": ("ten times as many files, random keys", Shape(vectors=True, files=40), Shape(vectors=True)),
    "clustered": (
        "clustered by the key, rows that came in no order, newest keys, range in ON",
        Shape(vectors=True, shuffled=True, clustered=True, newest=True, ranged=True),
        Shape(vectors=True, shuffled=True, newest=True, ranged=True),
    ),
}


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Eight columns, as the tables of the other benchmarks have them."""
    return spark.range(count).select(
        "id",
        (F.col("id") % 5000).cast("int").alias("customer"),
        F.concat(F.lit("name of "), F.col("id")).alias("name"),
        (F.col("id") % 100000 / 100).cast("decimal(10,2)").alias("price"),
        (F.col("id") * 0.37).alias("weight"),
        F.timestamp_seconds(F.col("id") + 1_704_164_645).alias("created"),
        (F.col("id") % 2 == 0).alias("active"),
        F.concat(F.lit("a note of some length "), F.xxhash64("id")).alias("note"),
    )


def make(spark: SparkSession, path: str, count: int, shape: Shape) -> None:
    table = DeltaTable.create(spark).location(path).addColumns(rows(spark, 1).schema)
    table = table.property("delta.enableDeletionVectors", str(shape.vectors).lower())
    (table.clusterBy("id") if shape.clustered else table).execute()
    spread = rows(spark, count)
    spread = spread.repartition(shape.files) if shape.shuffled else spread.repartitionByRange(shape.files, "id")
    spread.write.format("delta").mode("append").save(path)
    if shape.clustered:
        # The files are to be as many as without clustering, or it is their size that is measured.
        size = sum(
            row["size"] for row in DeltaTable.forPath(spark, path).detail().selectExpr("sizeInBytes AS size").collect()
        )
        spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(max(size // shape.files, 1)))
        DeltaTable.forPath(spark, path).optimize().executeCompaction()


def merge(spark: SparkSession, path: str, count: int, shape: Shape, number: int) -> None:
    changed = max(1, count // UPDATED)
    least = count - changed if shape.newest else 0
    keys = F.col("id") + least if shape.newest else (F.col("id") * UPDATED + number * 7) % count
    source = rows(spark, changed).withColumn("id", keys).withColumn("note", F.lit(f"changed {number}"))
    condition = "s.id = t.id"
    if shape.ranged:
        bounds = source.agg(F.min("id").alias("least"), F.max("id").alias("greatest")).first()
        assert bounds is not None
        condition += f" AND t.id BETWEEN {bounds['least']} AND {bounds['greatest']}"
    target = DeltaTable.forPath(spark, path).alias("t")
    target.merge(source.alias("s"), condition).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def pairs(shape: Shape, beside: Shape, setting: Setting) -> Pairs:
    """One merge of either is not counted."""
    with warm_session() as spark:
        meter = Meter(jvm_pid(spark))
        paths = {shape: str(setting.folder / "shaped"), beside: str(setting.folder / "beside")}
        for made, path in paths.items():
            make(spark, path, setting.size, made)

        def one(made: Shape, number: int) -> None:
            merge(spark, paths[made], setting.size, made, number)

        for number in range(-1, setting.rounds):
            pair = meter.pair(number, partial(one, shape, number), partial(one, beside, number))
            if number >= 0:
                yield pair


BENCHMARKS = tuple(
    Benchmark(
        name=f"delta-{name}",
        what=f"MERGE of a thousandth of a Delta table: {what}",
        beside="without" if beside != PLAIN else "the plain table",
        goals=(),
        unit="rows",
        sizes={"tiny": 1_000, "small": 1_000_000, "full": 10_000_000},
        pairs=partial(pairs, shape, beside),
    )
    for name, (what, shape, beside) in SHAPES.items()
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
