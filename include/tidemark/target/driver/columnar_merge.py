"""Many changes of a table, none of which moves a key or leaves a value unsent: `FewChanges` without a Python object for
each, so for millions where that is for thousands.

    staged files ──┬─ as they are ────────────────────────────────────────────────► history's commit
                   └─ the newest row of every key ─┬─► one Parquet file ──────────┐
    current's files that may have one of the keys ─┴─► which rows these replace ──┴─► current's commit

Without moves and unsent values the newest change of a key is its row, whatever came before it. Which rows of current
that replaces is looked up in the files that may have one of the keys by their bounds: a file whose whole numbers lie
elsewhere has none, for sure, and an empty table has no file. So what is new above all that is there, as most inserts
are, is compared with nothing; no MERGE joins it with the table.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark import failpoints
from tidemark.errors import StagedFileDiffers
from tidemark.formats.columns import row_schema, staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.lsn import Lsn
from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ROW_HOLES
from tidemark.schema.table import TableSchema
from tidemark.target.chunks.first_load import WholeChunks
from tidemark.target.delta import data_files, delta_tables, hadoop_files
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.driver import arrow_fold, history_files
from tidemark.target.driver.key_set import KeySet
from tidemark.target.driver.small_files import Crumbs, crumbs_of
from tidemark.target.driver.target_rows import TargetRows, TooMuch

MAX_ROWS: Final = 4_000_000
MAX_STAGED_BYTES: Final = 256 * 2**20  # as they lie there, and
MAX_BYTES: Final = 512 * 2**20  # as they are in memory
MAX_KEY_BYTES: Final = 256 * 2**20  # of current's keys
MAX_FILES: Final = 1_000  # of current
MAX_MASKED: Final = 500_000  # rows of current

# One table at a time: a backlog is of all tables, and as many of these as the application has threads need more memory
# than a driver has beside its JVM. The others go through Spark, which needs no more for more of them.
_only_one: Final = threading.BoundedSemaphore(1)

_ORDER: Final = [("_commit_lsn", "ascending"), ("_ordinal", "ascending")]
# Rows of a file of current, by their numbers.
Replaced = tuple[DataFile, Sequence[int]]

_REMOVES: Final = pa.array(["delete", "sweep"])


def are_plain(schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch]) -> bool:
    """Whether each change is its key's whole row, in the table's own shape."""
    versions = {f.schema_version for b in batches for f in b.files}
    return all(s.is_read_as(schemas[-1]) for s in schemas if s.version in versions) and not any(
        b.unchanged or b.moved or b.truncates for b in batches
    )


@dataclass(frozen=True, slots=True)
class Newest:
    """The last change of every key: its key's columns, whether it leaves a row, and those that do, whole."""

    keys: Sequence[pa.ChunkedArray]
    stays: pa.ChunkedArray
    staying: pa.Table


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """All changes of these batches in R1 order, in the table's shape, and the last ones."""

    schema: TableSchema
    batches: Sequence[PlannedBatch]
    changes: pa.Table
    newest: Newest


def plain_changes(
    session: SparkSession, lake: str, staged: StagedChanges, current: PinnedTable, whole: WholeChunks | None
) -> PlainChanges:
    """Everything that has to be known before something is written; to be released, with the memory that was reserved
    for `staged`. Raises TooMuch, and lets the memory go."""
    try:
        there = _rows_of(session, current, staged.schema, whole)
        return Gathered(
            session, lake, staged.schema, staged.batches, staged.changes, there, whole, newest=staged.newest
        ).folded()
    except BaseException:
        free_memory()
        raise


def read_now(session: SparkSession, lake: str, schema: TableSchema, batches: Sequence[PlannedBatch]) -> StagedChanges:
    """With the driver's memory. Raises TooMuch."""
    reserve_memory()
    try:
        return staged_of(session, lake, schema, batches)
    except BaseException:
        free_memory()
        raise


def reserve_memory(wait_s: float = 0.0) -> None:
    """For this table alone, until its `PlainChanges` are released. Raises TooMuch where another one has it so long."""
    if not _only_one.acquire(timeout=wait_s):
        raise TooMuch("another table has the driver's memory")


def free_memory() -> None:
    _only_one.release()


def staged_of(session: SparkSession, lake: str, schema: TableSchema, batches: Sequence[PlannedBatch]) -> StagedChanges:
    """For whoever has reserved the memory. Raises TooMuch."""
    changes = staged_changes_of(session, lake, schema, [f for b in batches for f in b.files])
    return StagedChanges(schema, batches, changes, _newest(changes, schema.key))


