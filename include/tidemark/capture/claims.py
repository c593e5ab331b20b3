"""The drain's side of a backfill: high watermarks in the stream -> the chunks that a batch claims (R7).

    before the heartbeat   unclaimed chunks of the ledger ──► another high watermark each, since any later message is
                           valid evidence: a reader that died before its own costs nothing
    while a batch is open  messages ──► `Watermarks`
    when it ends           watermarks + ledger ──► claims, sweeps, rejections ──► manifest and registration

A chunk whose table has become another one since is rejected and read again: what its fingerprint had in common with
today's must be all but added columns. The run's own fingerprints may be older than the chunk; so where they differ,
the catalogue is asked once more, and that answer is younger. A high watermark without an unclaimed chunk is a dead
attempt's, or one of two for the same chunk; it is counted and has no effect. Low ones only date the window.

A watermark is any login's word (`source.wal_messages`). What makes it evidence is the chunk's row: the message must
have been committed at or above the LSN at which the chunk's snapshot had been taken. Everything the snapshot saw then
lies below it, whoever wrote it, so a forged one that passes says what is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import psycopg

from tidemark.formats.manifest import Claim, Purpose, Sweep, TableChanges
from tidemark.formats.watermark import Watermark
from tidemark.ledger import backfills, chunks
from tidemark.ledger.chunks import Awaited, ChunkId, ReadChunk, Rejection
from tidemark.ledger.connection import Ledger
from tidemark.lsn import Lsn
from tidemark.pgoutput.decoder import DecodedBlock
from tidemark.pgoutput.messages import LogicalMessage
from tidemark.schema.evolution import Verdict, compare_fingerprints
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source import wal_messages
from tidemark.source.wal_messages import PREFIX

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Seen:
    """A high watermark and the commit of its transaction; `committed_at` is ISO."""

    watermark: Watermark
    commit_lsn: Lsn
    committed_at: str


@dataclass(frozen=True, slots=True)
class Claims:
    """What the batch takes, by table id. `ignored` counts high watermarks without an unclaimed chunk."""

    claims: dict[str, tuple[Claim, ...]] = field(default_factory=dict)
    sweeps: dict[str, tuple[Sweep, ...]] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    ignored: int = 0

    def versions(self, table: str) -> set[int]:
        """The schema versions that the claimed chunks of the table follow."""
        return {file.schema_version for claim in self.claims.get(table, ()) for file in claim.files}

    def added_to(self, changed: tuple[TableChanges, ...]) -> tuple[TableChanges, ...]:
        """The batch's tables by id: those with changes, and those that only chunks are claimed for."""
        tables = {table.table: table for table in changed}
        for table, claims in self.claims.items():
            known = tables.get(table, TableChanges(table, (), {}))
            tables[table] = replace(known, claims=claims, sweeps=self.sweeps.get(table, ()))
        return tuple(tables[table] for table in sorted(tables))


def emit_again(source: psycopg.Connection[Any], ledger: Ledger, generation: int) -> int:
    """Write a high watermark for every unclaimed chunk that the ledger has, in one transaction; how many."""
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
    """The high watermarks of the batch that is open, one per chunk. A transaction may begin in one block and end in
    another, so the time of its commit is filled in when that is seen.

    `awaited` reads from the ledger which chunks have no batch yet. A chunk's row precedes its watermark, so what is not
    among them now is nobody's: kept is no more than the ledger has chunks, however many messages somebody writes.
    """

    def __init__(self, pipeline: str, generation: int, awaited: Callable[[], Mapping[ChunkId, Awaited]]) -> None:
        self._pipeline = pipeline
        self._generation = generation
        self._awaited = awaited
        self._high: dict[ChunkId, tuple[Watermark, Lsn]] = {}
        self._committed_at: dict[Lsn, str] = {}

    def _of(self, message: LogicalMessage) -> Watermark | None:
        """The pipeline's watermark that the message is, low or high, None if it is something else."""
        if not message.transactional or message.prefix != PREFIX:
            return None
        found = Watermark.parse(message.content)
        if found is None or (found.pipeline, found.generation) != (self._pipeline, self._generation):
            return None
        return found

    def add(self, block: DecodedBlock) -> int:
        """Note what a block that belongs to the open batch holds; how many of its messages are watermarks that mean
        something. A second one for a chunk does not, nor does one without a chunk, nor one from before its read."""
        meant = 0
        awaited: Mapping[ChunkId, Awaited] | None = None
        for message in block.messages:
            mark = self._of(message)
            if mark is None or message.commit_lsn is None:
                continue
            if mark.side == "low":
                meant += 1
                continue
            identity = (mark.backfill, mark.chunk, mark.attempt)
            if identity in self._high:
                continue
            awaited = self._awaited() if awaited is None else awaited
            chunk = awaited.get(identity)
            if chunk is not None and chunk.table == mark.table and chunk.read_lsn <= message.commit_lsn:
                self._high[identity] = (mark, message.commit_lsn)
                meant += 1
        for _, commit_lsn in self._high.values():
            at = int(np.searchsorted(block.commits.commit_lsn, int(commit_lsn)))
            if at < len(block.commits) and block.commits.commit_lsn[at] == int(commit_lsn):
                moment = _UNIX_EPOCH + timedelta(microseconds=int(block.commits.committed_at[at]))
                self._committed_at[commit_lsn] = moment.isoformat()
        return meant

    def take(self) -> list[Seen]:
        """Those of the batch that ends now, in order."""
        seen = [Seen(watermark, lsn, self._committed_at[lsn]) for watermark, lsn in self._high.values()]
        self._high, self._committed_at = {}, {}
        return seen


