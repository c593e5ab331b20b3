"""Reads a text column of a Parquet file page by page, and keeps only rows that may have one of the sought keys.

Texts of one length, such as uuids, have equal distances in a page. So NumPy compares eight bytes of each as one number,
and no Arrow value is made for the others. Spark and pyarrow write the pages of unique texts in this form:

    column chunk    page | page | …
    page            header (Thrift) | levels and texts, compressed
    levels          size, 4 bytes | one run: no text is NULL        only in a column that may be NULL
    texts           length, 4 bytes | bytes of UTF-8 | length | bytes | …       (encoding PLAIN)

Raises UnsupportedParquet for any other page, which Arrow reads (parquet-format: "Data Pages", "Encodings").
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark.target.delta.compact_thrift import (
    I32,
    STRUCT,
    Struct,
    ThriftReader,
    UnsupportedParquet,
    unsigned,
    value_of,
)

Bytes = NDArray[np.uint8]

_CODECS: Final = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}

# Fields of `parquet.thrift`, by their numbers, and the values that they have to have.
_KIND, _UNCOMPRESSED, _COMPRESSED, _DATA = 1, 2, 3, 5  # of PageHeader
_VALUES, _ENCODING, _LEVELS = 1, 2, 3  # of DataPageHeader
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3

_READ_BYTES: Final = 8 * 2**20  # at once, of a column chunk
_HEADER_BYTES: Final = 64 * 2**10  # at most; it may have bounds of the page's texts
_PAGE_BYTES: Final = 64 * 2**20  # at most, decoded

# How many bytes of a text are compared as one number.
_WINDOW: Final = 8
_SAMPLE: Final = 1_000  # of the texts sought, to choose the window
# Bits of a hash of the window; a place of the table for each, some 64 for each text sought.
_LEAST_BITS, _MOST_BITS = 16, 24
_PLACES_OF_A_TEXT: Final = 64
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio: its product's high bits spread well


class TextFilter:
    """Selects the rows of a page that may have one of the sought texts, which all have one length.

    It hashes eight bytes of each text and looks the hash up in a table of the sought texts' hashes.
    """

    def __init__(self, texts: Bytes) -> None:
        """`texts` has the bytes of each sought text, one row per text."""
        self.length = texts.shape[1]
        sample = texts[:_SAMPLE]
        windows = [*range(0, self.length - _WINDOW, _WINDOW), self.length - _WINDOW]
        self._window = max(windows, key=lambda at: len(np.unique(_numbers(sample, at))))
        bits = min(max((_PLACES_OF_A_TEXT * len(texts)).bit_length(), _LEAST_BITS), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(2**bits, np.bool_)
        self._table[self._places(texts)] = True

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> TextFilter | None:
        """The filter for the texts of a column; None if they have several lengths, are short, or are not text."""
        if not pa.types.is_string(column.type) or not len(column) or column.null_count:
            return None
        between = pc.min_max(pc.binary_length(column)).as_py()
        if between["min"] != between["max"] or between["min"] < _WINDOW:
            return None
        content = b"".join(_content(chunk) for chunk in column.chunks if len(chunk))
        return cls(np.frombuffer(content, np.uint8).reshape(len(column), between["min"]))

    def candidates(self, texts: Bytes) -> NDArray[np.int64]:
        """The numbers of rows that may have one of the sought texts. Every row that has one is among them."""
        if texts.shape[1] != self.length:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._table.take(self._places(texts), mode="clip"))

    def _places(self, texts: Bytes) -> NDArray[np.int64]:
        numbers = _numbers(texts, self._window)
        numbers *= _FACTOR
        numbers >>= self._shift
        return numbers.view(np.int64)


def _numbers(texts: Bytes, window: int) -> NDArray[np.uint64]:
    """Eight bytes of each text, from `window` on, as one number, in a new array."""
    return texts[:, window : window + _WINDOW].view("<u8")[:, 0].copy()


def _content(texts: pa.StringArray) -> memoryview:
    """The bytes of all texts, none of which is NULL."""
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(content)[ends[0] : ends[-1]] if content is not None else memoryview(b"")


class Candidates:
    """Rows of a file that may have one of the sought texts, collected from several pages to be compared together."""

    def __init__(self, sought: TextFilter) -> None:
        self._sought = sought
        self._rows: list[NDArray[np.int64]] = []
        self._texts: list[Bytes] = []
        self.count = 0

    def add(self, begins: int, texts: Bytes) -> None:
        """Add the candidates of a page whose first row has the number `begins`."""
        within = self._sought.candidates(texts)
        if len(within):
            self._rows.append(within + begins)
            self._texts.append(texts[within])
            self.count += len(within)

    def take(self) -> tuple[NDArray[np.int64], list[pa.ChunkedArray]]:
        """Return the rows' numbers and their texts, as the only column of the key, and start again without any."""
        rows = np.concatenate([np.empty(0, np.int64), *self._rows])
        length = self._sought.length
        offsets = length * np.arange(len(rows) + 1, dtype=np.int32)
        content = b"".join(texts.tobytes() for texts in self._texts)
        self._rows, self._texts, self.count = [], [], 0
        texts = pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(content))
        return rows, [pa.chunked_array([texts])]


