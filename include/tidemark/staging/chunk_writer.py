"""Writes the rows of one chunk to Parquet files, in memory bounded for any chunk.

Row groups and files are those of `batch_writer`. Files are fsynced before they are closed, then their folder (R3); a
chunk without rows has none.

A first load copies these files into `current` with their row groups. Readers pass over a row group by its bounds of the
key's whole numbers and texts.
"""

from __future__ import annotations

import pyarrow as pa

from tidemark.formats import layout
from tidemark.formats.columns import chunk_schema
from tidemark.formats.manifest import StagedFile
from tidemark.schema.table import TableSchema
from tidemark.staging.batch_writer import BatchWriter
from tidemark.storage.store import Store


class ChunkWriter:
    """Writes the files of one chunk, numbered from 1."""

    def __init__(self, store: Store, folder: str, schema: TableSchema) -> None:
        self.folder = folder
        self.rows = 0
        self._schema = schema
        types = chunk_schema(schema)
        bounded = [name for name in schema.key if _has_bounds(types.field(name).type)]
        self._writer = BatchWriter(store, folder, path=layout.chunk_file, bounded=bounded)

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows that follow `chunk_schema`."""
        self._writer.write(self._schema, rows)
        self.rows += rows.num_rows

    def finish(self) -> tuple[StagedFile, ...]:
        """Write the buffered rows and make the files durable, but not their folders."""
        return self._writer.finish().get(self._schema.table, ())

    def abandon(self) -> None:
        """Close the files; nobody will record them."""
        self._writer.abandon()


def _has_bounds(of: pa.DataType) -> bool:
    """Whether all readers order the type's values alike. Of floating-point numbers Arrow's bounds omit NaN."""
    return bool(pa.types.is_integer(of) or pa.types.is_string(of))
