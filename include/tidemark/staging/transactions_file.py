"""Writes transactions.parquet of a batch: transaction id, commit LSN, commit time, and the tables it touched.

The merge needs the file to decide about chunks (R7): a snapshot consists of 64-bit transaction ids, changes are ordered
by commit LSN, and this file maps one to the other. A transaction may span many blocks, so its tables are collected by
commit LSN until the commit comes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.formats.manifest import StagedFile
from tidemark.staging.batch_writer import ParquetFile
from tidemark.storage.store import Store

SCHEMA: Final = pa.schema(
    [
        pa.field("xid", pa.int64()),
        pa.field("commit_lsn", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("tables", pa.list_(pa.string())),
    ]
)

ROW_GROUP_ROWS: Final = 128 * 1024


class TransactionIndex:
    """Collects the transactions of one batch from its blocks in stream order. The file is created with the first row
    group. A batch that touched no captured table has no file, unless it filled a
    row group."""

    def __init__(self, store: Store, path: str, *, row_group_rows: int = ROW_GROUP_ROWS) -> None:
        self._store = store
        self._path = path
        self._row_group_rows = row_group_rows
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        # (commit LSN, table number) of transactions whose commit has not come yet.
        self._pending = np.empty((0, 2), np.int64)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._file: ParquetFile | None = None
        self.count = 0
        self.touched = False

    def add(
        self,
        commit_lsn: NDArray[np.int64],
        xid: NDArray[np.int64],
        committed_at: NDArray[np.int64],
        changes: list[tuple[str, NDArray[np.int64]]],
    ) -> None:
        """Add the transactions that ended in a block, in order, and per table the ascending commit LSNs of its rows
        in the block."""
        pieces = [self._pending]
        for table, lsns in changes:
            distinct = lsns[np.flatnonzero(np.diff(lsns, prepend=-1))]
            pieces.append(np.stack((distinct, np.full(len(distinct), self._number(table))), axis=1))
            self.touched = True
        pairs = np.unique(np.concatenate(pieces), axis=0) if len(pieces) > 1 else self._pending
        ended = int(np.searchsorted(pairs[:, 0], commit_lsn[-1], side="right")) if len(commit_lsn) else 0
        ended_pairs, self._pending = pairs[:ended], pairs[ended:]
        if not len(commit_lsn):
            return
        bounds = np.append(np.searchsorted(ended_pairs[:, 0], commit_lsn), len(ended_pairs)).astype(np.int32)
        names = pa.array(self._names, pa.string()).take(pa.array(ended_pairs[:, 1]))
        self._batches.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array(xid),
                    pa.array(commit_lsn),
                    pa.array(committed_at).view(pa.timestamp("us", tz="UTC")),
                    pa.ListArray.from_arrays(pa.array(bounds), names),
                ],
                schema=SCHEMA,
            )
        )
        self.count += len(commit_lsn)
        self._rows += len(commit_lsn)
        if self._rows >= self._row_group_rows:
            self._flush()

    def finish(self) -> StagedFile | None:
        """Complete the file and make it durable; None if the batch touched no captured table."""
        if not self.touched and self._file is None:
            return None
        self._flush()
        return None if self._file is None else self._file.finish()

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()

    def _number(self, table: str) -> int:
        if table not in self._numbers:
            self._numbers[table] = len(self._names)
            self._names.append(table)
        return self._numbers[table]

    def _flush(self) -> None:
        if not self._batches:
            return
        if self._file is None:
            self._file = ParquetFile(self._store, self._path, SCHEMA)
        self._file.write(self._batches)
        self._batches, self._rows = [], 0