def pages_of_texts(source: io.BufferedIOBase, parquet: pq.ParquetFile, group: int, name: str) -> Iterator[Bytes]:
    """The texts of a column in a row group, page by page: one row of bytes per text, all of one length. The array
    is valid until the next page is requested. Raises UnsupportedParquet at the first page of another form."""
    column = _place(parquet, name)
    chunk = parquet.metadata.row_group(group).column(column)
    if chunk.num_values != parquet.metadata.row_group(group).num_rows or chunk.has_dictionary_page:
        raise UnsupportedParquet
    if chunk.compression not in _CODECS:
        raise UnsupportedParquet
    may_be_null = parquet.schema.column(column).max_definition_level == 1
    codec = _CODECS[chunk.compression]
    pages = _Pages(source, chunk.data_page_offset, chunk.total_compressed_size)
    left = chunk.num_values
    while left > 0:
        header, content = pages.next_page()
        described = _of(header, _DATA, STRUCT)
        count = _of(described, _VALUES)
        is_plain = (_of(header, _KIND), _of(described, _ENCODING)) == (_DATA_PAGE, _PLAIN)
        if not is_plain or not 0 < count <= left:
            raise UnsupportedParquet
        decoded = _decoded(content, _of(header, _UNCOMPRESSED), codec)
        if may_be_null:
            decoded = _without_levels(decoded, count, _of(described, _LEVELS))
        yield _texts(decoded, count)
        left -= count


def _place(parquet: pq.ParquetFile, name: str) -> int:
    """The number of the file's column with this name, if it is a column of texts and no part of another one."""
    for number in range(parquet.metadata.num_columns):
        column = parquet.schema.column(number)
        is_text = column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "STRING"
        if column.path == column.name == name and is_text and not column.max_repetition_level:
            return number
    raise UnsupportedParquet


def _of(fields: Struct, number: int, kind: int = I32) -> Any:
    """The value of a field. Raises UnsupportedParquet if the field is missing or has another type."""
    if fields.get(number, (None,))[0] != kind:
        raise UnsupportedParquet
    return value_of(fields, number)


def _decoded(content: memoryview, size: int, codec: str | None) -> memoryview:
    if codec is None:
        return content
    if not 0 < size <= _PAGE_BYTES:
        raise UnsupportedParquet
    try:
        return memoryview(pa.decompress(content, size, codec))
    except (pa.ArrowException, OSError):
        raise UnsupportedParquet from None


def _without_levels(decoded: memoryview, count: int, encoding: int) -> memoryview:
    """The page without its definition levels, if these are a single run of `count` ones ("Run Length Encoding /
    Bit-Packing Hybrid")."""
    run = unsigned(count << 1) + b"\1"
    behind = 4 + len(run)
    if encoding != _RLE or bytes(decoded[:behind]) != struct.pack("<I", len(run)) + run:
        raise UnsupportedParquet
    return decoded[behind:]


def _texts(decoded: memoryview, count: int) -> Bytes:
    """The texts of a decoded page. Raises UnsupportedParquet if they have several lengths."""
    distance, rest = divmod(len(decoded), count)
    if rest or distance <= 4:
        raise UnsupportedParquet
    rows = np.frombuffer(decoded, np.uint8).reshape(count, distance)
    lengths = rows[:, :4].view("<u4")[:, 0].copy()
    if (lengths != distance - 4).any():
        raise UnsupportedParquet
    return rows[:, 4:]


class _Pages:
    """The pages of a column chunk, given by its position in the file and its size. One buffer is reused for all
    reads, since allocating memory costs as much as copying into it."""

    def __init__(self, source: io.BufferedIOBase, begins: int, size: int) -> None:
        self._source = source
        self._at = begins
        self._left = size
        self._buffer = memoryview(bytearray(min(_READ_BYTES, size)))
        self._begins = self._ends = 0  # of what was read and not taken

    def next_page(self) -> tuple[Struct, memoryview]:
        """The next page's header and content, which is valid until the next call. Raises UnsupportedParquet."""
        self._read(_HEADER_BYTES)
        reader = ThriftReader(bytes(self._buffer[self._begins : self._ends][:_HEADER_BYTES]))
        header = reader.struct()
        self._begins += reader.at
        size = _of(header, _COMPRESSED)
        if not 0 <= size <= _PAGE_BYTES:
            raise UnsupportedParquet
        self._read(size)
        begins, self._begins = self._begins, self._begins + size
        if self._begins > self._ends:
            raise UnsupportedParquet
        return header, self._buffer[begins : self._begins]

    def _read(self, size: int) -> None:
        """Have at least `size` unread bytes in the buffer, if the chunk has as many left."""
        there = self._buffer[self._begins : self._ends]
        if len(there) >= size or not self._left:
            return
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._buffer[: len(there)] = there
        room = self._buffer[len(there) :][: self._left]
        self._source.seek(self._at)
        read = self._source.readinto(room)
        self._begins, self._ends = 0, len(there) + read
        self._at += read
        self._left -= read
