"""Reads the free ranges of a run's backfills, and records chunks between watermarks: one reader's work (R7).

    free range ──lease──► low watermark ─► read (`chunk_reading`) ─► files durable ─► chunk row ─► high watermark ─┐
        ▲                      ▲                                                                                   │
        └── none left: end     └────────────────────── until the range has no more rows ───────────────────────────┘

All transactions visible to a chunk's snapshot are durable at the source before the chunk is recorded. The chunk is
recorded with its timeline and LSN: its snapshot is valid in every history that contains this point, also after a
failover (R7).

Recording is a compare-and-set on the range's cursor. So of two readers of one range only one records a chunk, and the
other deletes its files. A reader that dies loses at most one chunk, because the range continues at its cursor. If it
dies before the high watermark, the next drain writes one, since any later message is valid evidence. An error of one
table ends only this table's backfill (R6).
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from msgspec import structs

from tidemark.backfill import read_sessions
from tidemark.backfill.chunk_reading import ChunkReader, TableUnreadable
from tidemark.backfill.chunk_size import GROWTH, next_chunk_rows
from tidemark.backfill.read_sessions import ImportedSnapshot, SnapshotUnfit
from tidemark.capture import lake_folder
from tidemark.errors import (
    JoinHorizonAhead,
    KeyValueMissing,
    KeyValueUnfit,
    LeaseTaken,
    ReadFailed,
    ReadInterrupted,
    ReadRefused,
    RowFilterInvalid,
    SchemaNotFollowed,
    SettingsChanged,
    SourceLocked,
    TidemarkError,
    TimelineNotFollowed,
)
from tidemark.failpoints import reach
from tidemark.formats.watermark import Watermark
from tidemark.ledger import leases, migrations, pipeline_files
from tidemark.ledger.captured import merge_states
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.reading import backfill_progress, backfills, chunks
from tidemark.ledger.reading.backfills import Backfill, Key, Range
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.staged import generations
from tidemark.postgres import postgres_session
from tidemark.run import Run
from tidemark.source.wal import wal_messages
from tidemark.source.wal.slot import read_server
from tidemark.storage.store import Store
from tidemark.wording import counted, duration

log = logging.getLogger(__name__)

# The least interval between two log lines of progress, because each reads all chunks of the backfill.
PROGRESS_S: Final = 15


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The numbers of chunks and rows that one reader recorded, and of ranges that it finished."""

    chunks: int = 0
    rows: int = 0
    ranges: int = 0

    def __add__(self, other: ReadResult) -> ReadResult:
        return ReadResult(self.chunks + other.chunks, self.rows + other.rows, self.ranges + other.ranges)


def read_chunks(run: Run, *, imported: ImportedSnapshot | None = None) -> ReadResult:
    """Read the run's free ranges, one after another, until none is left.

    Any number of readers may run at once. With `imported`, a snapshot that another session exports, only backfills of
    mode `exported_snapshot` are read, under this snapshot as long as it exists. An error that concerns one table is
    raised at the end, after the other tables are read (R6).
    """
    with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
        migrations.require(book.connection)
        reader = _RangeReader(run, book, imported)
        while reader.next_range():
            pass
        if reader.failed:
            raise next(iter(reader.failed.values()))
        return reader.result


