"""Finds the staged files that can be added to history without rewriting, and copies them into its folder.

    a batch in which every value was sent and no key changed,
    staged in shapes that history has                                       all of its files, unread
    any other batch of several files                                        the files in such shapes whose footer has
                                                                            the same facts (`Extent`)

The fold takes the rows of all other files. R1's order separates them: each file covers a range of the order alone, so
the fold need not distinguish files.
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

# Staged files beyond so many are committed to history as they are only if they are of some size on average.
MAX_CRUMBS: Final = 8
LEAST_BYTES: Final = 8 * 2**20

# Smaller files than that are asked for their footers up to so many: each is a request to an object store, and little is
# saved by what one of them says.
MOST_ASKED: Final = 16

# In so many stretches files that are committed as they are may alternate with those whose rows are computed.
MAX_STRETCHES: Final = 16

Stretch = tuple[OrderKey, OrderKey]
OnFailure = Callable[[str, Exception], None]

_ADDED: Final = pa.array(["read", "sweep"])
_ABOVE_ALL: Final = 2**63 - 1  # as an ordinal


@dataclass(frozen=True, slots=True)
class AsStaged:
    """The files of some batches that history gets as they are, each with its batch; all rows between the two order keys
    of one of the `stretches`, both included, are theirs."""

    files: tuple[tuple[PlannedBatch, StagedFile], ...] = ()
    stretches: tuple[Stretch, ...] = ()

    def others(self, batches: Sequence[PlannedBatch]) -> list[StagedFile]:
        """The batches' files whose rows are computed."""
        ours = {file.path for _, file in self.files}
        return [file for batch in batches for file in batch.files if file.path not in ours]

    def of_others(self) -> Column:
        """Whether a row is of another file."""
        return ~reduce(Column.__or__, [_between(*stretch) for stretch in self.stretches], F.lit(False))

    def rows_of_others(self, rows: pa.Table) -> pa.Table:
        """Those of the rows that are of other files, or that chunks add, which are of none."""
        if not self.stretches:
            return rows
        lsn, ordinal = (rows[name].to_numpy() for name in ORDER_COLUMNS)
        is_other = np.ones(rows.num_rows, np.bool_)
        for first, last in self.stretches:
            is_behind = (lsn > first[0]) | ((lsn == first[0]) & (ordinal >= first[1]))
            is_other &= ~(is_behind & ((lsn < last[0]) | ((lsn == last[0]) & (ordinal <= last[1]))))
        return rows.filter(pc.or_(pa.array(is_other), pc.is_in(rows["_op"], _ADDED)))


def as_staged(
    session: SparkSession,
    lake: str,
    batches: Sequence[PlannedBatch],
    versions: Collection[int],
    on_failure: OnFailure,
) -> AsStaged:
    """The files whose staged rows are history's rows: no value to fill in, no key change to split, and of one of the
    schema `versions`, in which every column has its own type and no later default.

    None if they are too many for their size, which would fill history with small files, or if they alternate too often
    with others. Reads the footers of the files of one batch only if that may distinguish them, and only of a few small
    ones. A file that cannot be read is left out: `on_failure` gets the reason, and may raise.
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
                stretch = (int(batch.start_lsn), 0), (int(batch.end_lsn) - 1, _ABOVE_ALL)
            elif file.schema_version in versions and len(batch.files) > 1:
                small += file.bytes < LEAST_BYTES
                if file.bytes >= LEAST_BYTES or small <= MOST_ASKED:
                    stretch = _stretch_of(session, lake, file, on_failure, is_self_contained=is_self_contained)
            if stretch is not None:
                kept.append((batch, file))
                begins = stretches.pop()[0] if adjoins else stretch[0]
                stretches.append((begins, stretch[1]))
            adjoins = stretch is not None
    if are_crumbs([file for _, file in kept]) or len(stretches) > MAX_STRETCHES:
        return AsStaged()
    return AsStaged(tuple(kept), tuple(stretches))


def _stretch_of(
    session: SparkSession, lake: str, file: StagedFile, on_failure: OnFailure, *, is_self_contained: bool
) -> Stretch | None:
    """Where in R1's order the file alone has rows, if it says so and history gets it as it is. `is_self_contained`: all
    of its batch is."""
    try:
        with open_to_read(session, f"{lake}/{file.path}", file.bytes) as opened:
            extent = Extent.from_metadata(pq.read_metadata(opened).metadata)
    except Exception as failed:  # whoever reads the file then, says best what is wrong with it
        on_failure("a footer", failed)
        return None
    if extent is None or not (extent.is_self_contained or is_self_contained):
        return None
    return extent.first, extent.last


def _between(first: OrderKey, last: OrderKey) -> Column:
    lsn, ordinal = (F.col(name) for name in ORDER_COLUMNS)
    is_behind = (lsn > first[0]) | ((lsn == first[0]) & (ordinal >= first[1]))
    return is_behind & ((lsn < last[0]) | ((lsn == last[0]) & (ordinal <= last[1])))


def are_crumbs(files: Sequence[StagedFile]) -> bool:
    """Whether a table that takes these files as they are would be read in crumbs."""
    return len(files) > MAX_CRUMBS and sum(file.bytes for file in files) < len(files) * LEAST_BYTES


def copied(
    session: SparkSession, history: PinnedTable, lake: str, schema: TableSchema, batch: PlannedBatch, file: StagedFile
) -> WrittenFile:
    """A staged file whose rows are history's, copied into history's folder. Raises StagedFileDiffers."""
    name, size, sha256 = delta_tables.copy_into_table(session, history, f"{lake}/{file.path}")
    if (size, sha256) != (file.bytes, file.sha256):
        raise StagedFileDiffers(path=file.path, table=str(schema.table))
    between = int(batch.start_lsn), int(batch.end_lsn) - 1
    return WrittenFile(name, size, file.rows, {"_commit_lsn": between})
