"""Merges a table's changes in the driver: reads and folds them, and commits them to history and current without Spark.

    staged files ──┬─ as they are, or ─► one Parquet file ─────────────────────────► history's commit
                   └─ `driver_fold` ─┬─► one Parquet file ─────────────────────────┐
    current's files ─────────────────┴─► the numbers of the rows that it replaces ─┴─► current's commit

For a few rows, Spark's planning, compiling and scheduling are nearly all of a merge's time, per table. For millions of
rows, Spark's MERGE joins them with the whole table. Deletion vectors mask the replaced rows, as MERGE does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidemark import failpoints
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.lsn import Lsn
from tidemark.target.chunks.first_load import FirstLoad
from tidemark.target.delta import data_files, delta_tables, hadoop_files
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.delta.jvm import java_class
from tidemark.target.driver import driver_memory, history_files
from tidemark.target.driver.change_reader import StagedTable, read_changes
from tidemark.target.driver.driver_fold import FoldedChanges, NewestChanges, fold_changes, newest_changes
from tidemark.target.driver.history_files import AsStaged, OnFailure
from tidemark.target.driver.prefetch import ReadAhead
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import DriverLimits

# Of current's key columns, decoded. Spark's MERGE reads them too, and joins them; but on a cluster it does so on many
# machines. These are some 400 million uuids as text, or two billion bigints: a minute of CPU, and of an object store,
# whose bytes come through the JVM, an eighth of them.
MAX_KEY_BYTES: Final = 16 * 2**30
MAX_FAR_KEY_BYTES: Final = 2 * 2**30


@dataclass(slots=True)
class DriverMerge:
    """`load` are chunks whose files are added besides, and `chunk_results` says what became of their other rows, which
    are among the changes then. `has_memory`: the driver's memory is this table's until `release`. `keeps_files`: staged
    files that are history's rows already are copied, not written anew."""

    table: StagedTable
    batches: Sequence[PlannedBatch]
    target: TargetRows
    folded: FoldedChanges
    on_failure: OnFailure
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
        """Let another table have the memory; once."""
        if self.has_memory:
            driver_memory.free()

    def move_history(self, history: PinnedTable, application: str) -> int:
        """Append every change, truncates as rows without a key, and what chunks add. Returns the rows appended."""
        failpoints.reach("merge.before_history")
        session, lake, schema = self.table.session, self.table.lake, self.table.schema
        kept = self._as_staged()
        written = [history_files.copied(session, history, lake, schema, batch, file) for batch, file in kept.files]
        rows = kept.rows_of_others(self.folded.history(schema))
        written += data_files.write_rows(session, history, rows, schema.key)
        written += [] if self.load is None else self.load.files_of_history(history)
        count = delta_tables.append(session, history, None, application, self.end, written)
        failpoints.reach("merge.after_history")
        return count

    def _as_staged(self) -> AsStaged:
        if not self.keeps_files:
            return AsStaged()
        table = self.table
        versions = {schema.version for schema in table.schemas if schema.is_read_as(table.schema)}
        return history_files.as_staged(table.session, table.lake, self.batches, versions, self.on_failure)

    def move_current(self, application: str) -> dict[str, int]:
        """One commit that brings current to the end of the batches. Returns the rows inserted, updated, deleted."""
        failpoints.reach("merge.before_current")
        session, folded, current = self.table.session, self.folded, self.target.current
        exchanged: list[tuple[DataFile, Sequence[int] | None]]
        if folded.truncated:
            rows, exchanged = folded.staying, [(file, None) for file in self.target.files]
        else:
            rows = pa.concat_tables([folded.staying, folded.small.rows])
            exchanged = folded.small.exchanged(folded.replaced)
        written = data_files.write_rows(session, current, rows, self.table.schema.key)
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
    on_failure: OnFailure,
    known: FirstLoad | ReadAhead | None = None,
) -> DriverMerge:
    """Fold the changes: everything that must be computed before anything is written. `known` are the chunks that come
    with them, or, without chunks, the changes as they are being read. Raises Declined."""
    load = known if isinstance(known, FirstLoad) else None
    has_memory = False
    try:
        newest = known.take(table.schema, batches) if isinstance(known, ReadAhead) else None
        has_memory = newest is not None
        if newest is None:
            if limits.is_alone:
                driver_memory.reserve()
                has_memory = True
            newest = read_newest(table, batches, limits.decoded_bytes)
        target = load.target if load is not None else target_rows(table, current, limits)
        folded = fold_changes(newest, table.schema, target)
    except BaseException:
        if has_memory:
            driver_memory.free()
        raise
    return DriverMerge(table, batches, target, folded, on_failure, load, has_memory, keeps_files=limits.is_alone)


def target_rows(table: StagedTable, current: PinnedTable, limits: DriverLimits) -> TargetRows:
    """Raises Declined."""
    is_local = hadoop_files.is_local(
        table.session, java_class(table.session, "org.apache.hadoop.fs.Path")(current.path)
    )
    left = MAX_KEY_BYTES if is_local else MAX_FAR_KEY_BYTES
    return TargetRows.pinned(table, current, listed=5 * limits.files, opened=limits.files, left=left)


def read_newest(table: StagedTable, batches: Sequence[PlannedBatch], most_bytes: int) -> NewestChanges:
    """Raises Declined."""
    files = [file for batch in batches for file in batch.files]
    changes = read_changes(table, files, most_bytes, moved=any(batch.moved for batch in batches))
    return newest_changes(changes, table.schema)
