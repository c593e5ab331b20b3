"""Plain PySpark, every other load: `append_and_merge.py LAKE FILE...` -> changes appended to history, merged into
current.

What somebody would write who has the staged files and no Tidemark: one append, the newest change per key, one MERGE.
"""

from __future__ import annotations

import sys

from delta.tables import DeltaTable
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

COLUMNS = ["id", "customer", "name", "price", "weight", "created", "active", "note"]
CHANGE = ["_op", "_generation", "_commit_lsn", "_ordinal", "_xid", "_committed_at"]


def main(lake: str, files: list[str]) -> None:
    spark = SparkSession.builder.appName("plain merge").getOrCreate()
    changes = spark.read.parquet(*files).select(*CHANGE, *COLUMNS)
    changes.write.format("delta").mode("append").save(f"{lake}/history")
    newest = Window.partitionBy("id").orderBy(F.col("_commit_lsn").desc(), F.col("_ordinal").desc())
    source = changes.withColumn("place", F.row_number().over(newest)).where("place = 1")
    values = {name: f"s.{name}" for name in [*COLUMNS, "_commit_lsn", "_committed_at"]}
    merge = DeltaTable.forPath(spark, f"{lake}/current").alias("t").merge(source.alias("s"), "s.id = t.id")
    merge = merge.whenMatchedDelete("s._op = 'delete'").whenMatchedUpdate(set=dict(values))
    merge.whenNotMatchedInsert("s._op <> 'delete'", values=dict(values)).execute()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
