"""Writes Delta tables through Delta's public API alone, where its own classes are not the known ones.

It is slower than a transaction on a pinned version, and as exact (R5). Every command starts from the newest version,
whatever it is, so each is one that is right from there:

- `append` is a MERGE that inserts the rows of those commits of the source that the table does not have yet. A batch
  holds whole transactions (R2) and is one commit of the table, so a rival's rows of a commit are all of its rows.
- `update_once` is done a single time, whoever tries: it has an application id of its own, whose version is 1.
- What must not start from another version than the one that was read is refused (NeedsDeltaInternals).

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
    """The position that the one command within sets; unset afterwards even if it failed."""
    spark.conf.set(TXN_APP_ID, application)
    spark.conf.set(TXN_VERSION, str(version))
    try:
        yield
    finally:
        spark.conf.unset(TXN_VERSION)
        spark.conf.unset(TXN_APP_ID)


def create(state: LoggedVersion, schema: StructType, properties: Mapping[str, str]) -> None:
    """An empty table. Beside the log of a driver that died before its first commit only a DataFrame makes one, without
    NOT NULL; a table that is there by now makes both fail."""
    spark = state.spark
    if log_files.log_is_there(spark, state.path):
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
    """Rows of the source's commits from `start` on, below `end`, as far as the table does not have these commits, and
    the position. Returns the number of rows."""
    spark, shape = state.spark, _shape(state)
    source = _no_rows(spark, shape) if rows is None else rows
    there = (F.col("t._commit_lsn") >= F.lit(int(start))) & (F.col("t._commit_lsn") < F.lit(int(end)))
    same = [F.col(f"t.{name}") == F.col(f"s.{name}") for name in ("_generation", "_commit_lsn")]
    with transaction(spark, application, int(end)):
        builder = DeltaTable.forPath(spark, state.path).alias("t").merge(source.alias("s"), there & same[0] & same[1])
        quoted = [spark_identifier(name) for name in shape.names]
        values: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in quoted}
        counted = builder.whenNotMatchedInsert(values=values).execute().collect()
    return int(counted[0]["num_inserted_rows"]) if counted else 0


def append_once(state: LoggedVersion, rows: DataFrame, application: str, end: Lsn) -> None:
    """Rows that nobody else appends up to `end`, with the position."""
    with transaction(state.spark, application, int(end)):
        rows.write.format("delta").mode("append").save(state.path)


def append_rows(state: LoggedVersion, rows: DataFrame) -> None:
    """Rows of which one too many does no harm, without a position."""
    rows.write.format("delta").mode("append").save(state.path)


def target(state: LoggedVersion) -> DeltaTable:
    """The table for a command."""
    return DeltaTable.forPath(state.spark, state.path)


def add_columns(state: LoggedVersion, fields: Sequence[StructField], properties: Mapping[str, str]) -> None:
    """One commit that adds columns behind the others, with what their metadata say, and one for the table's properties.
    Twice is once."""
    there = _shape(state)
    rows = _no_rows(state.spark, StructType([*there.fields, *fields]))
    rows.write.format("delta").mode("append").option("mergeSchema", "true").save(state.path)
    if properties:
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        state.spark.sql(f"ALTER TABLE delta.{spark_identifier(state.path)} SET TBLPROPERTIES ({listed})")


def update_once(spark: SparkSession, path: str, application: str, values: Mapping[str, Column]) -> None:
    """Give every row these values, one single time under this application id."""
    quoted: dict[str, str | Column] = {spark_identifier(name): value for name, value in values.items()}
    with transaction(spark, application, 1):
        DeltaTable.forPath(spark, path).update(set=quoted)


def rename_columns(state: LoggedVersion, names: Mapping[str, str]) -> None:
    """A commit for each column, and before them one that turns column mapping on. Half of it is no harm: what a field's
    metadata say of its source stays with it, and the next merge does the rest."""
    spark, quoted = state.spark, f"delta.{spark_identifier(state.path)}"
    if not state.is_mapped:
        spark.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    taken = set(_shape(state).names)
    left = dict(names)
    while left:
        free = next((old for old, new in left.items() if new not in taken), None)
        if free is None:  # two columns exchange their names
            free, aside = next(iter(left)), f"__tidemark_{next(iter(left))}"
            left[aside] = left.pop(free)
            new = aside
        else:
            new = left.pop(free)
        spark.sql(f"ALTER TABLE {quoted} RENAME COLUMN {spark_identifier(free)} TO {spark_identifier(new)}")
        taken = (taken - {free}) | {new}


def comment_columns(state: LoggedVersion, comments: Mapping[str, str]) -> None:
    """A commit for each comment."""
    for name, text in comments.items():
        written = text.replace("\\", "\\\\").replace("'", "\\'")
        state.spark.sql(
            f"ALTER TABLE delta.{spark_identifier(state.path)} ALTER COLUMN {spark_identifier(name)} "
            f"COMMENT '{written}'"
        )


def _no_rows(spark: SparkSession, of: StructType) -> DataFrame:
    """A frame of that type, whose fields keep their metadata."""
    session = spark._jsparkSession
    return DataFrame(session.createDataFrame(array_list(spark), session.parseDataType(of.json())), spark)


def _shape(state: LoggedVersion) -> StructType:
    return StructType.fromJson(json.loads(state.schema))
