"""Writes typed record batches to the Parquet files of one staged batch, in memory bounded for any transaction (R2).

Rows are buffered per table and written as a row group when the table's share reaches `row_group_bytes`, or, where all
tables together reach `buffer_bytes`, for the table that holds most. A file ends at `file_bytes`, at a new schema
version of its table, and when more than `open_files` are open, for the one unused longest. Size and checksum are
taken of the bytes as they are written; a file is fsynced before it is closed (R3), and its path is never used again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.formats import layout
from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.names import CHANGE_COLUMNS, ORDER_COLUMNS, TableName
from tidemark.schema.table import TableSchema
from tidemark.storage.store import Store

ROW_GROUP_BYTES: Final = 32 * 2**20
BUFFER_BYTES: Final = 96 * 2**20
OPEN_FILES: Final = 64
READ_BYTES: Final = 4 * 2**20


class _Checksummed(io.RawIOBase):
    """A file that counts and hashes its bytes; Parquet writes sequentially."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any, /) -> int:
        self._hash.update(data)
        self._file.write(data)
        written = memoryview(data).nbytes
        self.size += written
        return written

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class ParquetFile:
    """One Parquet file being written below the lake root. The footer gets the bounds of the `bounded` columns, for
    each row group."""

    def __init__(
        self, store: Store, path: str, schema: pa.Schema, schema_version: int = 0, bounded: Sequence[str] = ()
    ) -> None:
        self.path = path
        self.schema = schema
        self.schema_version = schema_version
        self.rows = 0
        self._committed_at: list[datetime | None] = []  # bounds per row group, None for one without or with a NULL
        self._store = store
        self._file = store.open_new(path)
        self._sink = _Checksummed(self._file)
        self._parquet = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_dictionary_columns(schema),
            write_statistics=[*_statistics_columns(schema), *bounded],
            version="2.6",
            data_page_size=2**20,
        )

    @property
    def size(self) -> int:
        return self._sink.size

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Write the batches as one row group."""
        table = pa.Table.from_batches(batches, self.schema)
        self._parquet.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows
        if "_committed_at" in self.schema.names:
            self._committed_at += pc.min_max(table["_committed_at"], skip_nulls=False).as_py().values()

    def finish(self) -> StagedFile:
        """Write the footer and close the file, complete."""
        self._parquet.close()
        self._store.sync(self._file)
        self._file.close()
        times = [time for time in self._committed_at if time is not None]
        is_bounded = bool(times) and len(times) == len(self._committed_at)
        return StagedFile(
            self.path,
            self.rows,
            self._sink.size,
            self._sink.sha256,
            self.schema_version,
            min(times).isoformat() if is_bounded else None,
            max(times).isoformat() if is_bounded else None,
        )

    def abandon(self) -> None:
        """Close the file incomplete. Its bytes are garbage (R4); on an object store it never becomes visible."""
        self._file.close()


@dataclass(slots=True)
class _TableBuffer:
    schema: TableSchema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0
    file: ParquetFile | None = None
    used: int = 0


class BatchWriter:
    """The change files of one staged batch. The rows of each table come in R1 order; tables come in any order. `path`
    names a file by folder, table, schema version and number. Footers get the bounds of the `bounded` columns."""

    def __init__(
        self,
        store: Store,
        folder: str,
        *,
        path: Callable[[str, TableName, int, int], str] = layout.changes_file,
        bounded: Sequence[str] = (),
        row_group_bytes: int = ROW_GROUP_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        file_bytes: int | None = None,
        open_files: int = OPEN_FILES,
    ) -> None:
        self.folder = folder
        self._store = store
        self._path = path
        self._bounded = bounded
        self._row_group_bytes = row_group_bytes
        self._buffer_bytes = buffer_bytes
        self._file_bytes = file_bytes or store.file_bytes
        self._open_files = open_files
        self._tables: dict[TableName, _TableBuffer] = {}
        self._finished: dict[TableName, list[StagedFile]] = {}
        self._numbers: dict[TableName, int] = {}
        self._uses = 0

    @property
    def buffered_bytes(self) -> int:
        return sum(buffer.size for buffer in self._tables.values())

    def write(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        """Add rows that follow `staged_schema(schema)`."""
        if rows.num_rows == 0:
            return
        name = schema.table
        buffer = self._tables.get(name)
        if buffer is None:
            buffer = self._tables[name] = _TableBuffer(schema)
        elif buffer.schema.version != schema.version:
            self._flush(name, buffer)
            self._end_file(name, buffer)
            buffer.schema = schema
        buffer.batches.append(rows)
        buffer.size += rows.nbytes
        if buffer.size >= self._row_group_bytes:
            self._flush(name, buffer)
        while self.buffered_bytes > self._buffer_bytes:
            largest = max(self._tables, key=lambda n: self._tables[n].size)
            self._flush(largest, self._tables[largest])

    def write_shape(self, schema: TableSchema) -> None:
        """Add a file without rows: from it on the table has this schema."""
        name = schema.table
        buffer = self._tables.setdefault(name, _TableBuffer(schema))
        self._flush(name, buffer)
        self._end_file(name, buffer)
        buffer.schema = schema
        buffer.file = self._new_file(name, schema, staged_schema(schema))
        self._end_file(name, buffer)

    def finish(self) -> dict[TableName, tuple[StagedFile, ...]]:
        """Write the buffered rows, complete all files, and return them, per table in R1 order."""
        for name, buffer in self._tables.items():
            self._flush(name, buffer)
            self._end_file(name, buffer)
        return {name: tuple(files) for name, files in self._finished.items()}

    def abandon(self) -> None:
        """Close all files without making anything durable."""
        for buffer in self._tables.values():
            if buffer.file is not None:
                buffer.file.abandon()
                buffer.file = None

    def _flush(self, name: TableName, buffer: _TableBuffer) -> None:
        if not buffer.batches:
            return
        batches, buffer.batches, buffer.size = buffer.batches, [], 0
        if buffer.file is None:
            buffer.file = self._new_file(name, buffer.schema, batches[0].schema)
        self._uses += 1
        buffer.used = self._uses
        buffer.file.write(batches)
        if buffer.file.size >= self._file_bytes:
            self._end_file(name, buffer)

    def _new_file(self, name: TableName, schema: TableSchema, columns: pa.Schema) -> ParquetFile:
        self._make_room()
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        path = self._path(self.folder, name, schema.version, number)
        return ParquetFile(self._store, path, columns, schema.version, self._bounded)

    def _make_room(self) -> None:
        opened = [(buffer.used, name) for name, buffer in self._tables.items() if buffer.file is not None]
        if len(opened) >= self._open_files:
            _, oldest = min(opened)
            self._end_file(oldest, self._tables[oldest])

    def _end_file(self, name: TableName, buffer: _TableBuffer) -> None:
        if buffer.file is not None:
            self._finished.setdefault(name, []).append(buffer.file.finish())
            buffer.file = None


def read_table(store: Store, file: StagedFile) -> pa.Table:
    """The content of a staged file. Raises FileNotFoundError; ValueError if size or checksum differ."""
    content = store.read(file.path)
    check_content(io.BytesIO(content), file)
    return pq.read_table(pa.BufferReader(content))


def check_content(opened: IO[bytes], file: StagedFile) -> None:
    """Read an opened staged file to its end, in pieces, and go back to its start. Raises ValueError if size or checksum
    differ."""
    checksum = hashlib.sha256()
    while piece := opened.read(READ_BYTES):
        checksum.update(piece)
    if opened.tell() != file.bytes or checksum.hexdigest() != file.sha256:
        raise ValueError(f"{file.path} is not the file that was staged: size or checksum differ")
    opened.seek(0)


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    """The metadata columns with few distinct values. A dictionary for the source's columns costs more than it saves."""
    return [name for name in CHANGE_COLUMNS if name != "_ordinal" and name in schema.names]


def _statistics_columns(schema: pa.Schema) -> list[str]:
    """The columns by which readers prune files. Statistics of large texts would be copied into the footer."""
    return [name for name in (*ORDER_COLUMNS, "commit_lsn") if name in schema.names]
