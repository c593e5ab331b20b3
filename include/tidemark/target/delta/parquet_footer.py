"""Builds the footer of a Parquet file that joins the pages of several files, adds constant columns and omits others.

No page is decoded: the caller copies the pages, and the new footer locates them.

    a file      PAR1 | pages | footer | length | PAR1          the body is everything before the footer
    the result  body 1 | pages of constants 1 | body 2 | pages of constants 2 | … | footer | length | PAR1

A footer lists the column chunks of each row group in the schema's order, with the byte at which each begins. They may
lie anywhere in the file (parquet-format: "File format", `parquet.thrift`). So a row group can take a column from pages
that were written elsewhere, if both have the same number of rows. The first column stays the first: several readers of
one file assign a row group to a reader by the position of its first column.

The footer is in Thrift's compact protocol, which has the type of every field ("Thrift Compact protocol encoding"). So
it can be read without a definition of the fields. Fields that do not change are written back unchanged.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC: Final = b"PAR1"

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_INTEGERS: Final = (_I16, _I32, _I64)

# Fields of `parquet.thrift`, by their numbers.
_SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS, _ENCRYPTION = 2, 3, 4, 5, 7, 8  # of FileMetaData
_NAME, _CHILDREN = 4, 5  # of SchemaElement
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _SORTING, _GROUP_OFFSET, _GROUP_COMPRESSED, _ORDINAL = range(1, 8)  # of RowGroup
_FILE_PATH, _CHUNK_OFFSET, _METADATA, _OFFSET_INDEX, _COLUMN_INDEX = 1, 2, 3, 4, 6  # of ColumnChunk
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _BLOOM = 3, 6, 7, 9, 10, 11, 14

# A struct: field number -> (type, value). The value of a list is (type of the elements, elements).
Struct = dict[int, tuple[int, Any]]


class NotPlain(Exception):
    """The footer has a feature that this module does not support."""


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's footer, and the number of bytes before it (`body`)."""

    fields: Struct
    body: int

    @property
    def rows(self) -> list[int]:
        """The number of rows of each row group."""
        return [int(_value(group, _GROUP_ROWS)) for group in self._groups]

    @property
    def _groups(self) -> list[Struct]:
        groups: list[Struct] = _value(self.fields, _ROW_GROUPS)[1]
        return groups

    @property
    def shape(self) -> str:
        """A text that two files must have in common to be joined."""
        return repr((self.fields[_SCHEMA], self.fields.get(_COLUMN_ORDERS)))


def read_footer(file: BinaryIO, size: int) -> Footer:
    """Read the footer of a file of `size` bytes. Raises NotPlain if the footer is missing or cannot be rewritten."""
    file.seek(max(0, size - 8))
    end = file.read(8)
    if len(end) != 8 or end[4:] != MAGIC:
        raise NotPlain
    (length,) = struct.unpack("<I", end[:4])
    body = size - 8 - length
    if body < len(MAGIC):
        raise NotPlain
    file.seek(body)
    fields = _ThriftReader(file.read(length)).struct()
    if _ENCRYPTION in fields:
        raise NotPlain
    return Footer(fields, body)


@dataclass(frozen=True, slots=True)
class Constants:
    """A file of constant columns, as body and footer. It has the same row groups as the file that it extends."""

    body: bytes
    footer: Footer


def constants(rows: Sequence[int], values: Mapping[str, pa.Scalar]) -> Constants:
    """Write constant columns, in row groups of these numbers of rows."""
    fields = pa.schema([pa.field(name, value.type) for name, value in values.items()])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, fields, compression="zstd", version="2.6", write_statistics=False) as writer:
        for count in rows:
            columns = [pa.repeat(value, count) for value in values.values()]
            writer.write_table(pa.table(columns, schema=fields), row_group_size=max(1, count))
    content = sink.getvalue()
    footer = read_footer(io.BytesIO(content), len(content))
    return Constants(content[: footer.body], footer)


