"""Reads a table without a key as one chunk, under one snapshot.

Without a key, a row cannot be distinguished from its copies, so the chunk is the whole table as of one snapshot.
Several sessions read a large table at the same time: ranges of pages (ctid ranges) of the table, or of each leaf of a
partitioned one, under the snapshot that the chunk's own transaction exports. Every session takes the table's lock
before anything else. A session that queues behind an ALTER, which itself waits for this chunk, would wait forever. The
lock timeout ends it and the chunk with SourceLocked; the ALTER continues, and the retry reads the table again. An error
of one session, or of the task, ends all sessions at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.backfill import read_sessions
from tidemark.backfill.chunk_copy import ChunkRows
from tidemark.formats.manifest import StagedFile
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.source.rows import key_ranges
from tidemark.source.rows.key_ranges import TableToRead
from tidemark.staging.chunk_writer import ChunkWriter
from tidemark.storage.store import Store

# What one session reads at a time, in pages; a smaller table is read by one.
STRETCH_PAGES: Final = 4096

# How long a cancelled session may take to end before it is cancelled again.
CANCEL_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages `[first, end)` of a table or leaf; `end` is None for the last."""

    table: TableName
    first: int
    end: int | None


def read(
    conn: psycopg.Connection[Any],
    to_read: TableToRead,
    rows: ChunkRows,
    *,
    run: Run,
    store: Store,
    readers: int,
) -> None:
    """Write all of the table's rows; what was counted, and the files, are in `rows` then. `conn` is in the chunk's
    transaction, the table locked; further ones connect to the run's source."""
    stretches = list(_stretches(conn, to_read, STRETCH_PAGES))
    if readers < 2 or len(stretches) < 2:
        rows.copy(key_ranges.all_rows_query(to_read))
        rows.finish(ended=True)
        return
    row = conn.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    queue: SimpleQueue[PageRange] = SimpleQueue()
    for stretch in stretches:
        queue.put(stretch)
    at_work: list[psycopg.Connection[Any]] = []

    def work(number: int) -> ChunkRows:
        writer = ChunkWriter(store, rows.writer.folder, rows.schema, first=number, step=readers)
        try:
            with read_sessions.connect(run.source, run.config) as own, own.transaction():
                at_work.append(own)
                for setting in read_sessions.CHUNK_SETTINGS:
                    own.execute(setting)
                own.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(to_read.name))
                read_sessions.import_snapshot(own, row[0])
                own_rows = ChunkRows(own, rows.schema, rows.salt, writer)
                while (stretch := _next(queue)) is not None:
                    own_rows.copy(key_ranges.stretch_query(to_read, stretch.table, stretch.first, stretch.end))
                return own_rows
        except BaseException:
            _empty(queue)  # the others need not go on
            writer.abandon()
            raise

    files: list[StagedFile] = []
    with ThreadPoolExecutor(readers, thread_name_prefix="chunk") as pool:
        futures: list[Future[ChunkRows]] = []
        try:
            for number in range(1, readers + 1):
                futures.append(pool.submit(work, number))
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            for future in futures:
                read = future.result()
                files += read.writer.finish()
                rows.count += read.count
                rows.add_converted(read.converted)
        except BaseException:
            _empty(queue)
            _end(futures, at_work)
            raise
    rows.finish(ended=True, others=files)


def _next(queue: SimpleQueue[PageRange]) -> PageRange | None:
    try:
        return queue.get_nowait()
    except Empty:
        return None


def _empty(queue: SimpleQueue[PageRange]) -> None:
    while _next(queue) is not None:
        pass


def _end(futures: list[Future[ChunkRows]], at_work: list[psycopg.Connection[Any]]) -> None:
    """Cancel what the sessions do until each has ended: one that was between two statements begins the next. The files
    of those that were done are abandoned too."""
    while wait(futures, timeout=0).not_done:
        for conn in list(at_work):
            with suppress(psycopg.Error):
                conn.cancel_safe()
        wait(futures, timeout=CANCEL_AGAIN_S)
    for future in futures:
        if future.exception() is None:
            future.result().writer.abandon()


def _stretches(conn: psycopg.Connection[Any], to_read: TableToRead, pages: int) -> Iterator[PageRange]:
    """The table's pages, or those of each of its leaves, as they are now: rows that come to further pages are in the
    last stretch's open end, and no snapshot taken before sees them."""
    for schema, name, count in conn.execute(
        """
        SELECT n.nspname, c.relname, pg_relation_size(c.oid) / current_setting('block_size')::int
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = to_regclass(%(name)s) AND c.relkind = 'r'
            OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%(name)s)) WHERE isleaf)
         ORDER BY 1, 2
        """,
        {"name": to_read.name.as_string(None)},
    ).fetchall():
        table = TableName(schema, name)
        for first in range(0, max(int(count), 1), pages):
            yield PageRange(table, first, first + pages if first + pages < count else None)
