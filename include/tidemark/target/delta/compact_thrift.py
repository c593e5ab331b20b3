"""Reads and writes structs in Thrift's compact protocol, the format of Parquet's footers and page headers.

The protocol stores the type of every field ("Thrift Compact protocol encoding"). So a struct can be read without a
definition of its fields, and unchanged fields are written back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

# Types of the protocol.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGERS: Final = (I16, I32, I64)

# Footers nest less than ten structs and lists.
MOST_LEVELS: Final = 32
# A 64-bit number takes so many bytes at most.
_NUMBER_BYTES: Final = 10

# A struct: field number -> (type, value). The value of a list is (type of the elements, elements).
Struct = dict[int, tuple[int, Any]]


class UnsupportedParquet(Exception):
    """A part of a Parquet file has a feature that this package does not support."""


def value_of(fields: Struct, number: int) -> Any:
    """The value of a field. Raises UnsupportedParquet if the field is missing."""
    if number not in fields:
        raise UnsupportedParquet
    return fields[number][1]


class ThriftReader:
    """Reads consecutive structs; `at` is the position of the next one. Raises UnsupportedParquet for damaged ones."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._levels = 0
        self.at = 0

    def struct(self) -> Struct:
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise UnsupportedParquet
        fields: Struct = {}
        number = 0
        while kind := self._byte():
            if kind >> 4:
                number += kind >> 4
            else:
                number = self._integer()
            fields[number] = (kind & 15, self._of(kind & 15))
        self._levels -= 1
        return fields

    def _of(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return None
        if kind in INTEGERS:
            return self._integer()
        if kind == BYTE:
            return self._take(1)
        if kind == DOUBLE:
            return self._take(8)
        if kind == BINARY:
            return self._take(self._unsigned())
        if kind in (LIST, SET):
            return self._list()
        if kind == STRUCT:
            return self.struct()
        raise UnsupportedParquet

    def _list(self) -> tuple[int, list[Any]]:
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise UnsupportedParquet
        head = self._byte()
        kind, size = head & 15, head >> 4
        if size == 15:
            size = self._unsigned()
        of_bytes = kind in (TRUE, FALSE)
        elements = [self._take(1) if of_bytes else self._of(kind) for _ in range(size)]
        self._levels -= 1
        return kind, elements

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        taken = self._content[self.at : self.at + size]
        if len(taken) != size:
            raise UnsupportedParquet
        self.at += size
        return taken

    def _unsigned(self) -> int:
        number = 0
        for shift in range(0, 7 * _NUMBER_BYTES, 7):
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise UnsupportedParquet

    def _integer(self) -> int:
        zigzag = self._unsigned()
        return (zigzag >> 1) ^ -(zigzag & 1)


def written_struct(fields: Struct) -> bytes:
    return b"".join(_struct(fields))


def _struct(fields: Struct) -> Iterator[bytes]:
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - before
        yield bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _integer(number)
        yield from _one(kind, value)
        before = number
    yield b"\0"


def _one(kind: int, value: Any) -> Iterator[bytes]:
    if kind in INTEGERS:
        yield _integer(value)
    elif kind == BINARY:
        yield unsigned(len(value)) + value
    elif kind in (LIST, SET):
        of, elements = value
        size = len(elements)
        yield bytes([size << 4 | of]) if size < 15 else bytes([0xF0 | of]) + unsigned(size)
        for element in elements:
            if of in (TRUE, FALSE):
                yield element
            else:
                yield from _one(of, element)
    elif kind == STRUCT:
        yield from _struct(value)
    elif kind in (BYTE, DOUBLE):
        yield value


def unsigned(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _integer(number: int) -> bytes:
    return unsigned(number << 1 if number >= 0 else (-number << 1) - 1)