def joined(parts: Sequence[tuple[Footer, Constants]], excluded: Set[str]) -> bytes:
    """The bytes that follow all bodies in the joined file: footer, length and magic.

    Each body is followed by its constants, in the order of `parts`, which all have the same `shape`. The joined file
    does not have the columns named in `excluded`.
    """
    fields = dict(parts[0][0].fields)
    constant_fields = parts[0][1].footer.fields
    groups: list[Struct] = []
    body_begins = 0
    for footer, constant_file in parts:
        constants_begin = body_begins + footer.body
        for group, constant in zip(footer._groups, constant_file.footer._groups, strict=True):
            groups.append(_group(group, body_begins, constant, constants_begin, excluded, len(groups)))
        body_begins = constants_begin + len(constant_file.body)
    fields[_SCHEMA] = (_LIST, (_STRUCT, _elements(fields, constant_fields, excluded)))
    fields[_ROWS] = (_I64, sum(_value(group, _GROUP_ROWS) for group in groups))
    fields[_ROW_GROUPS] = (_LIST, (_STRUCT, groups))
    fields.pop(_KEY_VALUES, None)  # Arrow's copy of the old schema, which does not fit the new one
    if _COLUMN_ORDERS in fields:
        fields[_COLUMN_ORDERS] = (_LIST, (_STRUCT, _orders(parts[0][0], constant_fields, excluded)))
    written = _encoded(fields)
    return written + struct.pack("<I", len(written)) + MAGIC


# --- the parts of a footer --------------------------------------------------------------------------------------------


def _value(fields: Struct, number: int) -> Any:
    if number not in fields:
        raise NotPlain
    return fields[number][1]


def _subtrees(fields: Struct) -> list[list[Struct]]:
    """The schema's elements, one list per column. A footer has them as a tree, root first, parents before children."""
    elements: list[Struct] = _value(fields, _SCHEMA)[1]
    columns: list[list[Struct]] = []
    at = 1
    for _ in range(_value(elements[0], _CHILDREN)):
        begins, open_elements = at, 1
        while open_elements:
            open_elements += elements[at].get(_CHILDREN, (0, 0))[1] - 1
            at += 1
        columns.append(elements[begins:at])
    if at != len(elements):
        raise NotPlain
    return columns


def _name(element: Struct) -> str:
    return str(bytes(_value(element, _NAME)).decode())


def _elements(fields: Struct, added: Struct, excluded: Set[str]) -> list[Struct]:
    kept = [tree for tree in _subtrees(fields) if _name(tree[0]) not in excluded]
    trees = [*kept, *_subtrees(added)]
    if len({_name(tree[0]) for tree in trees}) != len(trees):
        raise NotPlain
    root = dict(_value(fields, _SCHEMA)[1][0])
    root[_CHILDREN] = (_I32, len(trees))
    return [root, *[element for tree in trees for element in tree]]


def _orders(footer: Footer, added: Struct, excluded: Set[str]) -> list[Struct]:
    """The column order of each leaf, by which readers compare its bounds."""
    leaves = [tree[0] for tree in _subtrees(footer.fields) for element in tree if not _is_group(element)]
    own = _value(footer.fields, _COLUMN_ORDERS)[1]
    kept = [order for leaf, order in zip(leaves, own, strict=True) if _name(leaf) not in excluded]
    return [*kept, *_value(added, _COLUMN_ORDERS)[1]]


def _is_group(element: Struct) -> bool:
    return bool(element.get(_CHILDREN, (0, 0))[1])


