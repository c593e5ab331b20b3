"""Finds the batches whose staged files can be added to history without rewriting, and copies the files into its folder.

    a batch in which every value was sent and no key changed,
    staged with the columns that history has                      all of its files, without reading them

The rows of all other batches are computed by a fold. A batch has whole transactions (R2), so the LSN of a row's commit
tells which batch the row is of.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.errors import StagedFileDiffers
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.lsn import Lsn
from tidemark.target.delta import hadoop_files
from tidemark.target.delta.delta_tables import Bounds, PinnedTable, WrittenFile
from tidemark.target.delta.hadoop_files import Body
from tidemark.target.driver.change_reader import StagedTable

# More staged files than this are added unchanged only if they have LEAST_BYTES on average.
MAX_SMALL_FILES: Final = 8
LEAST_BYTES: Final = 8 * 2**20

# The most stretches that unchanged batches may form between batches whose rows are computed.
MAX_STRETCHES: Final = 16

_ADDED: Final = pa.array(["read", "sweep"])


@dataclass(frozen=True, slots=True)
class StagedHistoryFiles:
    """The files of some batches that are added to history unchanged, each with its batch.

    `stretches` are half-open ranges of commit LSNs. All changes within a stretch are rows of these files.
    """

    files: tuple[tuple[PlannedBatch, StagedFile], ...] = ()
    stretches: tuple[tuple[Lsn, Lsn], ...] = ()

    def computed_files(self, batches: Sequence[PlannedBatch]) -> list[StagedFile]:
        """The files of the batches that are not added unchanged; their rows are computed."""
        kept_paths = {file.path for _, file in self.files}
        return [file for batch in batches for file in batch.files if file.path not in kept_paths]

    def is_computed(self) -> Column:
        """A condition that holds for rows of the files that are not added unchanged."""
        lsn = F.col("_commit_lsn")
        kept = [(lsn >= int(start)) & (lsn < int(end)) for start, end in self.stretches]
        return ~reduce(Column.__or__, kept, F.lit(False))

    def computed_rows(self, rows: pa.Table) -> pa.Table:
        """The rows to write: those of files that are not added unchanged, and those that chunks add."""
        if not self.stretches:
            return rows
        lsn = rows["_commit_lsn"].to_numpy()
        is_computed = np.ones(rows.num_rows, np.bool_)
        for start, end in self.stretches:
            is_computed &= (lsn < int(start)) | (lsn >= int(end))
        return rows.filter(pc.or_(pa.array(is_computed), pc.is_in(rows["_op"], _ADDED)))


def as_staged(batches: Sequence[PlannedBatch], versions: Collection[int]) -> StagedHistoryFiles:
    """The files of the batches whose staged rows are history's rows.

    Such a batch has no value to fill in and no key change to split. Its files have schema `versions` in which every
    column has the type of history and no later default. Returns no files if they are too many for their size, which
    would fill history with small files, or if their batches alternate too often with other batches.
    """
    kept: list[tuple[PlannedBatch, StagedFile]] = []
    stretches: list[tuple[Lsn, Lsn]] = []
    adjoins = False
    for batch in (batch for batch in batches if batch.files):
        is_in_shape = all(file.schema_version in versions for file in batch.files)
        is_kept = is_in_shape and not batch.unchanged and not batch.moved
        if is_kept:
            kept += [(batch, file) for file in batch.files]
            stretches.append((stretches.pop()[0] if adjoins else batch.start_lsn, batch.end_lsn))
        adjoins = is_kept
    if are_many_and_small([file for _, file in kept]) or len(stretches) > MAX_STRETCHES:
        return StagedHistoryFiles()
    return StagedHistoryFiles(tuple(kept), tuple(stretches))


def are_many_and_small(files: Sequence[StagedFile]) -> bool:
    """Whether these files are so many and so small that they would slow down reads of history."""
    return len(files) > MAX_SMALL_FILES and sum(file.bytes for file in files) < len(files) * LEAST_BYTES


def copy_to_history(table: StagedTable, history: PinnedTable, batch: PlannedBatch, file: StagedFile) -> WrittenFile:
    """Copy a staged file whose rows are history's rows into history's folder. Raises StagedFileDiffers."""
    whole = Body(f"{table.lake}/{file.path}", file.bytes, b"")
    name, (sha256,) = hadoop_files.write_joined(table.session, history.path, [whole], b"")
    if sha256 != file.sha256:
        raise StagedFileDiffers(path=file.path, table=str(table.schema.table))
    bounds: dict[str, Bounds] = {
        "_generation": (table.generation, table.generation),
        "_commit_lsn": (int(batch.start_lsn), int(batch.end_lsn) - 1),
    }
    if file.first_committed_at is not None and file.last_committed_at is not None:
        times = datetime.fromisoformat(file.first_committed_at), datetime.fromisoformat(file.last_committed_at)
        bounds["_committed_at"] = times
    return WrittenFile(name, file.bytes, file.rows, bounds)
