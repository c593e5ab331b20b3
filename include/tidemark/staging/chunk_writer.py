"""Writes the rows of one chunk to Parquet files, in memory bounded for any chunk.

Blocks are gathered into row groups of about ROW_GROUP_BYTES, and a file ends at the store's `file_bytes`. Files are
fsynced before they are closed, then their folder (R3); a chunk without rows has none.

A first load copies these files into `current` with their row groups. Readers pass over a row group by its bounds of the
key's whole numbers and texts.
"""

from __future__ import annotations

import pyarrow as pa

from tidemark.formats import layout
from tidemark.formats.columns import chunk_schema
from tidemark.formats.manifest import StagedFile
from tidemark.schema.table import TableSchema
from tidemark.staging.batch_writer import ROW_GROUP_BYTES, ParquetFile
from tidemark.storage.store import Store


class ChunkWriter:
    """Writes the files of one chunk, numbered from 1."""

    def __init__(
        self,
        store: Store,
        folder: str,
        schema: TableSchema,
    ) -> None:
        self.folder = folder
        self.rows = 0
        self._store = store
        self._schema = schema
        self._arrow = chunk_schema(schema)
        self._bounded = [name for name in schema.key if _has_bounds(self._arrow.field(name).type)]
        self._number = 1
        self._buffered: list[pa.RecordBatch] = []
        self._size = 0
        self._file: ParquetFile | None = None
        self._finished: list[StagedFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows that follow `chunk_schema`."""
        if rows.num_rows == 0:
            return
        self._buffered.append(rows)
        self._size += rows.nbytes
        self.rows += rows.num_rows
        if self._size >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> tuple[StagedFile, ...]:
        """Write the buffered rows and make the files durable, but not their folders."""
        self._flush()
        self._end_file()
        return tuple(self._finished)

    def abandon(self) -> None:
        """Close the files; nobody will record them."""
        self._buffered = []
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def _flush(self) -> None:
        if not self._buffered:
            return
        if self._file is None:
            path = layout.chunk_file(self.folder, self._schema.version, self._number)
            self._number += 1
            self._file = ParquetFile(self._store, path, self._arrow, self._schema.version, self._bounded)
        buffered, self._buffered, self._size = self._buffered, [], 0
        self._file.write(buffered)
        if self._file.size >= self._store.file_bytes:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            self._finished.append(self._file.finish())
            self._file = None


def _has_bounds(of: pa.DataType) -> bool:
    """Whether all readers order the type's values alike. Of floating-point numbers Arrow's bounds omit NaN."""
    return bool(pa.types.is_integer(of) or pa.types.is_string(of))
