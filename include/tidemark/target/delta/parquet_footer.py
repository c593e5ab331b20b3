"""Makes the footer of a Parquet file of the pages of several, with columns of one value added and others left out.

Nothing is decoded: the caller copies the pages, and a new footer says where they lie.

    a file      PAR1 | pages | footer | length | PAR1          the body is what stands before the footer
    the result  body 1 | pages of constants 1 | body 2 | pages of constants 2 | … | footer | length | PAR1

A footer has the byte at which every column chunk begins, and the column chunks of each row group, in the schema's
order, wherever in the file they lie (parquet-format: "File format", `parquet.thrift`). So a row group can take a column
from pages that were written elsewhere, if both have one row count. The first column stays the first: readers that
divide a file among them decide by its start whose a row group is.

The footer is in Thrift's compact protocol, which has the type of every field ("Thrift Compact protocol encoding"). It
is read without knowledge of the fields. Fields that do not change are written back as they were.
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

# A struct is its fields by number, each with its type; a list is the type of its elements and these.
Struct = dict[int, tuple[int, Any]]


class NotPlain(Exception):
    """A footer that says more than is understood here."""


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's footer, and how many bytes stand before it."""

    fields: Struct
    body: int

    @property
    def rows(self) -> list[int]:
        """The rows of each row group."""
        return [int(_value(group, _GROUP_ROWS)) for group in self._groups]

    @property
    def _groups(self) -> list[Struct]:
        groups: list[Struct] = _value(self.fields, _ROW_GROUPS)[1]
        return groups

    @property
    def shape(self) -> str:
        """What two files must have in common to become one."""
        return repr((self.fields[_SCHEMA], self.fields.get(_COLUMN_ORDERS)))


def read_footer(file: BinaryIO, size: int) -> Footer:
    """Raises NotPlain if the file's end is not a footer that can be written anew."""
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
    """The body of a file that has, for every row group of another one, columns of one value each."""

    body: bytes
    footer: Footer


def constants(rows: Sequence[int], values: Mapping[str, pa.Scalar]) -> Constants:
    """The columns in row groups of so many rows."""
    fields = pa.schema([pa.field(name, value.type) for name, value in values.items()])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, fields, compression="zstd", version="2.6", write_statistics=False) as writer:
        for count in rows:
            columns = [pa.repeat(value, count) for value in values.values()]
            writer.write_table(pa.table(columns, schema=fields), row_group_size=max(1, count))
    content = sink.getvalue()
    footer = read_footer(io.BytesIO(content), len(content))
    return Constants(content[: footer.body], footer)


def joined(parts: Sequence[tuple[Footer, Constants]], left_out: Set[str]) -> bytes:
    """What stands behind the bodies, each with its constants behind it, in the order of `parts`, whose shape is one.
    `left_out` are columns, by their names, that the result shall not have."""
    fields = dict(parts[0][0].fields)
    added = parts[0][1].footer.fields
    groups: list[Struct] = []
    begins = 0
    for footer, besides in parts:
        behind = begins + footer.body
        for group, constant in zip(footer._groups, besides.footer._groups, strict=True):
            groups.append(_group(group, begins, constant, behind, left_out, len(groups)))
        begins = behind + len(besides.body)
    fields[_SCHEMA] = (_LIST, (_STRUCT, _elements(fields, added, left_out)))
    fields[_ROWS] = (_I64, sum(_value(group, _GROUP_ROWS) for group in groups))
    fields[_ROW_GROUPS] = (_LIST, (_STRUCT, groups))
    fields.pop(_KEY_VALUES, None)  # Arrow's own telling of the schema is none of the new one
    if _COLUMN_ORDERS in fields:
        fields[_COLUMN_ORDERS] = (_LIST, (_STRUCT, _orders(parts[0][0], added, left_out)))
    written = _written(fields)
    return written + struct.pack("<I", len(written)) + MAGIC


# --- the parts of a footer --------------------------------------------------------------------------------------------


def _value(fields: Struct, number: int) -> Any:
    if number not in fields:
        raise NotPlain
    return fields[number][1]


def _subtrees(fields: Struct) -> list[list[Struct]]:
    """The elements of each column: a schema is its tree, parents before their children, the root first."""
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


def _elements(fields: Struct, added: Struct, left_out: Set[str]) -> list[Struct]:
    kept = [tree for tree in _subtrees(fields) if _name(tree[0]) not in left_out]
    trees = [*kept, *_subtrees(added)]
    if len({_name(tree[0]) for tree in trees}) != len(trees):
        raise NotPlain
    root = dict(_value(fields, _SCHEMA)[1][0])
    root[_CHILDREN] = (_I32, len(trees))
    return [root, *[element for tree in trees for element in tree]]


def _orders(footer: Footer, added: Struct, left_out: Set[str]) -> list[Struct]:
    """How each leaf's bounds are compared."""
    leaves = [tree[0] for tree in _subtrees(footer.fields) for element in tree if not _is_group(element)]
    own = _value(footer.fields, _COLUMN_ORDERS)[1]
    kept = [order for leaf, order in zip(leaves, own, strict=True) if _name(leaf) not in left_out]
    return [*kept, *_value(added, _COLUMN_ORDERS)[1]]


def _is_group(element: Struct) -> bool:
    return bool(element.get(_CHILDREN, (0, 0))[1])


def _group(
    group: Struct, begins: int, constant: Struct, constant_begins: int, left_out: Set[str], number: int
) -> Struct:
    if _value(group, _GROUP_ROWS) != _value(constant, _GROUP_ROWS):
        raise NotPlain
    columns = [
        *[_moved(c, begins) for c in _value(group, _COLUMNS)[1] if _column_of(c) not in left_out],
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
    """The column of the table that a leaf's pages belong to."""
    return str(bytes(_value(_value(chunk, _METADATA), _PATH)[1][0]).decode())


def _moved(chunk: Struct, by: int) -> Struct:
    """A column chunk whose pages lie so many bytes further on."""
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
    if offset > 0:  # some writers say 0 for none
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
            fields[number] = (kind & 15, self._of(kind & 15))
        return fields

    def _of(self, kind: int) -> Any:
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
        return kind, [self._of(kind) for _ in range(size)]

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


def _written(fields: Struct) -> bytes:
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
                yield from _one(of, element)
    elif kind == _STRUCT:
        yield from _struct(value)
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
