"""Replaces small files of current that earlier merges wrote by one, in a commit that changes current anyway.

Each merge adds a file, and each later merge opens all files that may have one of its keys. A table that is merged every
minute would cost more with every hour until maintenance compacts it. From fifty files on, Delta also has Spark list
them. So when there are MOST small files of the driver's own, a merge writes their remaining rows again, once, beside
the new ones. The result counts as small until it has grown, so a row is written a few times, however many merges come.

Only files that the driver wrote and tagged in the log (ROWS_TAG) are taken. They have the types of `row_schema`. The
files of chunks have tags of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidemark.target.delta import data_files
from tidemark.target.delta.data_files import ROWS_TAG, DataFile
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import Declined

MOST: Final = 16
SMALL_BYTES: Final = 2**20  # of a file
MAX_BYTES: Final = 32 * 2**20  # of all that are gathered at once, and
MAX_DECODED: Final = 128 * 2**20  # of their rows, in memory: of a text that says one thing often a file is a hundredth


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """`rows` are the rows of the files that stay; the files themselves go."""

    files: Sequence[DataFile]
    rows: pa.Table

    def exchanged(
        self, replaced: Sequence[tuple[DataFile, Sequence[int]]]
    ) -> list[tuple[DataFile, Sequence[int] | None]]:
        """What a commit masks that replaces these rows of current, and has the small files' rows in another file."""
        own = {file.path for file in self.files}
        others = [(file, rows) for file, rows in replaced if file.path not in own]
        return [*others, *((file, None) for file in self.files)]


def gathered(target: TargetRows, shape: pa.Schema, replaced: Sequence[tuple[DataFile, Sequence[int]]]) -> SmallFiles:
    """The small files of current, once there are many, and their rows that are not replaced, in this shape."""
    nothing = SmallFiles((), shape.empty_table())
    files = _small(target.files)
    if len(files) < MOST or not {f.name for f in target.current.schema().fields} <= set(shape.names):
        return nothing
    gone = {file.path: rows for file, rows in replaced}
    pieces, taken, left = [shape.empty_table()], [], MAX_DECODED
    for file in files:
        try:
            rows = target.whole(file, shape, left)
        except Declined:  # it stays what it is
            continue
        left -= rows.nbytes
        masked = data_files.masked_rows(target.session, target.current, file).union(gone.get(file.path, ()))
        pieces.append(rows.take(pa.array([n for n in range(rows.num_rows) if n not in masked], pa.int64())))
        taken.append(file)
    if len(taken) < 2:  # one file would be one file
        return nothing
    return SmallFiles(taken, pa.concat_tables(pieces))


def _small(files: Sequence[DataFile]) -> list[DataFile]:
    """The driver's own, the smallest first."""
    small, left = [], MAX_BYTES
    for file in sorted(files, key=lambda file: file.bytes):
        if file.bytes <= SMALL_BYTES and ROWS_TAG in file.tags and (left := left - file.bytes) >= 0:
            small.append(file)
    return small