def _group(
    group: Struct, begins: int, constant: Struct, constant_begins: int, excluded: Set[str], number: int
) -> Struct:
    if _value(group, _GROUP_ROWS) != _value(constant, _GROUP_ROWS):
        raise NotPlain
    columns = [
        *[_moved(c, begins) for c in _value(group, _COLUMNS)[1] if _column_of(c) not in excluded],
        *[_moved(c, constant_begins) for c in _value(constant, _COLUMNS)[1]],
    ]
    facts = [_value(c, _METADATA) for c in columns]
    first = facts[0]
    at = min(offset for offset in (first.get(_DICTIONARY_PAGE, (0, 0))[1], _value(first, _DATA_PAGE)) if offset)
    return {
        _COLUMNS: (_LIST, (_STRUCT, columns)),
        _GROUP_BYTES: (_I64, sum(_value(f, _UNCOMPRESSED) for f in facts)),
        _GROUP_ROWS: group[_GROUP_ROWS],
        _GROUP_OFFSET: (_I64, at),
        _GROUP_COMPRESSED: (_I64, sum(_value(f, _COMPRESSED) for f in facts)),
        **({_ORDINAL: (_I16, number)} if number < 2**15 else {}),
    }


def _column_of(chunk: Struct) -> str:
    """The name of the top-level column that a column chunk belongs to."""
    return str(bytes(_value(_value(chunk, _METADATA), _PATH)[1][0]).decode())


def _moved(chunk: Struct, by: int) -> Struct:
    """The column chunk, with all offsets moved by so many bytes."""
    if _FILE_PATH in chunk:
        raise NotPlain
    facts = dict(_value(chunk, _METADATA))
    for number in (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _BLOOM):
        _move(facts, number, by)
    moved = {**chunk, _METADATA: (_STRUCT, facts)}
    for number in (_CHUNK_OFFSET, _OFFSET_INDEX, _COLUMN_INDEX):
        _move(moved, number, by)
    return moved


def _move(fields: Struct, number: int, by: int) -> None:
    kind, offset = fields.get(number, (0, 0))
    if offset > 0:  # some writers set 0 for a missing page
        fields[number] = (kind, offset + by)


# --- Thrift's compact protocol ----------------------------------------------------------------------------------------


class _ThriftReader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while kind := self._byte():
            if kind >> 4:
                number += kind >> 4
            else:
                number = self._integer()
            fields[number] = (kind & 15, self._read_value(kind & 15))
        return fields

    def _read_value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return None
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BYTE:
            return self._take(1)
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _BINARY:
            return self._take(self._unsigned())
        if kind in (_LIST, _SET):
            return self._list()
        if kind == _STRUCT:
            return self.struct()
        raise NotPlain

    def _list(self) -> tuple[int, list[Any]]:
        head = self._byte()
        kind, size = head & 15, head >> 4
        if size == 15:
            size = self._unsigned()
        if kind in (_TRUE, _FALSE):
            return kind, [self._take(1) for _ in range(size)]
        return kind, [self._read_value(kind) for _ in range(size)]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        taken = self._content[self._at : self._at + size]
        if len(taken) != size:
            raise NotPlain
        self._at += size
        return taken

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def _integer(self) -> int:
        zigzag = self._unsigned()
        return (zigzag >> 1) ^ -(zigzag & 1)


def _encoded(fields: Struct) -> bytes:
    return b"".join(_struct_bytes(fields))


def _struct_bytes(fields: Struct) -> Iterator[bytes]:
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - before
        yield bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _integer(number)
        yield from _value_bytes(kind, value)
        before = number
    yield b"\0"


def _value_bytes(kind: int, value: Any) -> Iterator[bytes]:
    if kind in _INTEGERS:
        yield _integer(value)
    elif kind == _BINARY:
        yield _unsigned(len(value)) + value
    elif kind in (_LIST, _SET):
        of, elements = value
        size = len(elements)
        yield bytes([size << 4 | of]) if size < 15 else bytes([0xF0 | of]) + _unsigned(size)
        for element in elements:
            if of in (_TRUE, _FALSE):
                yield element
            else:
                yield from _value_bytes(of, element)
    elif kind == _STRUCT:
        yield from _struct_bytes(value)
    elif kind in (_BYTE, _DOUBLE):
        yield value


def _unsigned(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _integer(number: int) -> bytes:
    return _unsigned(number << 1 if number >= 0 else (-number << 1) - 1)