def claims_of(
    ledger: Ledger,
    seen: Iterable[Seen],
    fingerprints: Mapping[str, Fingerprint],
    look_again: Callable[[str], Fingerprint | None],
) -> Claims:
    """Which chunks the batch claims; `look_again` reads one table's fingerprint now. Nothing is written: registering
    verifies it (`ledger.batches`)."""
    by_id = {(one.watermark.backfill, one.watermark.chunk, one.watermark.attempt): one for one in seen}
    if not by_id:
        return Claims()
    ignored = 0
    waiting = {(c.backfill, c.chunk, c.attempt): c for c in chunks.unclaimed(ledger)}
    purposes = {b.backfill: b.purpose for b in backfills.all_open(ledger)}
    claims: dict[str, list[Claim]] = {}
    rejected: list[Rejection] = []
    for identity, one in by_id.items():
        chunk = waiting.get(identity)
        if chunk is None or chunk.backfill not in purposes:
            ignored += 1
            continue
        difference = _difference(chunk, fingerprints, look_again)
        if difference:
            rejected.append(Rejection(*identity, difference))
        else:
            claims.setdefault(chunk.table, []).append(_claim(chunk, one, purposes[chunk.backfill]))
    return Claims(
        claims={table: tuple(found) for table, found in claims.items()},
        sweeps=_sweeps(ledger, claims),
        rejected=tuple(rejected),
        ignored=ignored,
    )


def _difference(
    chunk: ReadChunk, fingerprints: Mapping[str, Fingerprint], look_again: Callable[[str], Fingerprint | None]
) -> str:
    """Why the chunk's rows are no base for the table as it is now; "" where they are."""
    read = Fingerprint.from_json(chunk.fingerprint)
    if not _unfollowed(read, fingerprints.get(chunk.table)):
        return ""
    return _unfollowed(read, look_again(chunk.table))


def _unfollowed(read: Fingerprint, now: Fingerprint | None) -> str:
    if now is None:
        return "the table is not captured any more"
    return "; ".join(d.reason for d in compare_fingerprints(read, now) if d.verdict is not Verdict.FOLLOWED)


def _claim(chunk: ReadChunk, seen: Seen, purpose: Purpose) -> Claim:
    return Claim(
        backfill=chunk.backfill,
        chunk=chunk.chunk,
        attempt=chunk.attempt,
        watermark_lsn=seen.commit_lsn,
        watermark_at=seen.committed_at,
        low_lsn=chunk.low_lsn,
        snapshot=chunk.snapshot,
        consistent_point=chunk.consistent_point,
        rows=chunk.rows,
        files=chunk.files,
        purpose=purpose,
    )


def _sweeps(ledger: Ledger, claims: Mapping[str, list[Claim]]) -> dict[str, tuple[Sweep, ...]]:
    """The backfills of which these are the last claims. Whether all is read is asked first: then nothing is recorded
    any more, and the chunks that are asked for next are all of them. A chunk rejected now is one that is left."""
    found: dict[str, tuple[Sweep, ...]] = {}
    for table, taken in claims.items():
        ours = {(claim.backfill, claim.chunk, claim.attempt) for claim in taken}
        for backfill in sorted({claim.backfill for claim in taken}):
            known = backfills.one(ledger, backfill)
            if known is None or not known.sweeps or not chunks.all_read(ledger, backfill):
                continue
            valid, left = chunks.left_of(ledger, backfill)
            if left <= ours:
                found[table] = (
                    *found.get(table, ()),
                    Sweep(backfill, known.snapshot, valid, known.purpose, known.parts),
                )
    return found
