"""Marks a partitioned table if a TRUNCATE that is not in the stream may have emptied some of its leaves, or all.

    new storage of all leaves, by one transaction ──► held until the run's heartbeat is in
                        TRUNCATE of the root by it in the stream, now or before ──► nothing is to be done
                        none ──► the leaves were named one by one, which is never in the stream: the table is marked

The catalogue shows TRUNCATE of the root and of all leaves by name alike, and only the first is published. Changes
before the reading of the catalogue are staged once the run's heartbeat is. Until then the ledger keeps the fingerprint
from before, so a run that ends earlier leaves the decision to the next one. Below a savepoint the catalogue has the
subtransaction's id, and the stream has the transaction's. So a TRUNCATE of the root there is not recognised, and the
table is marked.

    TRUNCATE of the root, INSERT, in one transaction ──► the table is marked

Leaves with new storage keep it if the same transaction truncates them by their names behind the INSERT. Then neither
the stream nor the catalogue shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.capture.definitions.marks import needs_backfill
from tidemark.formats.manifest import StagedFile, TableMark
from tidemark.names import TableName
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.schema.evolution import PARTITIONS_EMPTIED, emptied_by
from tidemark.schema.fingerprint import Fingerprint

_XID32: Final = 0xFFFFFFFF

REFILLED: Final = "it was truncated and filled in one transaction, where a TRUNCATE of a partition is not seen"


class Truncates:
    """The truncates of one drain. `earlier` returns the staged files of a table, of registered batches, that hold a
    truncate. `read` reads the rows of one."""

    def __init__(
        self,
        now: Mapping[str, Fingerprint],
        before: Mapping[str, Fingerprint],
        earlier: Callable[[str], Iterable[StagedFile]],
        read: Callable[[StagedFile], pa.Table],
    ) -> None:
        emptied = {
            table: emptied_by(before[table], fingerprint) for table, fingerprint in now.items() if table in before
        }
        self._unproven = {table: xid for table, xid in emptied.items() if xid is not None}
        self._earlier = earlier
        self._read = read
        self._partitioned = {table for table, fingerprint in now.items() if fingerprint.partitions}
        self._last: dict[str, int] = {}  # by table: of a TRUNCATE that is its newest change, the transaction
        self._refilled: dict[str, TableMark] = {}

    @property
    def held(self) -> frozenset[str]:
        """The tables whose fingerprints wait for the heartbeat."""
        return frozenset(self._unproven)

    def note(self, block: DecodedBlock) -> None:
        """Collect the truncates in a block of the stream."""
        for change in block.changes:
            table = str(change.schema.table)
            if change.counts.get("truncate"):
                self._prove(table, change.rows)
            if table in self._partitioned and (change.counts.get("truncate") or table in self._last):
                self._mark_if_refilled(change.schema.table, change.rows)

    def _prove(self, table: str, rows: pa.RecordBatch | pa.Table) -> None:
        xid = self._unproven.get(table)
        truncates = rows.filter(pc.equal(rows.column("_op"), "truncate")) if xid is not None else None
        if truncates is not None and xid in {one & _XID32 for one in truncates.column("_xid").to_pylist()}:
            del self._unproven[table]

    def _mark_if_refilled(self, table: TableName, rows: pa.RecordBatch | pa.Table) -> None:
        """Mark the table if a change follows a TRUNCATE directly in the same transaction, also across blocks."""
        is_truncate = np.asarray(pc.equal(rows.column("_op"), "truncate"))
        xids = np.asarray(rows.column("_xid"))
        truncated_by = np.where(is_truncate, xids, -1)
        in_front = np.concatenate(([self._last.pop(str(table), -1)], truncated_by[:-1]))
        if (~is_truncate & (in_front == xids)).any():
            self._refilled[str(table)] = needs_backfill(table, REFILLED)
        if is_truncate[-1]:
            self._last[str(table)] = int(xids[-1])

    def take_refilled(self) -> list[TableMark]:
        """The marks for the batch that ends now; they are returned once."""
        marks, self._refilled = list(self._refilled.values()), {}
        return marks

    def marks(self) -> list[TableMark]:
        """The marks of tables without a TRUNCATE of the root in the stream, once every change before this run's reading
        is staged."""
        for table in list(self._unproven):
            for file in self._earlier(table):
                self._prove(table, self._read(file))
        return [needs_backfill(table, PARTITIONS_EMPTIED) for table in self._unproven]
