"""Merges a table's changes in the driver: reads and folds them, and commits them to history and current without Spark.

    staged files ──┬─ copied unchanged, or one Parquet file ───────────────────────► history's commit
                   └─ `driver_fold` ─┬─► one Parquet file ─────────────────────────┐
    current's files ─────────────────┴─► the numbers of the rows that it replaces ─┴─► current's commit

For a few rows, Spark spends nearly all of a table's merge on planning, compiling and scheduling. For millions of rows,
Spark's MERGE joins them with the whole table. Deletion vectors mask the replaced rows here, as they do in MERGE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemark import failpoints
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.lsn import Lsn
from tidemark.names import ROW_COLUMNS
from tidemark.target.chunks.first_load import FirstLoad
from tidemark.target.delta import data_files, delta_tables
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.driver import driver_memory, history_files
from tidemark.target.driver.change_reader import StagedTable, read_changes
from tidemark.target.driver.driver_fold import FoldedChanges, NewestChanges, fold_changes, newest_changes
from tidemark.target.driver.history_files import StagedHistoryFiles
from tidemark.target.driver.prefetch import ReadAhead
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import DriverLimits


@dataclass(slots=True)
class DriverMerge:
    """A merge that the driver has folded and can commit.

    `load` is a first load whose chunk files are added in the same commits. Its masked rows are then among the changes,
    and `chunk_results` are their results. `has_memory`: the driver's memory is reserved for this table until `release`.
    `keeps_files`: staged files whose rows are history's rows are copied, not rewritten.
    """

    table: StagedTable
    batches: Sequence[PlannedBatch]
    target: TargetRows
    folded: FoldedChanges
    load: FirstLoad | None = None
    has_memory: bool = False
    keeps_files: bool = False
    chunk_results: tuple[ChunkResult, ...] = ()

    @property
    def end(self) -> Lsn:
        return self.batches[-1].end_lsn

    @property
    def new_holes(self) -> bool:
        return self.folded.has_holes

    def release(self) -> None:
        """Free the reservation of the driver's memory. Call it once."""
        if self.has_memory:
            driver_memory.free()

    def move_history(self, history: PinnedTable, application: str) -> int:
        """Append every change, a truncate as a row without a key, and the rows of chunks. Returns the rows appended."""
        failpoints.reach("merge.before_history")
        session, schema = self.table.session, self.table.schema
        kept = self._as_staged()
        written = [history_files.copy_to_history(self.table, history, batch, file) for batch, file in kept.files]
        rows = kept.computed_rows(self.folded.history(schema))
        written += data_files.write_rows(session, history, rows, ["_generation", *ROW_COLUMNS, *schema.key])
        written += [] if self.load is None else self.load.files_of_history(history)
        count = delta_tables.append(session, history, None, application, self.end, written)
        failpoints.reach("merge.after_history")
        return count

    def _as_staged(self) -> StagedHistoryFiles:
        if not self.keeps_files:
            return StagedHistoryFiles()
        table = self.table
        versions = {schema.version for schema in table.schemas if schema.is_read_as(table.schema)}
        return history_files.as_staged(self.batches, versions)

    def move_current(self, application: str) -> dict[str, int]:
        """One commit that brings current to the end of the batches. Returns the rows inserted, updated, deleted."""
        failpoints.reach("merge.before_current")
        session, folded, current = self.table.session, self.folded, self.target.current
        exchanged: list[tuple[DataFile, Sequence[int] | None]]
        if folded.truncated:
            rows, exchanged = folded.staying, [(file, None) for file in self.target.files]
        else:
            rows = pa.concat_tables([folded.staying, folded.small.rows])
            exchanged = folded.small.masked_files(folded.replaced)
        written = data_files.write_rows(session, current, rows, ["_commit_lsn", *self.table.schema.key])
        written += [] if self.load is None else self.load.files_of_current()
        data_files.exchange(session, current, exchanged, written, application, self.end)
        failpoints.reach("merge.after_current")
        if self.load is None or folded.truncated:
            return folded.counts
        return {**folded.counts, "inserted": folded.counts["inserted"] + self.load.rows}


def driver_merge(
    table: StagedTable,
    batches: Sequence[PlannedBatch],
    current: PinnedTable,
    limits: DriverLimits,
    prepared: FirstLoad | ReadAhead | None = None,
) -> DriverMerge:
    """Fold the changes, before anything is written. Raises Declined.

    `prepared` is the first load that comes with the changes, or the changes that a thread is already reading.
    """
    load = prepared if isinstance(prepared, FirstLoad) else None
    has_memory = False
    try:
        newest = prepared.take(table.schema, batches) if isinstance(prepared, ReadAhead) else None
        has_memory = newest is not None
        if newest is None:
            if limits.is_alone:
                driver_memory.reserve(driver_memory.WAIT_S)
                has_memory = True
            newest = read_newest(table, batches, limits.decoded_bytes)
        if load is None:
            target = TargetRows.pinned(table, current, listed=5 * limits.files, opened=limits.files)
        else:
            target = load.target
        folded = fold_changes(newest, table.schema, target)
    except BaseException:
        if has_memory:
            driver_memory.free()
        raise
    return DriverMerge(table, batches, target, folded, load, has_memory, keeps_files=limits.is_alone)


def read_newest(table: StagedTable, batches: Sequence[PlannedBatch], most_bytes: int) -> NewestChanges:
    """Read the batches' changes and select the newest change of each key. Raises Declined."""
    files = [file for batch in batches for file in batch.files]
    changes = read_changes(table, files, most_bytes, moved=any(batch.moved for batch in batches))
    return newest_changes(changes, table.schema)
