"""Compacts Delta tables and removes their dead files and old log entries; rows, order and positions stay as they are.

OPTIMIZE writes the same rows into fewer files (`dataChange = false`). REORG writes files without the rows that merges
marked as deleted. Both keep the table's transactions. VACUUM deletes files that no version within the retention has. So
no position is ever removed. Only `delta.setTransactionRetentionDuration` would remove one, and nothing sets it.
Sources: Delta documentation, "Optimizations", "Remove files no longer referenced"; Delta protocol, "Transaction
Identifiers".

A compaction that runs at the same time as a merge fails, or makes the merge read the positions again:

- An append to history reads no file, so a compaction of history does not conflict with it.
- A MERGE reads current, so an OPTIMIZE or REORG of current makes one of the two fail. They run only under the table's
  lease (step `current`). A driver that outlived its task may still merge. Then either the compaction fails and the next
  run repeats it, or the driver reads the positions again.
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
from tidemark.formats.compaction_plan import CompactionPlan, CompactionResult, Kind, TableCompaction
from tidemark.names import TableName, spark_identifier
from tidemark.target.delta import data_files, delta_tables, hadoop_files
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.delta.session import activate, expect_any_rows, expect_few_rows, table_session
from tidemark.target.merge_failures import condition_of, stack_frames

log = logging.getLogger(__name__)

# Files below SMALL_BYTES count as small. A table with MANY_SMALL of them is compacted: history earlier, since nothing
# else reduces the number of its files.
SMALL_BYTES: Final = 16 * 2**20
MANY_SMALL: Final = {"current": 50, "history": 8}
# Every reader reads and skips the rows that merges marked as deleted, until their files are rewritten. So a
# table is rewritten once each time that merges have deleted a tenth of its rows, and not more often.
DELETED_SHARE: Final = 0.1
# A table of fewer bytes is read quickly, however many of its rows are deleted.
LITTLE_BYTES: Final = 16 * 2**20
# The size below which OPTIMIZE rewrites a file, and the size that it writes. Delta's defaults are 1 GB each, so it
# would rewrite a table of ordinary size again and again.
OPTIMIZE: Final = {
    "spark.databricks.delta.optimize.minFileSize": str(64 * 2**20),
    "spark.databricks.delta.optimize.maxFileSize": str(128 * 2**20),
}
VACUUM: Final = {
    # VACUUM lists a folder with so many tasks, however few files it has. The default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # No commits that only record the begin and the end of a VACUUM, each with a checksum file. On S3 Delta writes none
    # either.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
}
# The driver lists no more files than this; VACUUM lists a larger folder, with tasks that run in parallel.
MANY_LISTED: Final = 1000
LOG_DAYS: Final = 7
DAY_S: Final = 86_400

NOT_LITE: Final = "DELTA_CANNOT_VACUUM_LITE"


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The numbers of a table's files and small files, the share of its deleted rows, and the number of the others.

    `rows` is None if the log does not have the number of rows of each file.
    """

    files: int
    small: int
    deleted_share: float
    rows: int | None


def maintain_tables(spark: SparkSession, plan: CompactionPlan) -> CompactionResult:
    """Do the plan's step for each table, `plan.threads` at a time. An error of one table goes into its result."""

    def maintain_both(table: str) -> list[TableCompaction]:
        session = table_session(spark, pool=table, lake=plan.lake)
        activate(session)
        for key, value in {**OPTIMIZE, **VACUUM}.items():
            session.conf.set(key, value)
        kinds: list[Kind] = ["current"] if plan.step == "current" else ["history", "current"]
        return [compaction for kind in kinds if (compaction := _maintain_one(session, plan, table, kind)) is not None]

    with ThreadPoolExecutor(max_workers=max(1, plan.threads), thread_name_prefix="compaction") as pool:
        result = CompactionResult(
            plan.plan, tuple(compaction for of_table in pool.map(maintain_both, plan.tables) for compaction in of_table)
        )
    if plan.step == "look":
        maintain_positions(spark, plan)
    return result