class _RangeReader:
    """Leases ranges and reads them chunk by chunk. Keeps the chunk size per backfill, from range to range."""

    def __init__(self, run: Run, ledger: Ledger, imported: ImportedSnapshot | None) -> None:
        self.result = ReadResult()
        self.failed: dict[str, TidemarkError] = {}  # by backfill
        self._imported = imported
        self._without_snapshot: set[str] = set()
        self._run = run
        self._config = run.config
        self._ledger = ledger
        self._store = Store(run.config.lake, run.config.lake_access)
        lake_folder.require(run.config, self._store, generations.required(ledger))
        self._sizes: dict[str, int] = {}
        self._progress_at = -math.inf

    def next_range(self) -> bool:
        """Read the next free range to its end, or up to an error. False if no range is free."""
        for key_range in chunks.free_ranges(self._ledger, self._run.run_id, self._run.holder):
            if key_range.backfill in self.failed:
                continue
            with ExitStack() as stack:
                try:
                    lease = stack.enter_context(
                        leases.hold(self._run.ledger, self._config.pipeline, key_range.lease, self._run.holder)
                    )
                except LeaseTaken:
                    continue
                # Another reader may have continued or finished the range before this one got the lease.
                backfill = backfills.one(self._ledger, key_range.backfill)
                ranges = chunks.ranges_of(self._ledger, key_range.backfill)
                now = next((r for r in ranges if r.range == key_range.range), None)
                if backfill is None or now is None or now.done or backfill.state != "open":
                    continue
                if self._imported is not None and backfill.mode != "exported_snapshot":
                    continue
                self._range(backfill, now, lease)
                return True
        return False

    def _range(self, backfill: Backfill, key_range: Range, lease: Lease) -> None:
        with read_sessions.connect(self._run.source, self._config) as conn, postgres_session.outages():
            server = read_server(conn)  # raises for a standby, before anything is written
            if server.timeline != backfill.timeline:
                raise TimelineNotFollowed(
                    what=f"No chunk of {backfill.table} was read",
                    timeline=server.timeline,
                    followed=backfill.timeline,
                )
            reader = ChunkReader(
                self._run,
                conn=conn,
                ledger=self._ledger,
                store=self._store,
                imported=None if backfill.backfill in self._without_snapshot else self._imported,
            )
            try:
                self._walk(conn, reader, backfill, key_range, lease)
            except SnapshotUnfit as unfit:
                log.warning("%s: the backfill of %s goes on in chunk mode", unfit, backfill.table)
                self._without_snapshot.add(backfill.backfill)
            except TableUnreadable as lost:
                self._close(backfill, f"{backfill.table} cannot be read: {lost}")
            except (ReadFailed, ReadRefused, RowFilterInvalid, SettingsChanged) as wrong:
                self._close(backfill, str(wrong), unreadable=True)
            except (ReadInterrupted, SourceLocked, JoinHorizonAhead) as refused:
                log.error("%s", refused)
                self.failed[backfill.backfill] = refused
            except (KeyValueMissing, KeyValueUnfit, SchemaNotFollowed) as wrong:
                merge_states.park(self._ledger, backfill.table, wrong.record())
                self._close(backfill, f"{backfill.table} was parked: {wrong}")

    def _walk(
        self,
        conn: psycopg.Connection[Any],
        reader: ChunkReader,
        backfill: Backfill,
        key_range: Range,
        lease: Lease,
    ) -> None:
        while not key_range.done:
            limit = self._sizes.get(backfill.backfill, backfill.chunk_rows)
            if not reader.has_read_by_pages:
                # The size may be from another range, which was read by pages.
                limit = min(limit, GROWTH * backfill.chunk_rows)
            mark = Watermark(
                "low",
                self._config.pipeline,
                backfill.generation,
                backfill.backfill,
                backfill.table,
                key_range.chunk,
                lease.attempt,
            )
            low_lsn = wal_messages.emit(conn, mark)
            reach("read.after_low")
            chunk, ended = reader.read(backfill, key_range, lease.attempt, low_lsn=low_lsn, limit=limit)
            reach("read.after_files")
            reach("read.before_chunk")
            if not self._record(lease, chunk, key_range.cursor, done=ended):
                log.info(
                    "Chunk %s of %s was read by another reader, or is no longer needed", key_range.chunk, backfill.table
                )
                self._store.delete(chunk.folder)
                return
            reach("read.after_chunk")
            wal_messages.emit(conn, structs.replace(mark, side="high"))
            reach("read.after_high")
            self.result += ReadResult(1, chunk.rows, int(ended))
            self._note(backfill, chunk, limit, by_pages=reader.has_read_by_pages)
            key_range = replace(
                key_range, cursor=chunk.upper or key_range.cursor, next_chunk=key_range.next_chunk + 1, done=ended
            )

    def _record(self, lease: Lease, chunk: ReadChunk, cursor_before: Key | None, *, done: bool) -> bool:
        """Record the chunk. False if it is no longer needed. Raises PipelineFileDiffers if the chunk was read with
        another pipeline file than the present one."""
        with self._ledger.transaction():
            pipeline_files.require(self._ledger, self._config.digest)
            return chunks.record(self._ledger, lease, chunk, cursor_before=cursor_before, done=done)

    def _note(self, backfill: Backfill, chunk: ReadChunk, limit: int, *, by_pages: bool) -> None:
        """Compute the size of the next chunk from this chunk's rate, and log the backfill's progress."""
        if chunk.rows == limit:
            self._sizes[backfill.backfill] = next_chunk_rows(
                limit,
                chunk.seconds,
                wanted_s=self._config.bounds.chunk_s,
                first_rows=backfill.chunk_rows,
                by_pages=by_pages,
            )
        size = f"{counted(chunk.rows, 'row')} in {duration(chunk.seconds)}"
        log.info("Chunk %s of %s: %s", chunk.chunk, backfill.table, size)
        if time.monotonic() - self._progress_at < PROGRESS_S:
            return
        self._progress_at = time.monotonic()
        for progress in backfill_progress.progress(self._ledger, self._run.run_id):
            if progress.backfill == backfill.backfill:
                log.info("%s", progress)

    def _close(self, backfill: Backfill, reason: str, *, unreadable: bool = False) -> None:
        log.error("The backfill %s ends: %s", backfill.backfill, reason)
        backfills.close(self._ledger, backfill.backfill, reason, unreadable=unreadable)
