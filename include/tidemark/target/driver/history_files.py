"""Finds the staged files that can be added to history without rewriting, and copies them into its folder.

    a batch in which every value was sent and no key changed,
    staged with the columns that history has                      all of its files, without reading them
    any other batch of several files                              the files whose footer states the same (`Extent`)

The rows of all other files are computed by a fold. R1's order separates the two kinds of rows, since no two files
overlap in that order. So the fold needs only order keys, not file names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidemark.errors import StagedFileDiffers
from tidemark.formats.extent import Extent, OrderKey
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.names import ORDER_COLUMNS
from tidemark.schema.table import TableSchema
from tidemark.target.delta import delta_tables
from tidemark.target.delta.delta_tables import PinnedTable, WrittenFile
from tidemark.target.delta.hadoop_files import open_to_read

# More staged files than this are added unchanged only if they have LEAST_BYTES on average.
MAX_SMALL_FILES: Final = 8
LEAST_BYTES: Final = 8 * 2**20

# The most footers that are read of files below LEAST_BYTES: each costs a request to an object store and saves little.
MAX_SMALL_FOOTERS: Final = 16

# The most stretches of R1's order that unchanged files may form between files whose rows are computed.
MAX_STRETCHES: Final = 16

Stretch = tuple[OrderKey, OrderKey]
OnFailure = Callable[[str, Exception], None]

_ADDED: Final = pa.array(["read", "sweep"])
_LAST_ORDINAL: Final = 2**63 - 1  # as an ordinal


@dataclass(frozen=True, slots=True)
class StagedHistoryFiles:
    """The files of some batches that are added to history unchanged, each with its batch.

    `stretches` are pairs of order keys, both inclusive. All rows within a stretch are rows of these files.
    """

    files: tuple[tuple[PlannedBatch, StagedFile], ...] = ()
    stretches: tuple[Stretch, ...] = ()

    def computed_files(self, batches: Sequence[PlannedBatch]) -> list[StagedFile]:
        """The files of the batches that are not added unchanged; their rows are computed."""
        kept_paths = {file.path for _, file in self.files}
        return [file for batch in batches for file in batch.files if file.path not in kept_paths]

    def is_computed(self) -> Column:
        """A condition that holds for rows of the files that are not added unchanged."""
        return ~reduce(Column.__or__, [_between(*stretch) for stretch in self.stretches], F.lit(False))

    def computed_rows(self, rows: pa.Table) -> pa.Table:
        """The rows to write: those of files that are not added unchanged, and those that chunks add."""
        if not self.stretches:
            return rows
        lsn, ordinal = (rows[name].to_numpy() for name in ORDER_COLUMNS)
        is_computed = np.ones(rows.num_rows, np.bool_)
        for first, last in self.stretches:
            is_behind = (lsn > first[0]) | ((lsn == first[0]) & (ordinal >= first[1]))
            is_computed &= ~(is_behind & ((lsn < last[0]) | ((lsn == last[0]) & (ordinal <= last[1]))))
        return rows.filter(pc.or_(pa.array(is_computed), pc.is_in(rows["_op"], _ADDED)))


def as_staged(
    session: SparkSession,
    lake: str,
    batches: Sequence[PlannedBatch],
    versions: Collection[int],
    on_failure: OnFailure,
) -> StagedHistoryFiles:
    """The files whose staged rows are history's rows.

    Such a file has no value to fill in, no key change to split, and one of the schema `versions`, in which every column
    has the type of history and no later default. Returns no files if they are too many for their size, which would fill
    history with small files, or if they alternate too often with other files. Footers are read only in batches of
    several files, and only of a few small files. A file that cannot be read is not added unchanged: `on_failure` gets
    the error, and may raise it.
    """
    kept: list[tuple[PlannedBatch, StagedFile]] = []
    stretches: list[Stretch] = []
    adjoins, small = False, 0
    for batch in batches:
        is_self_contained = not batch.unchanged and not batch.moved
        is_in_shape = all(file.schema_version in versions for file in batch.files)
        for file in batch.files:
            stretch = None
            if is_self_contained and is_in_shape:
                stretch = (int(batch.start_lsn), 0), (int(batch.end_lsn) - 1, _LAST_ORDINAL)
            elif file.schema_version in versions and len(batch.files) > 1:
                small += file.bytes < LEAST_BYTES
                if file.bytes >= LEAST_BYTES or small <= MAX_SMALL_FOOTERS:
                    stretch = _stretch_of(session, lake, file, on_failure, is_self_contained=is_self_contained)
            if stretch is not None:
                kept.append((batch, file))
                begins = stretches.pop()[0] if adjoins else stretch[0]
                stretches.append((begins, stretch[1]))
            adjoins = stretch is not None
    if are_many_and_small([file for _, file in kept]) or len(stretches) > MAX_STRETCHES:
        return StagedHistoryFiles()
    return StagedHistoryFiles(tuple(kept), tuple(stretches))


def _stretch_of(
    session: SparkSession, lake: str, file: StagedFile, on_failure: OnFailure, *, is_self_contained: bool
) -> Stretch | None:
    """The stretch of R1's order that the file covers alone, None if its footer lacks that or if its rows are computed.

    `is_self_contained`: every change of the batch has all of its values and keeps its key.
    """
    try:
        with open_to_read(session, f"{lake}/{file.path}", file.bytes) as opened:
            extent = Extent.from_metadata(pq.read_metadata(opened).metadata)
    except Exception as failed:  # the fold reads the file next and raises a better error
        on_failure("a footer", failed)
        return None
    if extent is None or not (extent.is_self_contained or is_self_contained):
        return None
    return extent.first, extent.last


def _between(first: OrderKey, last: OrderKey) -> Column:
    lsn, ordinal = (F.col(name) for name in ORDER_COLUMNS)
    is_behind = (lsn > first[0]) | ((lsn == first[0]) & (ordinal >= first[1]))
    return is_behind & ((lsn < last[0]) | ((lsn == last[0]) & (ordinal <= last[1])))


def are_many_and_small(files: Sequence[StagedFile]) -> bool:
    """Whether these files are so many and so small that they would slow down reads of history."""
    return len(files) > MAX_SMALL_FILES and sum(file.bytes for file in files) < len(files) * LEAST_BYTES


def copy_to_history(
    session: SparkSession, history: PinnedTable, lake: str, schema: TableSchema, batch: PlannedBatch, file: StagedFile
) -> WrittenFile:
    """Copy a staged file whose rows are history's rows into history's folder. Raises StagedFileDiffers."""
    name, size, sha256 = delta_tables.copy_into_table(session, history, f"{lake}/{file.path}")
    if (size, sha256) != (file.bytes, file.sha256):
        raise StagedFileDiffers(path=file.path, table=str(schema.table))
    between = int(batch.start_lsn), int(batch.end_lsn) - 1
    return WrittenFile(name, size, file.rows, {"_commit_lsn": between})
