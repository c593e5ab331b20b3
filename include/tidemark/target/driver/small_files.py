"""Joins small files of current from earlier merges into one file, in a commit that changes current anyway.

Each merge adds a file, and each later merge opens all files that may have one of its keys. Merges of a table that is
merged every minute would slow down hour by hour until maintenance compacts the table. From fifty files on, Delta also
lists the files by a Spark job. So as soon as the driver has written MIN_SMALL_FILES small files, a merge writes their
remaining rows together with the new rows. The new file counts as small until it has grown. So a row is rewritten only a
few times, however many merges follow.

Only files that the driver wrote and tagged in the log (ROWS_TAG) are joined. They have the types of `row_schema`. Files
of chunks have other tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.target.delta import data_files
from tidemark.target.delta.data_files import ROWS_TAG, DataFile
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import Declined

MIN_SMALL_FILES: Final = 16
SMALL_BYTES: Final = 2**20  # of a file
MAX_BYTES: Final = 32 * 2**20  # of all files that one merge joins
MAX_DECODED: Final = 128 * 2**20  # of their rows in memory: repeated texts may be a hundred times as large as in a file


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """Small files to remove. `rows` has those of their rows that stay in current."""

    files: Sequence[DataFile]
    rows: pa.Table

    def masked_files(
        self, replaced: Sequence[tuple[DataFile, Sequence[int]]]
    ) -> list[tuple[DataFile, Sequence[int] | None]]:
        """What the commit masks: the replaced rows of other files, and the small files as a whole (None)."""
        small_paths = {file.path for file in self.files}
        replaced_elsewhere = [(file, rows) for file, rows in replaced if file.path not in small_paths]
        return [*replaced_elsewhere, *((file, None) for file in self.files)]


def join_small_files(
    target: TargetRows, shape: pa.Schema, replaced: Sequence[tuple[DataFile, Sequence[int]]]
) -> SmallFiles:
    """The small files of current, if there are at least MIN_SMALL_FILES, and those of their rows that stay.

    `replaced` are the rows of current that the merge replaces. The returned rows have this shape.
    """
    nothing = SmallFiles((), shape.empty_table())
    files = _small(target.files)
    if len(files) < MIN_SMALL_FILES or not {f.name for f in target.current.schema().fields} <= set(shape.names):
        return nothing
    replaced_rows = {file.path: rows for file, rows in replaced}
    pieces, joined, bytes_left = [shape.empty_table()], [], MAX_DECODED
    for file in files:
        try:
            rows = target.whole(file, shape, bytes_left)
        except Declined:  # the file is too large in memory, or of another kind, and is not joined
            continue
        bytes_left -= rows.nbytes
        masked = data_files.masked_rows(target.session, target.current, file)
        gone = np.union1d(masked, np.array(replaced_rows.get(file.path, ()), np.int64))
        pieces.append(rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), gone, assume_unique=True))))
        joined.append(file)
    if len(joined) < 2:  # joining a single file gains nothing
        return nothing
    return SmallFiles(joined, pa.concat_tables(pieces))


def _small(files: Sequence[DataFile]) -> list[DataFile]:
    """The small files that the driver wrote, the smallest first, up to MAX_BYTES in all."""
    small, bytes_left = [], MAX_BYTES
    for file in sorted(files, key=lambda file: file.bytes):
        if file.bytes <= SMALL_BYTES and ROWS_TAG in file.tags and (bytes_left := bytes_left - file.bytes) >= 0:
            small.append(file)
    return small