def maintain_positions(spark: SparkSession, plan: CompactionPlan) -> None:
    """Compact `_positions`, which gets a small file with each merge. Merges append only, so they do not conflict."""
    session = table_session(spark, pool="positions", lake=plan.lake)
    for key, value in {**OPTIMIZE, **VACUUM}.items():
        session.conf.set(key, value)
    try:
        table = delta_tables.pin(session, f"{plan.lake}/{layout.positions_table(plan.pipeline)}")
        if table.exists:
            compaction = _maintain(session, plan, "_positions", "history", table)
            log.info("_positions: %d files, %d before", compaction.files_after, compaction.files_before)
    except Exception as failed:  # the next run tries again
        log.warning("_positions was not compacted (%s):\n%s", condition_of(failed), stack_frames(failed))


def _maintain_one(session: SparkSession, plan: CompactionPlan, table: str, kind: Kind) -> TableCompaction | None:
    name = TableName.parse(table)
    folder = layout.history_table if kind == "history" else layout.current_table
    path = f"{plan.lake}/{folder(plan.pipeline, name)}"
    pinned: PinnedTable | None = None
    try:
        pinned = delta_tables.pin(session, path)
        return _maintain(session, plan, table, kind, pinned) if pinned.exists else None
    except Exception as failed:  # its message may quote a value, so it is not logged
        if delta_tables.is_contested(failed):
            reason = "a merge was faster; the next run tries again"
        else:
            reason = f"it failed with {condition_of(failed)}"
            log.error(
                "%s of %s failed, from the outermost place to the innermost:\n%s", kind, table, stack_frames(failed)
            )
        files = 0 if pinned is None else pinned.files
        return TableCompaction(table, kind, files, files, left=reason)


def _maintain(
    session: SparkSession, plan: CompactionPlan, table: str, kind: Kind, pinned: PinnedTable
) -> TableCompaction:
    (expect_few_rows if _is_small(pinned) else expect_any_rows)(session)
    sizes = file_sizes(session, pinned, kind)
    has_many_small, has_many_deleted = sizes.small >= MANY_SMALL[kind], sizes.deleted_share > DELETED_SHARE
    due = has_many_small or has_many_deleted
    if plan.step == "look":
        _set_retention(session, pinned, plan.versions_days)
    compacted = due and (kind == "history" or plan.step == "current")
    if compacted:
        if has_many_small:
            optimize(session, pinned)
        if has_many_deleted:
            purge(session, pinned)
        failpoints.reach("maintain.after_optimize")
    after = delta_tables.pin(session, pinned.path)
    if plan.step == "look" and _may_have_dead_files(session, after, plan.versions_days):
        vacuum(session, after, thorough=plan.thorough)
    if compacted:
        log.info("%s of %s: %d files became %d", kind, table, sizes.files, after.files)
    return TableCompaction(
        table, kind, sizes.files, after.files, compacted, due and not compacted, bytes=after.bytes, rows=sizes.rows
    )


def _is_small(table: PinnedTable) -> bool:
    return table.bytes is not None and table.bytes < SMALL_BYTES


