"""Reads one chunk of a table at the source into typed Parquet files, with its snapshot and fingerprint.

    low watermark ─► BEGIN REPEATABLE READ, READ ONLY ─► LOCK TABLE ─► snapshot ─► fingerprint ─► COPY ─► COMMIT

The lock must come before the snapshot. If the snapshot came first and the lock waited for an ALTER TABLE that rewrites
the table, the chunk would read no row and raise no error. The lock is the one of a SELECT, with a bounded wait, and is
held only for this chunk (R9). The captured columns are read under the same lock and snapshot, so publication, columns
and rows are consistent (R7, R11).

Under an imported snapshot (mode `exported_snapshot`), the lock does not protect against an earlier rewrite. Then
`SnapshotUnfit` is raised. A table without a key is one chunk: a row cannot be distinguished from its copies, so the
chunk has to be the whole table as of one snapshot. A table whose key has no order is one chunk too.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from tidemark.backfill import read_sessions
from tidemark.backfill.chunk_copy import ChunkRows
from tidemark.backfill.read_sessions import ImportedSnapshot
from tidemark.capture.definitions.column_guarding import ChangesWithheld, LedgerGuards
from tidemark.capture.definitions.table_definition import catalogue_shape
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.errors import (
    JoinHorizonAhead,
    ReadFailed,
    ReadInterrupted,
    ReadRefused,
    SchemaNotFollowed,
    SourceInRecovery,
)
from tidemark.formats import layout
from tidemark.formats.snapshot import Snapshot
from tidemark.ledger.captured import schema_versions, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading.backfills import Backfill, Key, Range
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.staged import generations
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.postgres import postgres_session
from tidemark.postgres.postgres_session import one_row
from tidemark.run import Run
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.catalogue.column_names import renamed_since
from tidemark.source.catalogue.table_locks import lock_bounded
from tidemark.source.rows import key_ranges, row_filter, scattered_rows
from tidemark.source.rows.key_ranges import TableToRead
from tidemark.source.wal import wal_messages
from tidemark.source.wal.slot import read_server
from tidemark.staging.chunk_writer import ChunkWriter
from tidemark.storage.store import Store

log = logging.getLogger(__name__)

KEY_REORDERED: Final = "the order of its key is another one since the backfill began"


class TableUnreadable(Exception):
    """The table cannot be read any more, for the given reason. Internal: its backfill is closed with the reason."""


class ChunkReader:
    """Reads the chunks of one range over one session at the source. Keeps the table's relation and schema between
    chunks. `has_read_by_pages` is whether the last chunk was read by pages."""

    def __init__(
        self,
        run: Run,
        *,
        conn: psycopg.Connection[Any],
        ledger: Ledger,
        store: Store,
        imported: ImportedSnapshot | None = None,
    ) -> None:
        self._run = run
        self._config = run.config
        self._conn = conn
        self._ledger = ledger
        self._store = store
        self._imported = imported
        self._schemas: dict[TableName, tuple[CapturedTable, TableSchema]] = {}
        self._relations: dict[TableName, int] = {}
        self.has_read_by_pages = False
        self._prefers_pages: bool | None = None

    def read(
        self, backfill: Backfill, key_range: Range, attempt: str, *, low_lsn: Lsn, limit: int
    ) -> tuple[ReadChunk, bool]:
        """Read up to `limit` rows after the range's cursor into durable files. Returns the chunk, and whether the
        range has no more rows. Chosen keys, a table without a key, and a table whose key has no order are read as a
        whole. `low_lsn` is the chunk's low watermark.

        - TableUnreadable or SnapshotUnfit: the backfill is closed, or continued in chunk mode.
        - ReadRefused, ReadFailed, RowFilterInvalid or SettingsChanged: PostgreSQL cannot read the table.
        - KeyValueUnfit, KeyValueMissing or SchemaNotFollowed: the table must be parked.
        - ReadInterrupted, SourceLocked or JoinHorizonAhead: a later attempt may succeed.
        """
        table = TableName.parse(backfill.table)
        folder = layout.chunk_folder(self._config.pipeline, backfill.backfill, table, key_range.chunk, attempt)
        began = time.monotonic()
        with self._refusals(table):
            rows, snapshot, fingerprint = self._in_one_transaction(backfill, key_range, table, folder, limit)
        if rows.files:
            self._store.sync_folders(folder)
        seconds = time.monotonic() - began
        wal_point = wal_messages.make_durable(self._conn)
        chunk = ReadChunk(
            pipeline=self._config.pipeline,
            backfill=backfill.backfill,
            chunk=key_range.chunk,
            attempt=attempt,
            table=backfill.table,
            generation=backfill.generation,
            range=key_range.range,
            lower=key_range.lower if key_range.cursor is None else key_range.cursor,
            upper=key_range.upper if rows.ended else rows.last_key,
            snapshot=snapshot,
            timeline=wal_point.timeline,
            consistent_point=None if self._imported is None else self._imported.consistent_point,
            fingerprint=fingerprint.to_json(),
            low_lsn=low_lsn,
            read_lsn=wal_point.lsn,
            files=rows.files,
            converted=rows.converted,
            rows=rows.count,
            bytes=sum(file.bytes for file in rows.files),
            seconds=seconds,
        )
        return chunk, rows.ended

    def _in_one_transaction(
        self, backfill: Backfill, key_range: Range, table: TableName, folder: str, limit: int
    ) -> tuple[ChunkRows, str, Fingerprint]:
        """Read and write the rows in one transaction. Returns them with the transaction's snapshot and fingerprint."""
        conn, imported = self._conn, self._imported
        relation, called = self._relation_of(table)
        with lock_bounded(conn, self._config.bounds.lock_timeout_s, str(table)), conn.transaction():
            for setting in read_sessions.CHUNK_SETTINGS:
                conn.execute(setting)
            if imported is not None:
                read_sessions.import_snapshot(conn, imported.identifier)
            snapshot = self._lock_and_snapshot(backfill, table, called)
            if imported is not None and renamed_since(conn, relation):
                # The query uses present names, and the catalogue in the snapshot has the former names.
                raise read_sessions.SnapshotUnfit(
                    f"{called} or a column of it was renamed since the snapshot was exported"
                )
            captured = self._captured(table, called, relation)
            if imported is not None and _was_rewritten(conn, captured):
                raise read_sessions.SnapshotUnfit(f"{table} was rewritten since the snapshot was exported")
            prints = catalog.fingerprint(conn, self._config.publication, [captured])
            condition = None
            if backfill.row_filter is not None:
                assert backfill.opened_at is not None, "the ledger sets it for every backfill"
                condition = row_filter.condition(conn, captured, backfill.row_filter, backfill.opened_at)
            to_read = key_ranges.table_to_read(conn, captured, condition)
            if to_read.key_order != backfill.key_order:
                # The ranges and cursors are positions in the old order. In the new order, unread rows may come before
                # them.
                raise TableUnreadable(KEY_REORDERED)
            schema = self._schema(captured)
            if backfill.columns is not None:
                schema, to_read = _with_columns(schema, to_read, backfill.columns)
            rows = ChunkRows(conn, schema, self._run.salt, ChunkWriter(self._store, folder, schema))
            try:
                with self._filtered(backfill, table):
                    if key_range.keys is not None:
                        rows.copy(key_ranges.keys_query(to_read, key_range.keys))
                        rows.finish()
                    elif to_read.is_walked:
                        rows.finish(self._read_by_index(rows, to_read, key_range, limit))
                    else:
                        rows.copy(key_ranges.all_rows_query(to_read))
                        rows.finish()
            except BaseException:
                rows.writer.abandon()
                raise
        return rows, snapshot, prints[str(table)]

    def _filtered(self, backfill: Backfill, table: TableName) -> AbstractContextManager[None]:
        if backfill.row_filter is None:
            return nullcontext()
        return read_sessions.filtered(self._conn, table, self._config.bounds.filter_s)

    def _relation_of(self, table: TableName) -> tuple[int, TableName]:
        """The OID of the table's relation and its present name, read outside of the chunk's transaction."""
        if table not in self._relations:
            opened = generations.required(self._ledger)
            kept = TableIds(self._config, self._ledger, opened.system_identifier).relation_of(table)
            if kept is None:
                raise TableUnreadable("the capture has not seen it")
            self._relations[table] = kept.oid
        relation = self._relations[table]
        names = catalog.current_names(self._conn, [relation]).names
        if relation not in names:
            raise TableUnreadable("it is not at the source any more")
        return relation, names[relation][0]

    def _lock_and_snapshot(self, backfill: Backfill, table: TableName, called: TableName) -> str:
        """Lock the table and take the transaction's snapshot. No statement before the lock takes one. The horizon of a
        mark that is younger than the backfill does not matter: the backfill does not take that mark away."""
        conn = self._conn
        name = sql.Identifier(called.schema, called.name)
        try:
            conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(name))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as gone:
            raise TableUnreadable("it is not at the source any more") from gone
        in_recovery, snapshot = one_row(conn, "SELECT pg_is_in_recovery(), pg_current_snapshot()::text")
        if in_recovery:
            # A standby's snapshot has no list of transactions in progress, so open ones would count as visible.
            raise SourceInRecovery()
        table_row = tables.one(self._ledger, str(table))
        if table_row is None or not table_row.life.can_be_read or table_row.join_horizon is None:
            raise TableUnreadable("it is not captured any more")
        xmin = Snapshot.parse(snapshot).xmin
        if xmin < table_row.join_horizon and table_row.marks == backfill.marks:
            raise JoinHorizonAhead(table=table, xmin=xmin, horizon=table_row.join_horizon)
        return str(snapshot)

    def _captured(self, table: TableName, called: TableName, relation: int) -> CapturedTable:
        """The table as the pipeline file and the catalogue have it, with its guards. Raises TableUnreadable or
        ReadInterrupted."""
        alone = only_table(self._config, called)
        captured = [] if alone is None else catalog.captured_tables(self._conn, alone)
        if captured and captured[0].relation_oid != relation:
            raise ReadInterrupted(table=table, detail=f"it was called {called}, and another table has that name by now")
        if not captured or not captured[0].published:
            raise TableUnreadable("it is not in the publication, or the pipeline file does not name it any more")
        try:
            guarded = LedgerGuards(self._config, self._ledger, read_server(self._conn)).applied(captured[0])
        except ChangesWithheld as withheld:
            raise TableUnreadable(str(withheld)) from None
        return guarded.kept_as(table)

    def _schema(self, captured: CapturedTable) -> TableSchema:
        """The table's numbered shape, built from the catalogue as the drain builds it from a RELATION message."""
        built_from, schema = self._schemas.get(captured.table, (None, None))
        if schema is not None and built_from == captured:
            return schema
        schema = schema_versions.adopt(self._ledger, shape(self._conn, captured, self._latest))
        self._schemas[captured.table] = (captured, schema)
        return schema

    def _latest(self, table: TableName) -> TableSchema | None:
        versions = tables.versions(self._ledger, str(table))
        return versions[-1] if versions else None

    def _read_by_index(self, rows: ChunkRows, to_read: TableToRead, key_range: Range, limit: int) -> Key | None:
        """Read the rows of the next keys in the order of the key's index, up to `limit`. Returns the last of these
        keys, None if the range has no more."""
        for setting in read_sessions.INDEX_ALONE:
            self._conn.execute(setting)
        position = key_range.lower if key_range.cursor is None else key_range.cursor
        upper = key_range.upper
        self.has_read_by_pages = self._is_by_pages(to_read, position, upper)
        if self.has_read_by_pages:
            end: Key | None = self._conn.execute(scattered_rows.end_query(to_read, position, upper, limit)).fetchone()
            for setting in read_sessions.BY_PAGES:
                self._conn.execute(setting)
            rows.copy(scattered_rows.rows_query(to_read, position, end or upper))
            return end
        for equal in key_ranges.steps_after(to_read, position):
            remaining = limit - rows.count
            rows.copy(key_ranges.chunk_query(to_read, position, upper, equal=equal, limit=remaining))
            if rows.count >= limit:
                return rows.last_key
        return None

    def _is_by_pages(self, to_read: TableToRead, position: Key | None, upper: Key | None) -> bool:
        """Whether the rows are read page by page. PostgreSQL is asked once for a range, since its answer takes 0.1 s
        for hundreds of partitions. A database of SQL_ASCII may have keys that only COPY can read."""
        if not scattered_rows.is_possible(to_read, position, upper):
            return False
        if self._conn.info.parameter_status("server_encoding") == "SQL_ASCII":
            return False
        if self._prefers_pages is None:
            self._prefers_pages = scattered_rows.is_cheaper(self._conn, to_read, position, upper)
            if self._prefers_pages:
                log.info("The rows of %s lie all over the table: chunks are read by pages, and sorted", to_read.table)
        return self._prefers_pages

    @contextmanager
    def _refusals(self, table: TableName) -> Iterator[None]:
        """Convert psycopg's errors to Tidemark's. Texts that could contain a value are not quoted."""
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as refused:
            raise ReadRefused(table=table, detail=refused.diag.message_primary or "a right is missing") from refused
        except psycopg.errors.QueryCanceled as cancelled:
            raise ReadInterrupted(table=table, detail=cancelled.diag.message_primary or "it was cancelled") from None
        except psycopg.Error as failed:
            if not postgres_session.is_of_the_statement(failed):
                raise
            raise ReadFailed(table=table, detail=f"SQLSTATE {failed.sqlstate}") from failed


