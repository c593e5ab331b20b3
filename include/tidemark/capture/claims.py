"""Decides which read chunks a batch claims, rejects or sweeps, by the high watermarks in the stream (R7).

    before the heartbeat   unclaimed chunks of the ledger ──► another high watermark each: any later message is valid
                           evidence, so a reader that died before its own costs nothing
    while a batch is open  messages ──► `Watermarks`
    when it ends           watermarks + ledger ──► claims, sweeps, rejections ──► manifest and registration

A chunk is rejected and read again if its table has changed since, except for added columns. The run's fingerprints may
be older than the chunk. If they differ from the chunk's, the catalogue is read once more, and that reading decides. A
high watermark without an unclaimed chunk belongs to a dead attempt, or is the second one of a chunk. It is counted, and
has no effect. A low watermark only dates the window.

Any login can write a watermark (`source.wal.wal_messages`). The chunk's row makes it evidence: the message must have
been committed at or above the LSN at which the chunk's snapshot was taken. Everything that the snapshot includes lies
below the message, whoever wrote it. So a forged watermark that passes is true evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import psycopg
from msgspec.structs import replace

from tidemark.formats.manifest import Claim, Sweep, TableChanges
from tidemark.formats.watermark import Watermark
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.reading.chunks import ChunkId, ReadChunk
from tidemark.lsn import Lsn
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.pgoutput.messages import LogicalMessage
from tidemark.schema.evolution import Verdict, compare_fingerprints
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source.wal import wal_messages
from tidemark.source.wal.wal_messages import PREFIX

# The commit of a high watermark's transaction: its LSN, and its time in ISO 8601.
Commit = tuple[Lsn, str]

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Claims:
    """The chunks that the batch claims, by table id. `rejected` has the chunks that are read again, with the
    reasons. `ignored` counts high watermarks without an unclaimed chunk."""

    claims: dict[str, tuple[Claim, ...]] = field(default_factory=dict)
    sweeps: dict[str, tuple[Sweep, ...]] = field(default_factory=dict)
    rejected: dict[ChunkId, str] = field(default_factory=dict)
    ignored: int = 0

    def versions(self, table: str) -> set[int]:
        """The schema versions that the claimed chunks of the table follow."""
        return {file.schema_version for claim in self.claims.get(table, ()) for file in claim.files}

    def added_to(self, changed: tuple[TableChanges, ...]) -> tuple[TableChanges, ...]:
        """The batch's tables by id: those with changes, and those with claimed chunks only."""
        tables = {table.table: table for table in changed}
        for table, claims in self.claims.items():
            changes = tables.get(table, TableChanges(table, (), {}))
            tables[table] = replace(changes, claims=claims, sweeps=self.sweeps.get(table, ()))
        return tuple(tables[table] for table in sorted(tables))


def emit_again(source: psycopg.Connection[Any], ledger: Ledger, generation: int) -> int:
    """Write a high watermark for every unclaimed chunk of the ledger, in one transaction. Returns their number."""
    waiting = chunks.unclaimed_ids(ledger)
    wal_messages.emit_all(
        source,
        [
            Watermark("high", ledger.pipeline, generation, backfill, table, chunk, attempt)
            for (backfill, chunk, attempt), table in waiting.items()
        ],
    )
    return len(waiting)


class Watermarks:
    """The high watermarks of the open batch, one per chunk.

    A transaction may begin in one block and end in another, so the time of its commit is filled in later. Once per
    block, the watermarks are looked up in the ledger: only those of unclaimed chunks are kept. A chunk's row precedes
    its watermark, so a watermark without a row belongs to no chunk. So memory never has more of them than the ledger
    has chunks, however many messages a login writes.
    """

    def __init__(self, ledger: Ledger, generation: int) -> None:
        self._ledger = ledger
        self._generation = generation
        self._high: dict[ChunkId, Lsn] = {}
        self._committed_at: dict[Lsn, str] = {}

    def _of(self, message: LogicalMessage) -> Watermark | None:
        """The low or high watermark of this pipeline in the message, None if the message is something else."""
        if not message.transactional or message.prefix != PREFIX:
            return None
        mark = Watermark.parse(message.content)
        if mark is None or (mark.pipeline, mark.generation) != (self._ledger.pipeline, self._generation):
            return None
        return mark

    def add(self, block: DecodedBlock) -> int:
        """Keep the watermarks of a block of the open batch. Returns the number of its messages that are valid
        watermarks. A second watermark of a chunk does not count, nor one without a chunk, nor one from before the
        chunk's read."""
        ours = 0
        high: list[tuple[Watermark, Lsn]] = []
        for message in block.messages:
            mark = self._of(message)
            if mark is None or message.commit_lsn is None:
                continue
            if mark.side == "low":
                ours += 1
            elif (mark.backfill, mark.chunk, mark.attempt) not in self._high:
                high.append((mark, message.commit_lsn))
        for chunk, commit_lsn in chunks.evidence_among(self._ledger, high) if high else ():
            if chunk not in self._high:
                self._high[chunk] = commit_lsn
                ours += 1
        for commit_lsn in self._high.values():
            at = int(np.searchsorted(block.commits.commit_lsn, int(commit_lsn)))
            if at < len(block.commits) and block.commits.commit_lsn[at] == int(commit_lsn):
                moment = _UNIX_EPOCH + timedelta(microseconds=int(block.commits.committed_at[at]))
                self._committed_at[commit_lsn] = moment.isoformat()
        return ours

    def take(self) -> dict[ChunkId, Commit]:
        """Remove and return the watermarks of the batch that ends now, in order: chunk -> commit."""
        commits = {chunk: (lsn, self._committed_at[lsn]) for chunk, lsn in self._high.items()}
        self._high, self._committed_at = {}, {}
        return commits


