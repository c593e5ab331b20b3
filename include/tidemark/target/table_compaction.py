"""Compacts Delta tables and removes their dead files and old log entries; rows, order and positions stay as they are.

OPTIMIZE writes the same rows into fewer files (`dataChange = false`) and keeps the table's transactions. VACUUM deletes
files that no version within the retention has. So no position is ever removed. Only
`delta.setTransactionRetentionDuration` would remove one, and nothing sets it. Sources: Delta documentation,
"Optimizations", "Remove files no longer referenced"; Delta protocol, "Transaction Identifiers".

A compaction beside a merge gives way to it, or makes it read the positions again:

- An append to history reads no file, so a compaction of history does not conflict with it.
- A MERGE reads current, so an OPTIMIZE of current makes one of the two fail. It runs only under the table's lease (step
  `current`). A driver that outlived its task may still merge: then OPTIMIZE fails and is left to the next run, or the
  driver reads the positions again.
- A change of properties conflicts with both. It is made once per table, and the merge reads again.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark import failpoints
from tidemark.formats import layout
from tidemark.formats.upkeep_plan import Kind, TableUpkeep, UpkeepPlan, UpkeepResult
from tidemark.names import TableName, spark_identifier
from tidemark.target.delta import data_files, delta_tables, hadoop_files
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.delta.session import activate, expect_any_rows, expect_few_rows, table_session
from tidemark.target.merge_failures import condition_of, told

log = logging.getLogger(__name__)

# Files below this count as small; from so many of them on a table is compacted, history earlier, since nothing else
# ever makes its files fewer.
SMALL_BYTES: Final = 16 * 2**20
MANY_SMALL: Final = {"current": 50, "history": 8}
# Rows that merges marked as deleted are read and skipped by every reader until their files are rewritten.
DELETED_SHARE: Final = 0.1
# A table of fewer bytes is read in a moment whatever is deleted in it.
LITTLE_BYTES: Final = 16 * 2**20
# What OPTIMIZE takes for small, and what it writes: Delta's own are 1 GB each, so that it would rewrite a table of any
# ordinary size again and again.
OPTIMIZE: Final = {
    "spark.databricks.delta.optimize.minFileSize": str(64 * 2**20),
    "spark.databricks.delta.optimize.maxFileSize": str(128 * 2**20),
}
VACUUM: Final = {
    # It lists a folder by so many tasks, however few files lie in it: 10,000, if nobody says otherwise.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # Two commits that only say that it ran, each with its checksum: on S3 Delta writes none either.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
}
# A folder of more files than this is left to VACUUM, whose tasks list it side by side.
MANY_LISTED: Final = 1000
LOG_DAYS: Final = 7
DAY_S: Final = 86_400

NOT_LITE: Final = "DELTA_CANNOT_VACUUM_LITE"


@dataclass(frozen=True, slots=True)
class FileSizes:
    """A table's files, those of them that are small, the share of its rows that are marked as deleted, and the others,
    None if its log does not say how many rows a file has."""

    files: int
    small: int
    deleted_share: float
    rows: int | None


def keep_up(spark: SparkSession, plan: UpkeepPlan) -> UpkeepResult:
    """Do the plan's step for each table, `plan.threads` at a time; an error of one table is said of that table."""

    def one(table: str) -> list[TableUpkeep]:
        session = table_session(spark, pool=table, lake=plan.lake)
        activate(session)
        for key, value in {**OPTIMIZE, **VACUUM}.items():
            session.conf.set(key, value)
        kinds: list[Kind] = ["current"] if plan.step == "current" else ["history", "current"]
        return [upkept for kind in kinds if (upkept := _guarded(session, plan, table, kind)) is not None]

    with ThreadPoolExecutor(max_workers=max(1, plan.threads), thread_name_prefix="upkeep") as pool:
        result = UpkeepResult(
            plan.plan, tuple(upkept for of_table in pool.map(one, plan.tables) for upkept in of_table)
        )
    if plan.step == "look":
        keep_positions(spark, plan)
    return result


def keep_positions(spark: SparkSession, plan: UpkeepPlan) -> None:
    """The same for `_positions`, which gets a file with each merge and is small; beside merges, which only append."""
    session = table_session(spark, pool="positions", lake=plan.lake)
    for key, value in {**OPTIMIZE, **VACUUM}.items():
        session.conf.set(key, value)
    try:
        table = delta_tables.pin(session, f"{plan.lake}/{layout.positions_table(plan.pipeline)}")
        if table.exists:
            kept = _keep_up(session, plan, "_positions", "history", table)
            log.info("_positions: %d files, %d before", kept.files_after, kept.files_before)
    except Exception as failed:  # the next run does it
        log.warning("_positions was not compacted (%s):\n%s", condition_of(failed), told(failed))


def _guarded(session: SparkSession, plan: UpkeepPlan, table: str, kind: Kind) -> TableUpkeep | None:
    name = TableName.parse(table)
    folder = layout.history_table if kind == "history" else layout.current_table
    path = f"{plan.lake}/{folder(plan.pipeline, name)}"
    pinned: PinnedTable | None = None
    try:
        pinned = delta_tables.pin(session, path)
        return _keep_up(session, plan, table, kind, pinned) if pinned.exists else None
    except Exception as failed:  # what it says may quote a value
        if delta_tables.is_contested(failed):
            left = "a merge was faster; the next run looks again"
        else:
            left = f"it failed with {condition_of(failed)}"
            log.error("%s of %s failed, from the outermost place to the innermost:\n%s", kind, table, told(failed))
        files = 0 if pinned is None else pinned.files
        return TableUpkeep(table, kind, files, files, left=left)