def staged_changes_of(
    session: SparkSession,
    lake: str,
    schema: TableSchema,
    files: Sequence[StagedFile],
    only: KeySet | None = None,
    most_bytes: int = MAX_BYTES,
) -> pa.Table:
    """All changes, or those of some keys, in R1 order. The bytes are those that were staged. Raises TooMuch."""
    shape = shape_of(schema)
    names = shape.names
    tables = [shape.empty_table()]
    left = most_bytes
    for file in files:
        content = hadoop_files.read_whole(session, f"{lake}/{file.path}", file.bytes)
        if (len(content), hashlib.sha256(content).hexdigest()) != (file.bytes, file.sha256):
            raise StagedFileDiffers(path=file.path, table=str(schema.table))
        parquet = pq.ParquetFile(pa.BufferReader(content))
        left -= sum(parquet.metadata.row_group(n).total_byte_size for n in range(parquet.num_row_groups))
        if left < 0:
            raise TooMuch("many bytes of changes")
        read = parquet.read(columns=[name for name in names if name in parquet.schema_arrow.names])
        table = arrow_fold.in_shape(read, shape)
        tables.append(table if only is None else table.filter(only.holds([table[k] for k in schema.key])))
    return in_order(pa.concat_tables(tables))


def shape_of(schema: TableSchema) -> pa.Schema:
    """What history has of a change."""
    staged = staged_schema(schema)
    return pa.schema([staged.field(n) for n in (*CHANGE_COLUMNS, *(c.name for c in schema.columns), *MARK_COLUMNS)])


def in_order(changes: pa.Table) -> pa.Table:
    """By R1, in which the files of a drain are already."""
    lsn, ordinal = (changes[name].to_numpy() for name, _ in _ORDER)
    is_behind = (lsn[1:] > lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (ordinal[1:] >= ordinal[:-1]))
    return changes if is_behind.all() else changes.take(pc.sort_indices(changes.select([n for n, _ in _ORDER]), _ORDER))


def _newest(changes: pa.Table, key: Sequence[str]) -> Newest:
    numbered = changes.select(list(key)).append_column("__tidemark_row", pa.array(np.arange(changes.num_rows)))
    last = numbered.group_by(list(key)).aggregate([("__tidemark_row", "max")])
    rows = last["__tidemark_row_max"].combine_chunks().sort()
    stays = pc.invert(pc.is_in(changes["_op"].take(rows), _REMOVES))
    return Newest([changes[k].take(rows) for k in key], stays, changes.take(rows.filter(stays.combine_chunks())))


def _rows_of(session: SparkSession, current: PinnedTable, schema: TableSchema, whole: WholeChunks | None) -> TargetRows:
    if whole is not None:
        return whole.there
    files = data_files.data_files(session, current)
    if files is None or len(files) > MAX_FILES:
        raise TooMuch("many files, or files that say too little of themselves")
    shape = staged_schema(schema)
    types = {name: shape.field(name).type for name in shape.names}
    return TargetRows(session, current, files, schema.key, types, left=MAX_KEY_BYTES)


def _replaced(there: TargetRows, keys: KeySet) -> tuple[list[Replaced], list[list[pa.ChunkedArray]]]:
    """The rows of current that have one of the keys, by their files, and these rows' keys."""
    masked: list[Replaced] = []
    keys_there: list[list[pa.ChunkedArray]] = []
    left = MAX_MASKED
    for file in there.files if len(keys) else ():
        if not there.may_meet(file, keys):
            continue
        columns = there.keys(file)
        if len(columns[0]) != file.rows:
            raise TooMuch("the log says otherwise")
        rows = pc.indices_nonzero(keys.holds(columns)).to_pylist()
        gone = data_files.masked_rows(there.session, there.current, file) if rows else set()
        rows = [row for row in rows if row not in gone]
        left -= len(rows)
        if left < 0:
            raise TooMuch("many rows to replace")
        if rows:
            masked.append((file, rows))
            keys_there.append([column.take(pa.array(rows, pa.int64())) for column in columns])
    return masked, keys_there