def claims_of(
    ledger: Ledger,
    high: Mapping[ChunkId, Commit],
    fingerprints: Mapping[str, Fingerprint],
    read_fingerprint: Callable[[str], Fingerprint | None],
) -> Claims:
    """The chunks that the batch claims, among those whose `high` watermark it has. `read_fingerprint` reads a
    table's present fingerprint. Nothing is written: registering the batch verifies the claims
    (`ledger.staged.batches`)."""
    if not high:
        return Claims()
    ignored = 0
    waiting = {c.id: c for c in chunks.unclaimed(ledger)}
    opened = {b.backfill: b for b in backfills.all_open(ledger)}
    claims: dict[str, list[Claim]] = {}
    rejected: dict[ChunkId, str] = {}
    for identity, commit in high.items():
        chunk = waiting.get(identity)
        if chunk is None or chunk.backfill not in opened:
            ignored += 1
            continue
        difference = _difference(chunk, fingerprints, read_fingerprint)
        if difference:
            rejected[identity] = difference
        else:
            claims.setdefault(chunk.table, []).append(_claim(chunk, commit, opened[chunk.backfill]))
    return Claims(
        claims={table: tuple(of_table) for table, of_table in claims.items()},
        sweeps=_sweeps(ledger, claims),
        rejected=rejected,
        ignored=ignored,
    )


def _difference(
    chunk: ReadChunk, fingerprints: Mapping[str, Fingerprint], read_fingerprint: Callable[[str], Fingerprint | None]
) -> str:
    """The reason why the chunk's rows no longer fit the table; "" if they do."""
    read = Fingerprint.from_json(chunk.fingerprint)
    if not _unfollowed(read, fingerprints.get(chunk.table)):
        return ""
    return _unfollowed(read, read_fingerprint(chunk.table))


def _unfollowed(when_read: Fingerprint, now: Fingerprint | None) -> str:
    if now is None:
        return "the table is not captured any more"
    differences = compare_fingerprints(when_read, now)
    return "; ".join(d.reason for d in differences if d.verdict not in (Verdict.FOLLOWED, Verdict.FILLED))


def _claim(chunk: ReadChunk, commit: Commit, backfill: Backfill) -> Claim:
    commit_lsn, committed_at = commit
    return Claim(
        backfill=chunk.backfill,
        chunk=chunk.chunk,
        attempt=chunk.attempt,
        watermark_lsn=commit_lsn,
        watermark_at=committed_at,
        low_lsn=chunk.low_lsn,
        snapshot=chunk.snapshot,
        consistent_point=chunk.consistent_point,
        rows=chunk.rows,
        files=chunk.files,
        purpose=backfill.purpose,
        columns=backfill.columns,
        converted=chunk.converted,
    )


def _sweeps(ledger: Ledger, claims: Mapping[str, list[Claim]]) -> dict[str, tuple[Sweep, ...]]:
    """The backfills whose last chunks these claims are, by table. Completeness is checked first: after that no
    chunk is recorded any more, so the chunks that are listed next are all. A chunk that is rejected now counts as
    missing."""
    sweeps: dict[str, tuple[Sweep, ...]] = {}
    for table, of_table in claims.items():
        ours = {(claim.backfill, claim.chunk, claim.attempt) for claim in of_table}
        for name in sorted({claim.backfill for claim in of_table}):
            backfill = backfills.one(ledger, name)
            if backfill is None or not backfill.sweeps or not chunks.all_read(ledger, name):
                continue
            valid, left = chunks.read_and_unclaimed(ledger, name)
            if left <= ours:
                keys = chunks.keys_of(ledger, name) if backfill.mode == "keys" else None
                sweep = Sweep(name, backfill.snapshot, valid, backfill.purpose, backfill.parts, keys)
                sweeps[table] = (*sweeps.get(table, ()), sweep)
    return sweeps