def _keep_up(session: SparkSession, plan: UpkeepPlan, table: str, kind: Kind, pinned: PinnedTable) -> TableUpkeep:
    (expect_few_rows if _is_small(pinned) else expect_any_rows)(session)
    shape = look(session, pinned, kind)
    due = shape.small >= MANY_SMALL[kind] or shape.deleted_share > DELETED_SHARE
    if plan.step == "look":
        _set_retention(session, pinned, plan.versions_days)
    compacted = due and (kind == "history" or plan.step == "current")
    if compacted:
        optimize(session, pinned)
        failpoints.reach("maintain.after_optimize")
    after = delta_tables.pin(session, pinned.path)
    if plan.step == "look" and _may_have_dead_files(session, after, plan.versions_days):
        vacuum(session, after, thorough=plan.thorough)
    if compacted:
        log.info("%s of %s: %d files became %d", kind, table, shape.files, after.files)
    return TableUpkeep(
        table, kind, shape.files, after.files, compacted, due and not compacted, bytes=after.bytes, rows=shape.rows
    )


def _is_small(table: PinnedTable) -> bool:
    return table.bytes is not None and table.bytes < SMALL_BYTES


def look(spark: SparkSession, table: PinnedTable, kind: Kind) -> FileSizes:
    """Read from the version's checksum file, which has the files of a small table, or else from the log by a Spark job.
    On `public_path` each file counts as large as their average, and no row as deleted: no merge there marks one."""
    if table.logged is not None:
        detail = table.logged.detail
        files, size = int(detail["numFiles"]), int(detail["sizeInBytes"])
        return FileSizes(files, files if size < SMALL_BYTES * files else 0, 0.0, None)
    listed = data_files.files_in_checksum(table)
    if listed is not None:
        small = sum(one.bytes < SMALL_BYTES for one in listed)
        written, masked = sum(one.rows for one in listed), sum(one.masked for one in listed)
        share = masked / written if written and sum(one.bytes for one in listed) > LITTLE_BYTES else 0.0
        return FileSizes(len(listed), small, share, written - masked)
    added = DataFrame(table.snapshot.added.toDF(), spark)
    deleted = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
    row = added.agg(
        F.count("*").alias("files"),
        F.count(F.when(F.col("size") < SMALL_BYTES, 1)).alias("small"),
        F.sum(deleted).alias("deleted"),
        F.sum(F.get_json_object("stats", "$.numRecords").cast("long")).alias("rows"),
        F.count(F.get_json_object("stats", "$.numRecords")).alias("told"),
        F.sum("size").alias("bytes"),
    ).collect()[0]
    share = (row["deleted"] or 0) / row["rows"] if row["rows"] and row["bytes"] > LITTLE_BYTES else 0.0
    rows = (row["rows"] or 0) - (row["deleted"] or 0) if row["told"] == row["files"] else None
    return FileSizes(row["files"], row["small"], share, rows)


def optimize(spark: SparkSession, table: PinnedTable) -> None:
    """The rows of its small files, and of those with many deleted rows, in fewer files. Raises what `is_contested`
    recognises where another commit took one of them away."""
    spark.sql(f"OPTIMIZE delta.{spark_identifier(table.path)}").collect()


def _may_have_dead_files(spark: SparkSession, table: PinnedTable, versions_days: int) -> bool:
    """Whether VACUUM could find a file to delete: one that is older than the retention, and that the version does not
    have. A VACUUM that finds none costs a second of CPU. True where only VACUUM can tell: for a table whose checksum
    file does not list its files, and for a folder of many."""
    files = data_files.files_in_checksum(table)
    if files is None:
        return True
    names, before_ms = data_files.names_of(table, files), 1000 * (time.time() - versions_days * DAY_S)
    for number, (name, written_ms) in enumerate(hadoop_files.visible_files(spark, table.path)):
        if number == MANY_LISTED or (name not in names and written_ms < before_ms):
            return True
    return False


def vacuum(spark: SparkSession, table: PinnedTable, *, thorough: bool) -> None:
    """Delete what no version within the table's retention names: of what its log names, or, `thorough`, of all that
    lies in its folder."""
    statement = f"VACUUM delta.{spark_identifier(table.path)}"
    if not thorough:
        try:
            spark.sql(f"{statement} LITE").collect()
            return
        except PySparkException as refused:
            if not condition_of(refused).startswith(NOT_LITE):
                raise  # else its log does not reach back to the last time
    spark.sql(statement).collect()


def _set_retention(spark: SparkSession, table: PinnedTable, versions_days: int) -> None:
    """How far back the table can be read, and as long a log; a commit only if that was different."""
    properties = {
        "delta.deletedFileRetentionDuration": f"interval {versions_days} days",
        "delta.logRetentionDuration": f"interval {max(LOG_DAYS, versions_days)} days",
    }
    differing = {key: value for key, value in properties.items() if table.properties.get(key) != value}
    if differing:
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in differing.items())
        spark.sql(f"ALTER TABLE delta.{spark_identifier(table.path)} SET TBLPROPERTIES ({listed})")
