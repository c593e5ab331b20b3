"""Decodes messages of a binary COPY to the typed Arrow rows of a chunk, by column.

Every column is selected as the text of its output function. So a value's bytes are the same as in the stream, and
`conversion` converts both. Grammar (PostgreSQL documentation, "COPY", Binary Format); integers are big-endian:

    copy     = signature (11 bytes), int32 flags, int32 n, n bytes    at the beginning of the first message
               { row }                                                one message each
               int16 -1                                               the last message
    row      = int16 number of columns, per column int32 length (-1: NULL), bytes

A block of messages is joined into one buffer and decoded column by column for all rows at once, as `decoder` does with
tuples. Bytes that do not follow the grammar raise MalformedMessage. A value never raises (R8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.errors import MalformedMessage
from tidemark.formats.columns import chunk_schema
from tidemark.pgoutput.conversion import NULL, PADDING, TEXT, Conversion, Values, require_salt, words
from tidemark.schema.table import TableSchema

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 8
_TRAILER: Final = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class RowBlock:
    """The decoded rows of some messages. `rows` follows `chunk_schema`.

    - `converted` maps a column to the number of values whose text is kept in `_text` (R8).
    - `key_unfit` names the key columns that have a value that their target type cannot hold, `key_null` the columns
      among them that have NULL.
    - `last_key` is the last row's key as PostgreSQL's texts; None without rows, without a key, or if `key_unfit` is not
      empty.
    """

    rows: pa.RecordBatch
    converted: dict[str, int]
    key_unfit: tuple[str, ...]
    key_null: tuple[str, ...]
    last_key: tuple[str, ...] | None


class CopyDecoder:
    """Decodes the messages of one COPY whose columns are the columns of `schema`, in this order."""

    def __init__(self, schema: TableSchema, salt: bytes | None = None) -> None:
        require_salt(schema, salt)
        self._schema = schema
        self._salt = salt
        self._arrow = chunk_schema(schema)
        self._key = [[c.name for c in schema.columns].index(name) for name in schema.key]
        self._began = False
        self._ended = False

    def decode(self, messages: Sequence[bytes]) -> RowBlock:
        """The rows of the next messages, in their order. Raises MalformedMessage."""
        rows = list(messages)
        if not self._began and rows:
            rows[0] = _without_header(rows[0])
            self._began = True
        if self._ended and rows:
            raise MalformedMessage(detail="rows of a COPY stand behind its end")
        if rows and rows[-1] == _TRAILER:
            self._ended = True
            rows.pop()
        return self._rows(rows)

    def finish(self) -> None:
        """Raises MalformedMessage unless the COPY's trailer was decoded."""
        if not self._ended:
            raise MalformedMessage(detail="a COPY lacks its end")

    def _rows(self, messages: list[bytes]) -> RowBlock:
        count = len(messages)
        lengths = np.fromiter(map(len, messages), np.int64, count)
        data = np.frombuffer(b"".join(chain(messages, (PADDING,))), np.uint8)
        ends = np.cumsum(lengths)
        at = ends - lengths
        if (lengths < 2).any():
            raise MalformedMessage(detail="a row of a COPY has no column count")
        counts = data[at].astype(np.int64) << 8 | data[at + 1]
        columns = self._schema.columns
        if (counts != len(columns)).any():
            raise MalformedMessage(detail=f"a row of a COPY has not the {len(columns)} columns selected")
        at = at + 2
        four_bytes = words(data, "<i4")
        conversion = Conversion(data, self._salt, count)
        everything = np.arange(count)
        arrays: list[pa.Array] = []
        last: dict[int, Values] = {}
        for i, column in enumerate(columns):
            if (at + 4 > ends).any():
                raise MalformedMessage(detail="a row of a COPY ends early")
            length = four_bytes[at].byteswap(inplace=True).astype(np.int64)
            is_null = length == -1
            if (length < -1).any():
                raise MalformedMessage(detail="a value of a COPY has a negative length")
            length[is_null] = 0
            start = at + 4
            at = start + length
            if (at > ends).any():
                raise MalformedMessage(detail="a row of a COPY ends early")
            values = Values(np.where(is_null, np.uint8(NULL), np.uint8(TEXT)), start, length)
            if i in self._key:
                last[i] = values
            arrays.append(conversion.column(column, values, everything, column.name, clamp=i not in self._key))
        if (at != ends).any():
            raise MalformedMessage(detail="a row of a COPY has bytes left over")
        unfit = tuple(name for name, i in zip(self._schema.key, self._key, strict=True) if arrays[i].null_count)
        arrays.append(conversion.text())
        return RowBlock(
            rows=pa.RecordBatch.from_arrays(arrays, schema=self._arrow),
            converted=conversion.counts(),
            key_unfit=unfit,
            key_null=tuple(n for n, i in zip(self._schema.key, self._key, strict=True) if (last[i].kind == NULL).any()),
            last_key=None if unfit or not count or not self._key else tuple(_last(data, last[i]) for i in self._key),
        )


def _last(data: np.ndarray[tuple[int], np.dtype[np.uint8]], values: Values) -> str:
    start = int(values.start[-1])
    # A key that is not UTF-8 is unfit, and the caller does not decode its last key.
    return data[start : start + int(values.length[-1])].tobytes().decode()


def _without_header(message: bytes) -> bytes:
    if not message.startswith(_SIGNATURE) or len(message) < _HEADER_BYTES:
        raise MalformedMessage(detail="a COPY does not begin with its signature")
    flags = int.from_bytes(message[len(_SIGNATURE) : len(_SIGNATURE) + 4], "big")
    begin = _HEADER_BYTES + int.from_bytes(message[len(_SIGNATURE) + 4 : _HEADER_BYTES], "big")
    if flags & 0xFFFF0000 or begin > len(message):
        raise MalformedMessage(detail="a COPY begins with a header that is not understood")
    return message[begin:]