def _with_columns(
    schema: TableSchema, to_read: TableToRead, columns: Collection[int]
) -> tuple[TableSchema, TableToRead]:
    """The schema and the query's columns without all columns but the key and these. A number without a column is
    ignored. The files lack the other columns."""
    kept = tuple(c for c in schema.columns if c.name in schema.key or c.attnum in columns)
    names = {column.name for column in kept}
    read = tuple((name, type_oid) for name, type_oid in to_read.columns if name in names)
    return msgspec.structs.replace(schema, columns=kept), dataclasses.replace(to_read, columns=read)


def only_table(config: PipelineConfig, table: TableName) -> PipelineConfig | None:
    """The pipeline as if its file named this table only; None if the file does not name it."""
    rule = config.rule(table)
    if rule is None:
        return None
    names = ".".join('"' + name.replace('"', '""') + '"' for name in (table.schema, table.name))
    return dataclasses.replace(config, tables=(dataclasses.replace(rule, pattern=names),))


def shape(conn: psycopg.Connection[Any], captured: CapturedTable, latest: Any) -> TableSchema:
    """The table's captured shape, without a version number. Raises SchemaNotFollowed if the drain would park the
    table for this shape."""
    schema, unfit = catalogue_shape(captured, catalog.read_types(conn), latest(captured.table))
    if unfit:
        raise SchemaNotFollowed(table=captured.table, difference="; ".join(unfit))
    return schema


def _was_rewritten(conn: psycopg.Connection[Any], captured: CapturedTable) -> bool:
    """Whether the table's storage is newer than the transaction's snapshot: to the snapshot, rows in new storage
    are not visible. A SELECT on pg_class reads as of the snapshot, pg_relation_filenode as of now."""
    (rewritten,) = one_row(
        conn,
        """
        SELECT coalesce(bool_or(c.relfilenode IS DISTINCT FROM coalesce(pg_relation_filenode(c.oid), 0)::oid), true)
          FROM pg_class c
         WHERE c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s) WHERE isleaf)
        """,
        (captured.relation_oid, captured.relation_oid),
    )
    return bool(rewritten)
