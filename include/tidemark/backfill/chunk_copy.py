"""Decodes the rows of a COPY block by block into a chunk's files, in bounded memory, and counts them."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from tidemark.backfill import read_sessions
from tidemark.capture.definitions.marks import key_error
from tidemark.errors import SettingsChanged
from tidemark.formats.manifest import StagedFile
from tidemark.ledger.reading.backfills import Key
from tidemark.pgoutput.copy_rows import CopyDecoder
from tidemark.schema.table import TableSchema
from tidemark.source.rows.copying import copy_rows
from tidemark.staging.chunk_writer import ChunkWriter


class ChunkRows:
    """The rows of a chunk that one session writes. `last_key` is the key of the row that was read last, None if the
    table has no key. After `finish`, `files` are the chunk's files, and `last_key` is the key after which the range
    goes on, None if it has no more rows: then it has `ended`."""

    def __init__(
        self, conn: psycopg.Connection[Any], schema: TableSchema, salt: bytes | None, writer: ChunkWriter
    ) -> None:
        self.schema = schema
        self.salt = salt
        self.writer = writer
        self.count = 0
        self.converted: dict[str, int] = {}
        self.last_key: Key | None = None
        self.files: tuple[StagedFile, ...] = ()
        self.ended = False
        self._conn = conn

    def copy(self, query: sql.Composed) -> None:
        """Write the rows of the query.

        Raises KeyValueUnfit or KeyValueMissing, or SettingsChanged unless the session's settings were Tidemark's before
        and after the rows. If an error other than psycopg's interrupts it, the session is closed.
        """
        before = read_sessions.settings(self._conn)
        decoder = CopyDecoder(self.schema, self.salt)
        blocks = copy_rows(self._conn, query)
        try:
            for messages in blocks:
                block = decoder.decode(messages)
                if block.key_unfit:
                    raise key_error(self.schema.table, block.key_unfit, block.key_null)
                self.writer.write(block.rows)
                self.count += block.rows.num_rows
                self.last_key = block.last_key or self.last_key
                for column, count in block.converted.items():
                    self.converted[column] = self.converted.get(column, 0) + count
            decoder.finish()
            differing = read_sessions.differing(before, read_sessions.settings(self._conn))
            if differing:
                raise SettingsChanged(table=self.schema.table, settings=", ".join(differing))
        except psycopg.Error:
            raise
        except BaseException:
            self._conn.close()
            raise

    def finish(self, last_key: Key | None = None) -> None:
        """Finish the files. The range goes on after `last_key`; without one it has no more rows."""
        self.files = self.writer.finish()
        self.last_key = last_key
        self.ended = last_key is None
