"""Plain PySpark, first load: `append_and_newest.py LAKE FILE...` -> changes in history, the newest per key in current.

What somebody would write who has the staged files and no Tidemark: one append, one window, one append. Nothing of it
can be run twice, and nothing fences a second driver.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

COLUMNS = ["id", "customer", "name", "price", "weight", "created", "active", "note"]
CHANGE = ["_op", "_generation", "_commit_lsn", "_ordinal", "_xid", "_committed_at"]


def main(lake: str, files: list[str]) -> None:
    spark = SparkSession.builder.appName("plain first load").getOrCreate()
    changes = spark.read.parquet(*files).select(*CHANGE, *COLUMNS)
    changes.write.format("delta").mode("append").save(f"{lake}/history")
    newest = Window.partitionBy("id").orderBy(F.col("_commit_lsn").desc(), F.col("_ordinal").desc())
    current = (
        changes.withColumn("place", F.row_number().over(newest))
        .where("place = 1 AND _op <> 'delete'")
        .select(*COLUMNS, "_commit_lsn", "_committed_at")
    )
    with_vectors = current.write.format("delta").option("delta.enableDeletionVectors", "true")
    with_vectors.mode("append").save(f"{lake}/current")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