@dataclass(frozen=True, slots=True)
class OfChunks:
    """What chunks add to the changes, `read` and `sweep` rows in their shape, and what became of the chunks' rows."""

    added: pa.Table
    results: tuple[ChunkResult, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that a fold is made of: `staged` are the changes of the batches in R1 order, `there` knows the rows
    of current that they replace. `whole` are chunks whose files are added besides, none of whose rows a change touches;
    `of_chunks` is what comes of those that one does. `reserved`: the driver's memory is this table's. `newest` of them
    is known already where no chunks add any."""

    session: SparkSession
    lake: str
    schema: TableSchema
    batches: Sequence[PlannedBatch]
    staged: pa.Table
    there: TargetRows
    whole: WholeChunks | None
    of_chunks: OfChunks | None = None
    reserved: bool = True
    newest: Newest | None = None

    def folded(self) -> PlainChanges:
        """Raises TooMuch."""
        newest = self.newest
        if newest is None:
            added = [] if self.of_chunks is None else [self.of_chunks.added]
            newest = _newest(in_order(pa.concat_tables([self.staged, *added])), self.schema.key)
        masked, is_there = self._replaced(newest.keys)
        updated = pc.sum(pc.and_(is_there, newest.stays)).as_py() or 0
        gone = pc.sum(pc.and_(is_there, pc.invert(newest.stays))).as_py() or 0
        counts = {"inserted": newest.staying.num_rows - updated, "updated": updated, "deleted": gone}
        crumbs = crumbs_of(self.there, row_schema(self.schema), masked)
        return PlainChanges(self, newest.staying, masked, counts, crumbs)

    def _replaced(self, keys: Sequence[pa.ChunkedArray]) -> tuple[Sequence[Replaced], pa.ChunkedArray]:
        """The rows of current that have one of the keys, by their files; and per key, whether there is one."""
        if self.whole is not None:  # they were looked for already, row group by row group
            listed = arrow_fold.keys_of(keys)
            found = pa.array([key in self.there.at for key in listed], pa.bool_())
            return self.there.places(listed), pa.chunked_array([found])
        if not self.there.files:
            return [], pa.chunked_array([np.zeros(len(keys[0]), np.bool_)])
        types = [self.staged.schema.field(k).type for k in self.schema.key]
        masked, keys_there = _replaced(self.there, KeySet(types, [keys]))
        return masked, KeySet(types, keys_there).holds(keys)


@dataclass(slots=True)
class PlainChanges:
    """`staying` is the row of each key that the changes leave with one, `masked` are the rows of current that they
    replace; `crumbs` are small files whose rows are written anew beside them."""

    of: Gathered
    staying: pa.Table
    masked: Sequence[Replaced]
    counts: dict[str, int]
    crumbs: Crumbs
    new_holes: bool = False

    @property
    def end(self) -> Lsn:
        return self.of.batches[-1].end_lsn

    @property
    def has_memory(self) -> bool:
        """Whether the driver's memory is this table's, until it is released."""
        return self.of.reserved

    def release(self) -> None:
        """Let another table have the memory; once."""
        if self.has_memory:
            free_memory()

    @property
    def chunk_results(self) -> tuple[ChunkResult, ...]:
        return () if self.of.of_chunks is None else self.of.of_chunks.results

    def move_history(self, history: PinnedTable, application: str) -> int:
        """Append every change, and what chunks add. Returns the rows appended."""
        failpoints.reach("merge.before_history")
        of = self.of
        files = [(b, f) for b in of.batches for f in b.files]
        if history_files.are_crumbs([file for _, file in files]):
            written = data_files.write_rows(of.session, history, of.staged, of.schema.key)
        else:
            written = [
                history_files.copied(of.session, history, of.lake, of.schema, batch, file) for batch, file in files
            ]
        if of.of_chunks is not None:
            written += data_files.write_rows(of.session, history, of.of_chunks.added, of.schema.key)
        written += [] if of.whole is None else of.whole.files_of_history(history)
        count = delta_tables.append(of.session, history, None, application, self.end, written)
        failpoints.reach("merge.after_history")
        return count

    def move_current(self, application: str) -> dict[str, int]:
        """One commit that brings current to the end of the batches. Returns the rows inserted, updated, deleted."""
        failpoints.reach("merge.before_current")
        of = self.of
        current = of.there.current
        shape = row_schema(of.schema)
        holes = pa.nulls(self.staying.num_rows, shape.field(ROW_HOLES).type)
        rows = self.staying.append_column(ROW_HOLES, holes).select(shape.names)
        written = data_files.write_rows(of.session, current, pa.concat_tables([rows, self.crumbs.rows]), of.schema.key)
        written += [] if of.whole is None else of.whole.files_of_current()
        data_files.exchange(of.session, current, self.crumbs.exchanged(self.masked), written, application, self.end)
        failpoints.reach("merge.after_current")
        added = 0 if of.whole is None else of.whole.rows
        return {**self.counts, "inserted": self.counts["inserted"] + added}
