"""Defines `DecodedBlock`: typed rows per table, the transactions that ended, and logical messages.

A block can be split at a batch's end (R2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.lsn import Lsn
from tidemark.names import OLD_KEY_PREFIX, OLD_PREFIX
from tidemark.pgoutput.messages import LogicalMessage
from tidemark.schema.table import TableSchema


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Consecutive changes of one table under one definition, in R1 order. `rows` follows `staged_schema(schema)`.

    - `counts` maps each operation that occurs to its number of changes.
    - `unchanged` is the number of rows with an `_unchanged` mask, `moved` the number of rows with an `_old_key`.
    - `converted` maps a column to the number of rows that keep its text in `_text` (R8). Texts of old keys and old rows
      are not counted.
    - `key_unfit` names the key columns that have a value that their target type cannot hold, or NULL. Such a table must
      be parked. `key_null` names the columns among them that have NULL.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    counts: dict[str, int]
    unchanged: int
    moved: int
    converted: dict[str, int]
    key_unfit: tuple[str, ...]
    key_null: tuple[str, ...]

    @classmethod
    def of(cls, schema: TableSchema, rows: pa.RecordBatch) -> TableBlock:
        """The block of these rows, with the counts computed from them."""
        counts = {v["values"]: v["counts"] for v in rows.column("_op").value_counts().to_pylist()}
        unchanged, text = rows.column("_unchanged"), rows.column("_text")
        texts: dict[str, int] = {}
        if text.null_count < len(text):
            texts = {v["values"]: v["counts"] for v in text.filter(text.is_valid()).keys.value_counts().to_pylist()}
        converted = {n: count for n, count in texts.items() if not n.startswith((OLD_KEY_PREFIX, OLD_PREFIX))}
        moved, unfit, null = 0, [], []
        if schema.key:
            old_key = rows.column("_old_key")
            moved = len(old_key) - old_key.null_count
            for at, name in enumerate(schema.key):
                missing = rows.column(name).null_count - counts.get("truncate", 0)
                # By index, because Arrow parses a text as a path and splits a name with a dot into two names.
                missing += pc.struct_field(old_key, [at]).null_count - old_key.null_count
                if missing:
                    unfit.append(name)
                if missing > texts.get(name, 0) + texts.get(f"{OLD_KEY_PREFIX}{name}", 0):
                    null.append(name)
        masked = len(unchanged) - unchanged.null_count
        return cls(schema, rows, counts, masked, moved, converted, tuple(unfit), tuple(null))

    def split(self, end_lsn: Lsn) -> tuple[TableBlock | None, TableBlock | None]:
        """The rows with `commit_lsn < end_lsn`, and the rest; None for a part without rows."""
        cut = int(np.searchsorted(self.rows.column("_commit_lsn").to_numpy(), int(end_lsn)))
        if cut == 0:
            return None, self
        if cut == self.rows.num_rows:
            return self, None
        return TableBlock.of(self.schema, self.rows.slice(0, cut)), TableBlock.of(self.schema, self.rows.slice(cut))


@dataclass(frozen=True, slots=True)
class Commits:
    """The transactions that ended in a block, in stream order, as arrays of equal length.

    `committed_at` is in microseconds since the Unix epoch. `xid32` is the 32-bit transaction id of BEGIN.
    """

    commit_lsn: NDArray[np.int64]
    end_lsn: NDArray[np.int64]
    xid32: NDArray[np.uint32]
    committed_at: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.commit_lsn)

    def slice(self, start: int, stop: int) -> Commits:
        piece = slice(start, stop)
        return Commits(self.commit_lsn[piece], self.end_lsn[piece], self.xid32[piece], self.committed_at[piece])


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """The result of one call of `Decoder.decode`. `changes` is in stream order per table.

    A transaction may begin before the block or end after it. Its changes have its commit LSN all the same, since BEGIN
    contains it, but only the transactions in `commits` are complete.
    """

    changes: tuple[TableBlock, ...]
    commits: Commits
    messages: tuple[LogicalMessage, ...]

    def split(self, end_lsn: Lsn) -> tuple[DecodedBlock, DecodedBlock]:
        """The part with `commit_lsn < end_lsn`, and the rest (R2). A non-transactional message is compared by its
        own LSN."""
        halves = [change.split(end_lsn) for change in self.changes]
        cut = int(np.searchsorted(self.commits.commit_lsn, int(end_lsn)))
        below: list[LogicalMessage] = []
        above: list[LogicalMessage] = []
        for message in self.messages:
            lsn = message.lsn if message.commit_lsn is None else message.commit_lsn
            (below if lsn < end_lsn else above).append(message)
        return (
            DecodedBlock(tuple(b for b, _ in halves if b), self.commits.slice(0, cut), tuple(below)),
            DecodedBlock(tuple(a for _, a in halves if a), self.commits.slice(cut, len(self.commits)), tuple(above)),
        )
