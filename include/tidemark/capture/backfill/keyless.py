"""A table without key -> the rows of one chunk, read as a whole under one snapshot.

Without a key no row can be told from its copies, so the chunk is the whole table as of one snapshot. Where that is
large it is read by several sessions at once: stretches of pages (ctid ranges) of the table, or of each leaf of a
partitioned one, under the snapshot that the chunk's own transaction exports. Every session takes the table's lock
before anything else, so that none queues behind an ALTER that waits for this very chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.capture.backfill import sessions
from tidemark.capture.backfill.chunk_rows import ChunkRows
from tidemark.config import PipelineConfig
from tidemark.names import TableName
from tidemark.source import keyset
from tidemark.source.keyset import TableToRead
from tidemark.staging.chunk_writer import ChunkWriter
from tidemark.staging.manifest import StagedFile
from tidemark.staging.store import Store

# What one session reads at a time, in pages; a smaller table is read by one.
STRETCH_PAGES: Final = 4096


@dataclass(frozen=True, slots=True)
class Stretch:
    """Pages `[first, end)` of a table or leaf; `end` is None for the last."""

    table: TableName
    first: int
    end: int | None


def read(
    conn: psycopg.Connection[Any],
    wanted: TableToRead,
    rows: ChunkRows,
    *,
    source: str,
    config: PipelineConfig,
    store: Store,
    readers: int,
) -> tuple[StagedFile, ...]:
    """Write all of the table's rows and return the files; what was counted is added to `rows`. `conn` is in the chunk's
    transaction, the table locked; `source` is where further sessions connect to."""
    stretches = list(_stretches(conn, wanted, STRETCH_PAGES))
    if readers < 2 or len(stretches) < 2:
        rows.copy(keyset.whole_query(wanted))
        return rows.writer.finish()
    row = conn.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    queue: SimpleQueue[Stretch] = SimpleQueue()
    for stretch in stretches:
        queue.put(stretch)

    def work(number: int) -> ChunkRows:
        with sessions.connect(source, config) as own, own.transaction():
            for setting in sessions.CHUNK_SETTINGS:
                own.execute(setting)
            own.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(wanted.name))
            sessions.import_snapshot(own, row[0])
            writer = ChunkWriter(store, rows.writer.folder, rows.schema, first=number, step=readers)
            part = ChunkRows(own, rows.schema, rows.salt, writer)
            try:
                while True:
                    try:
                        stretch = queue.get_nowait()
                    except Empty:
                        return part
                    part.copy(keyset.stretch_query(wanted, stretch.table, stretch.first, stretch.end))
            except BaseException:
                while not queue.empty():  # the others need not go on
                    queue.get_nowait()
                writer.abandon()
                raise

    files: list[StagedFile] = []
    with ThreadPoolExecutor(readers, thread_name_prefix="chunk") as pool:
        for part in pool.map(work, range(1, readers + 1)):
            files += part.writer.finish()
            rows.count += part.count
            rows.add_converted(part.converted)
    return tuple(files)


def _stretches(conn: psycopg.Connection[Any], wanted: TableToRead, pages: int) -> Iterator[Stretch]:
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
        {"name": wanted.name.as_string(None)},
    ).fetchall():
        table = TableName(schema, name)
        for first in range(0, max(int(count), 1), pages):
            yield Stretch(table, first, first + pages if first + pages < count else None)
