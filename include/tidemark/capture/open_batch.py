"""Writes decoded blocks to the files of the batch that is being staged, counts them, and decides where it ends (R2).

    open ──add──► open ──finish──► the durable files as `WrittenBatch`     (abandon: the written files are garbage, R4)

`end_of_batch` is the rule for where a batch ends: at the first commit at which a bound is passed, or the heartbeat is
in. Rows and the heartbeat are counted per commit; bytes and time per block. So by bytes or time a batch ends at the
first commit of the block after the one that passed the bound, or at the last commit of the one that did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.config import Bounds
from tidemark.formats import layout
from tidemark.formats.manifest import StagedFile, TableChanges
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.pgoutput.messages import widen_xids
from tidemark.schema.table import TableSchema
from tidemark.staging.batch_writer import BatchWriter
from tidemark.staging.transactions_file import TransactionIndex
from tidemark.storage.store import Store

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Tally:
    counts: dict[str, int] = field(default_factory=dict)
    unchanged: int = 0
    moved: int = 0
    converted: dict[str, int] = field(default_factory=dict)
    key_unfit: set[str] = field(default_factory=set)
    max_xid: int = 0
    first_committed_at: datetime | None = None
    last_committed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The contents of the batch's folder. `key_unfit` maps a table to its key columns with values that do not fit."""

    end_lsn: Lsn
    tables: tuple[TableChanges, ...]
    schemas: tuple[TableSchema, ...]
    transactions: StagedFile | None
    transaction_count: int
    last_committed_at: str
    skipped_messages: int
    key_unfit: dict[TableName, tuple[str, ...]]


class OpenBatch:
    """The batch that begins at `start_lsn`. `opened_at` is the clock's time of its first block."""

    def __init__(self, store: Store, folder: str, start_lsn: Lsn, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.start_lsn = start_lsn
        self.rows = 0
        self.size = 0
        self.opened_at: float | None = None
        self._clock = clock
        self._writer = BatchWriter(store, folder)
        self._transactions = TransactionIndex(store, layout.transactions_file(folder))
        self._tallies: dict[TableName, _Tally] = {}
        self._schemas: dict[tuple[TableName, int], TableSchema] = {}
        self._skipped = 0
        self._end_lsn: Lsn | None = None
        self._last_committed_at = 0

    def add(self, block: DecodedBlock, size: int, next_xid: int) -> None:
        """Stage a block whose commits all belong to this batch. `size` is the bytes of its messages in the stream."""
        if self.opened_at is None:
            self.opened_at = self._clock()
        self.size += size
        touched: list[tuple[str, NDArray[np.int64]]] = []
        for change in block.changes:
            name = change.schema.table
            self._writer.write(change.schema, change.rows)
            self._schemas.setdefault((name, change.schema.version), change.schema)
            tally = self._tallies.setdefault(name, _Tally())
            _add_up(tally.counts, change.counts)
            _add_up(tally.converted, change.converted)
            tally.unchanged += change.unchanged
            tally.moved += change.moved
            tally.key_unfit.update(change.key_unfit)
            _extend(tally, change.rows.column("_committed_at"))
            tally.max_xid = max(tally.max_xid, int(change.rows.column("_xid").to_numpy().max(initial=0)))
            touched.append((str(name), change.rows.column("_commit_lsn").to_numpy()))
            self.rows += change.rows.num_rows
        commits = block.commits
        self._transactions.add(commits.commit_lsn, widen_xids(commits.xid32, next_xid), commits.committed_at, touched)
        if len(commits):
            self._end_lsn = Lsn(int(commits.end_lsn[-1]))
            self._last_committed_at = int(commits.committed_at[-1])

    @property
    def end_lsn(self) -> Lsn:
        """The end LSN of the batch's last commit. Raises ValueError if it has none."""
        if self._end_lsn is None:
            raise ValueError("a batch ends at a commit, and this one holds none")
        return self._end_lsn

    def add_shape(self, schema: TableSchema) -> None:
        """Add a table's definition after its changes, or without changes."""
        self._writer.write_shape(schema)
        self._schemas[schema.table, schema.version] = schema
        self._tallies.setdefault(schema.table, _Tally())

    def count_skipped(self, messages: int) -> None:
        """Count logical messages that are not the pipeline's."""
        self._skipped += messages

    def finish(self) -> WrittenBatch:
        """Make the files durable. The batch must have a commit."""
        end_lsn = self.end_lsn
        files = self._writer.finish()
        transactions = self._transactions.finish()
        return WrittenBatch(
            end_lsn=end_lsn,
            tables=tuple(
                TableChanges(
                    table=str(name),
                    files=files[name],
                    counts=tally.counts,
                    unchanged=tally.unchanged,
                    moved=tally.moved,
                    converted=tally.converted,
                    max_xid=tally.max_xid,
                    first_committed_at=_text(tally.first_committed_at),
                    last_committed_at=_text(tally.last_committed_at),
                )
                for name, tally in sorted(self._tallies.items())
            ),
            schemas=tuple(self._schemas[at] for at in sorted(self._schemas)),
            transactions=transactions,
            transaction_count=self._transactions.count,
            last_committed_at=(_UNIX_EPOCH + timedelta(microseconds=self._last_committed_at)).isoformat(),
            skipped_messages=self._skipped,
            key_unfit={n: tuple(sorted(t.key_unfit)) for n, t in sorted(self._tallies.items()) if t.key_unfit},
        )

    def abandon(self) -> None:
        """Close the files without finishing them; the batch is never registered."""
        self._writer.abandon()
        self._transactions.abandon()


@dataclass(frozen=True, slots=True)
class HeldChanges:
    """The contents of the open batch so far: rows, bytes as received, and the seconds since its first block."""

    rows: int = 0
    size: int = 0
    open_s: float = 0.0


def end_of_batch(
    block: DecodedBlock, size: int, held: HeldChanges, *, bounds: Bounds, heartbeat_commit: Lsn | None
) -> Lsn | None:
    """The end LSN of the commit in `block` at which the batch ends; None if it goes on. Pure."""
    commits = block.commits
    if not len(commits):
        return None
    ends = []
    if heartbeat_commit is not None:
        at = int(np.searchsorted(commits.commit_lsn, int(heartbeat_commit)))
        if at < len(commits) and commits.commit_lsn[at] == int(heartbeat_commit):
            ends.append(at)
    rows = np.full(len(commits), held.rows, np.int64)
    for change in block.changes:
        rows += np.searchsorted(change.rows.column("_commit_lsn").to_numpy(), commits.commit_lsn, side="right")
    by_rows = int(np.searchsorted(rows, bounds.batch_rows))
    if by_rows < len(commits):
        ends.append(by_rows)
    if held.size >= bounds.batch_bytes:
        ends.append(0)
    elif held.size + size >= bounds.batch_bytes or held.open_s >= bounds.batch_s:
        ends.append(len(commits) - 1)
    return Lsn(int(commits.end_lsn[min(ends)])) if ends else None


def _extend(tally: _Tally, committed_at: pa.Array) -> None:
    """Extend the tally's range of commit times by these."""
    times = pc.min_max(committed_at).as_py()
    if times["min"] is not None:
        tally.first_committed_at = min(filter(None, (tally.first_committed_at, times["min"])))
        tally.last_committed_at = max(filter(None, (tally.last_committed_at, times["max"])))


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _add_up(total: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count