def file_sizes(spark: SparkSession, table: PinnedTable, kind: Kind) -> FileSizes:
    """Count the table's files and rows, from the version's checksum file, or by a Spark job if that lists no files.
    Of history with many files, `small` is then the least number that its size allows, and `rows` is None.

    On `public_path` only the number of files and their total size are known. Each file then counts as large as their
    average, and no row as deleted, since no merge there marks a row.
    """
    if table.logged is not None:
        detail = table.logged.detail
        files, size = int(detail["numFiles"]), int(detail["sizeInBytes"])
        return FileSizes(files, files if size < SMALL_BYTES * files else 0, 0.0, None)
    data_file_list = data_files.files_in_checksum(table)
    if data_file_list is not None:
        small = sum(file.bytes < SMALL_BYTES for file in data_file_list)
        written, masked = sum(file.rows for file in data_file_list), sum(file.masked for file in data_file_list)
        share = masked / written if written and sum(file.bytes for file in data_file_list) > LITTLE_BYTES else 0.0
        return FileSizes(len(data_file_list), small, share, written - masked)
    # No row of history is ever deleted, so the number of its small files is all that counts. A Spark job that counts
    # them costs half of what it costs to compact them.
    if kind == "history" and table.bytes is not None:
        small = table.files - table.bytes // SMALL_BYTES
        if small >= MANY_SMALL[kind]:
            return FileSizes(table.files, small, 0.0, None)
    added = DataFrame(table.snapshot.added.toDF(), spark)
    deleted_rows = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
    row = added.agg(
        F.count("*").alias("files"),
        F.count(F.when(F.col("size") < SMALL_BYTES, 1)).alias("small"),
        F.sum(deleted_rows).alias("deleted"),
        F.sum(F.get_json_object("stats", "$.numRecords").cast("long")).alias("rows"),
        F.count(F.get_json_object("stats", "$.numRecords")).alias("counted"),
        F.sum("size").alias("bytes"),
    ).collect()[0]
    share = (row["deleted"] or 0) / row["rows"] if row["rows"] and row["bytes"] > LITTLE_BYTES else 0.0
    rows = (row["rows"] or 0) - (row["deleted"] or 0) if row["counted"] == row["files"] else None
    return FileSizes(row["files"], row["small"], share, rows)


def optimize(spark: SparkSession, table: PinnedTable) -> None:
    """Rewrite small files into fewer files. A file with many deleted rows is rewritten only if another file fits beside
    it into one of `maxFileSize`.

    Raises an error that `delta_tables.is_contested` recognises if another commit removed one of these files.
    """
    spark.sql(f"OPTIMIZE delta.{spark_identifier(table.path)}").collect()


def purge(spark: SparkSession, table: PinnedTable) -> None:
    """Rewrite every file with deleted rows or dropped columns, even a single file. Raises as `optimize` does."""
    spark.sql(f"REORG TABLE delta.{spark_identifier(table.path)} APPLY (PURGE)").collect()


def _may_have_dead_files(spark: SparkSession, table: PinnedTable, versions_days: int) -> bool:
    """Whether VACUUM may have a file to delete: older than the retention, and not part of the version.

    A VACUUM without such a file costs seconds of CPU. If the checksum file does not list the table's files, each old
    file may be such a file. Returns True without checking if the folder has more than `MANY_LISTED` files.
    """
    files = data_files.files_in_checksum(table)
    names = set() if files is None else data_files.names_of(table, files)
    before_ms = 1000 * (time.time() - versions_days * DAY_S)
    for number, (name, written_ms) in enumerate(hadoop_files.visible_files(spark, table.path)):
        if number == MANY_LISTED or (name not in names and written_ms < before_ms):
            return True
    return False


def vacuum(spark: SparkSession, table: PinnedTable, *, thorough: bool) -> None:
    """Delete the files that no version within the table's retention has.

    Only files that the table's log names are considered; with `thorough`, all files of its folder.
    """
    statement = f"VACUUM delta.{spark_identifier(table.path)}"
    if not thorough:
        try:
            spark.sql(f"{statement} LITE").collect()
            return
        except PySparkException as refused:
            if not condition_of(refused).startswith(NOT_LITE):
                raise  # otherwise the log does not reach back to the last VACUUM, so the folder is listed
    spark.sql(statement).collect()


def _set_retention(spark: SparkSession, table: PinnedTable, versions_days: int) -> None:
    """Set how long the versions of the table can be read, and keep the log as long. Commits only if that differs."""
    properties = {
        "delta.deletedFileRetentionDuration": f"interval {versions_days} days",
        "delta.logRetentionDuration": f"interval {max(LOG_DAYS, versions_days)} days",
    }
    differing = {key: value for key, value in properties.items() if table.properties.get(key) != value}
    if differing:
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in differing.items())
        spark.sql(f"ALTER TABLE delta.{spark_identifier(table.path)} SET TBLPROPERTIES ({listed})")
