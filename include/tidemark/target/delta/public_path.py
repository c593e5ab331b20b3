"""Writes Delta tables through Delta's public API only, for a Delta whose internal classes are not the known ones.

It is slower than a transaction on a pinned version, and as exact (R5). Every command starts from the table's newest
version, so each command here is correct on any version:

- `append` is a MERGE that inserts the rows of those commits of the source that the table does not have yet. A batch
  holds whole transactions (R2) and is one commit of the table. So if another driver wrote rows of a source's commit, it
  wrote all of them.
- `update_once` takes effect once, however many drivers try: it has its own application id, whose version is 1.
- Other modules refuse work that must start from the version that was read (NeedsDeltaInternals).

Source: Delta documentation, "Idempotent table writes in foreachBatch", "Table deletes, updates, and merges".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidemark.lsn import Lsn
from tidemark.names import spark_identifier
from tidemark.target.delta import log_files
from tidemark.target.delta.jvm import array_list
from tidemark.target.delta.log_files import LoggedVersion

TXN_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"


@contextmanager
def transaction(spark: SparkSession, application: str, version: int) -> Iterator[None]:
    """Let the one command in the block set a position. The setting is removed afterwards, even after an error."""
    spark.conf.set(TXN_APP_ID, application)
    spark.conf.set(TXN_VERSION, str(version))
    try:
        yield
    finally:
        spark.conf.unset(TXN_VERSION)
        spark.conf.unset(TXN_APP_ID)


def create(state: LoggedVersion, schema: StructType, properties: Mapping[str, str]) -> None:
    """Create an empty table. Fails if the table exists by now.

    A driver that died before its first commit leaves an empty log. Then only a DataFrame write can create the table,
    and its columns are not NOT NULL.
    """
    spark = state.spark
    if log_files.log_exists(spark, state.path):
        writer = _no_rows(spark, schema).write.format("delta").mode("error")
        for key, value in properties.items():
            writer = writer.option(key, value)
        writer.save(state.path)
        return
    builder = DeltaTable.create(spark).location(state.path).addColumns(schema)
    for key, value in properties.items():
        builder = builder.property(key, value)
    builder.execute()


def append(state: LoggedVersion, rows: DataFrame | None, application: str, start: Lsn, end: Lsn) -> int:
    """Append rows and set the position. Returns the number of rows.

    The rows are of source commits from `start` on and below `end`. Commits that the table already has are skipped.
    """
    spark, shape = state.spark, _shape(state)
    source = _no_rows(spark, shape) if rows is None else rows
    in_range = (F.col("t._commit_lsn") >= F.lit(int(start))) & (F.col("t._commit_lsn") < F.lit(int(end)))
    same = [F.col(f"t.{name}") == F.col(f"s.{name}") for name in ("_generation", "_commit_lsn")]
    with transaction(spark, application, int(end)):
        builder = (
            DeltaTable.forPath(spark, state.path).alias("t").merge(source.alias("s"), in_range & same[0] & same[1])
        )
        quoted = [spark_identifier(name) for name in shape.names]
        values: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in quoted}
        metrics = builder.whenNotMatchedInsert(values=values).execute().collect()
    return int(metrics[0]["num_inserted_rows"]) if metrics else 0


def append_once(state: LoggedVersion, rows: DataFrame, application: str, end: Lsn) -> None:
    """Append rows that no other driver appends up to `end`, and set the position."""
    with transaction(state.spark, application, int(end)):
        append_rows(state, rows)


def append_rows(state: LoggedVersion, rows: DataFrame) -> None:
    """Append rows without a position; repeating them must be harmless."""
    rows.write.format("delta").mode("append").save(state.path)


def add_columns(state: LoggedVersion, fields: Sequence[StructField], properties: Mapping[str, str]) -> None:
    """Add columns with their metadata after the others, and set the table's properties: one commit each.

    Doing it twice changes nothing more.
    """
    present = _shape(state)
    rows = _no_rows(state.spark, StructType([*present.fields, *fields]))
    rows.write.format("delta").mode("append").option("mergeSchema", "true").save(state.path)
    if properties:
        assignments = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        state.spark.sql(f"ALTER TABLE delta.{spark_identifier(state.path)} SET TBLPROPERTIES ({assignments})")


def update_once(spark: SparkSession, path: str, application: str, values: Mapping[str, Column]) -> None:
    """Give every row these values. The update takes effect only once under this application id."""
    quoted: dict[str, str | Column] = {spark_identifier(name): value for name, value in values.items()}
    with transaction(spark, application, 1):
        DeltaTable.forPath(spark, path).update(set=quoted)


def rename_columns(state: LoggedVersion, names: Mapping[str, str]) -> None:
    """Rename columns in one commit each, after a commit that enables column mapping.

    If the driver dies in between, no harm is done: a field keeps the metadata that names its source column, and the
    next merge renames the rest.
    """
    spark, quoted = state.spark, f"delta.{spark_identifier(state.path)}"
    if not state.is_mapped:
        spark.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    used_names = set(_shape(state).names)
    pending = dict(names)
    while pending:
        source = next((old for old, new in pending.items() if new not in used_names), None)
        if source is None:  # two columns exchange their names
            source, aside = next(iter(pending)), f"__tidemark_{next(iter(pending))}"
            pending[aside] = pending.pop(source)
            new = aside
        else:
            new = pending.pop(source)
        spark.sql(f"ALTER TABLE {quoted} RENAME COLUMN {spark_identifier(source)} TO {spark_identifier(new)}")
        used_names = (used_names - {source}) | {new}


def comment_columns(state: LoggedVersion, comments: Mapping[str, str]) -> None:
    """Set the columns' comments, in one commit each."""
    for name, text in comments.items():
        written = text.replace("\\", "\\\\").replace("'", "\\'")
        state.spark.sql(
            f"ALTER TABLE delta.{spark_identifier(state.path)} ALTER COLUMN {spark_identifier(name)} "
            f"COMMENT '{written}'"
        )


def _no_rows(spark: SparkSession, of: StructType) -> DataFrame:
    """An empty frame of the type, whose fields keep their metadata."""
    session = spark._jsparkSession
    return DataFrame(session.createDataFrame(array_list(spark), session.parseDataType(of.json())), spark)


def _shape(state: LoggedVersion) -> StructType:
    return StructType.fromJson(json.loads(state.schema))
