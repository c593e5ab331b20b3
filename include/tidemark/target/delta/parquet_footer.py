"""Builds the footer of a Parquet file that joins the pages of several files, adds constant columns and omits others.

No page is decoded: the caller copies the pages, and the new footer locates them.

    a file      PAR1 | pages | footer | length | PAR1          the body is everything before the footer
    the result  body 1 | pages of constants 1 | body 2 | pages of constants 2 | … | footer | length | PAR1

A footer lists the column chunks of each row group in the schema's order, with the byte at which each begins. They may
lie anywhere in the file (parquet-format: "File format", `parquet.thrift`). So a row group can take a column from pages
that were written elsewhere, if both have the same number of rows. The first column stays the first: several readers of
one file assign a row group to a reader by the position of its first column.

Fields that do not change are written back unchanged.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.target.delta.compact_thrift import (
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    ThriftReader,
    UnsupportedParquet,
    value_of,
    written_struct,
)

MAGIC: Final = b"PAR1"

# Fields of `parquet.thrift`, by their numbers.
_SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS, _ENCRYPTION = 2, 3, 4, 5, 7, 8  # of FileMetaData
_NAME, _CHILDREN = 4, 5  # of SchemaElement
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _SORTING, _GROUP_OFFSET, _GROUP_COMPRESSED, _ORDINAL = range(1, 8)  # of RowGroup
_FILE_PATH, _CHUNK_OFFSET, _METADATA, _OFFSET_INDEX, _COLUMN_INDEX = 1, 2, 3, 4, 6  # of ColumnChunk
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _BLOOM = 3, 6, 7, 9, 10, 11, 14


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's footer, and the number of bytes before it (`body`)."""

    fields: Struct
    body: int

    @property
    def rows(self) -> list[int]:
        """The number of rows of each row group."""
        return [int(value_of(group, _GROUP_ROWS)) for group in self._groups]

    @property
    def _groups(self) -> list[Struct]:
        groups: list[Struct] = value_of(self.fields, _ROW_GROUPS)[1]
        return groups

    @property
    def shape(self) -> str:
        """A text that two files must have in common to be joined."""
        return repr((self.fields[_SCHEMA], self.fields.get(_COLUMN_ORDERS)))


def read_footer(file: BinaryIO, size: int) -> Footer:
    """Read the footer of a file of `size` bytes. Raises UnsupportedParquet if it is missing or cannot be rewritten."""
    file.seek(max(0, size - 8))
    end = file.read(8)
    if len(end) != 8 or end[4:] != MAGIC:
        raise UnsupportedParquet
    (length,) = struct.unpack("<I", end[:4])
    body = size - 8 - length
    if body < len(MAGIC):
        raise UnsupportedParquet
    file.seek(body)
    footer = Footer(ThriftReader(file.read(length)).struct(), body)
    with _other_fields_refused():
        if _ENCRYPTION in footer.fields or any(count < 0 for count in footer.rows):
            raise UnsupportedParquet
    return footer


@contextmanager
def _other_fields_refused() -> Iterator[None]:
    """Raises UnsupportedParquet where a damaged footer has a field of another type than `parquet.thrift`, or too few
    elements."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError):
        raise UnsupportedParquet from None


@dataclass(frozen=True, slots=True)
class ConstantColumns:
    """A file of constant columns, as body and footer. It has the same row groups as the file that it extends."""

    body: bytes
    footer: Footer


def constants(rows: Sequence[int], values: Mapping[str, pa.Scalar]) -> ConstantColumns:
    """Write constant columns, in row groups of these numbers of rows."""
    fields = pa.schema([pa.field(name, value.type) for name, value in values.items()])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, fields, compression="zstd", version="2.6", write_statistics=False) as writer:
        for count in rows:
            columns = [pa.repeat(value, count) for value in values.values()]
            writer.write_table(pa.table(columns, schema=fields), row_group_size=max(1, count))
    content = sink.getvalue()
    footer = read_footer(io.BytesIO(content), len(content))
    return ConstantColumns(content[: footer.body], footer)


def joined(parts: Sequence[tuple[Footer, ConstantColumns]], excluded: Set[str]) -> bytes:
    """The bytes that follow all bodies in the joined file: footer, length and magic.

    Each body is followed by its constants, in the order of `parts`, which all have the same `shape`. The joined file
    does not have the columns named in `excluded`. Raises UnsupportedParquet.
    """
    with _other_fields_refused():
        return _joined(parts, excluded)


def _joined(parts: Sequence[tuple[Footer, ConstantColumns]], excluded: Set[str]) -> bytes:
    fields = dict(parts[0][0].fields)
    added = parts[0][1].footer.fields
    groups: list[Struct] = []
    begins = 0
    for footer, besides in parts:
        behind = begins + footer.body
        for group, constant in zip(footer._groups, besides.footer._groups, strict=True):
            groups.append(_group(group, begins, constant, behind, excluded, len(groups)))
        begins = behind + len(besides.body)
    fields[_SCHEMA] = (LIST, (STRUCT, _elements(fields, added, excluded)))
    fields[_ROWS] = (I64, sum(value_of(group, _GROUP_ROWS) for group in groups))
    fields[_ROW_GROUPS] = (LIST, (STRUCT, groups))
    fields.pop(_KEY_VALUES, None)  # Arrow's own telling of the schema is none of the new one
    if _COLUMN_ORDERS in fields:
        fields[_COLUMN_ORDERS] = (LIST, (STRUCT, _orders(parts[0][0], added, excluded)))
    written = written_struct(fields)
    return written + struct.pack("<I", len(written)) + MAGIC


# --- the parts of a footer --------------------------------------------------------------------------------------------


def _subtrees(fields: Struct) -> list[list[Struct]]:
    """The schema's elements, one list per column. A footer has them as a tree, root first, parents before children."""
    elements: list[Struct] = value_of(fields, _SCHEMA)[1]
    columns: list[list[Struct]] = []
    at = 1
    for _ in range(value_of(elements[0], _CHILDREN)):
        begins, open_elements = at, 1
        while open_elements:
            open_elements += elements[at].get(_CHILDREN, (0, 0))[1] - 1
            at += 1
        columns.append(elements[begins:at])
    if at != len(elements):
        raise UnsupportedParquet
    return columns


def _name(element: Struct) -> str:
    return str(bytes(value_of(element, _NAME)).decode())


def _elements(fields: Struct, added: Struct, excluded: Set[str]) -> list[Struct]:
    kept = [tree for tree in _subtrees(fields) if _name(tree[0]) not in excluded]
    trees = [*kept, *_subtrees(added)]
    if len({_name(tree[0]) for tree in trees}) != len(trees):
        raise UnsupportedParquet
    root = dict(value_of(fields, _SCHEMA)[1][0])
    root[_CHILDREN] = (I32, len(trees))
    return [root, *[element for tree in trees for element in tree]]


def _orders(footer: Footer, added: Struct, excluded: Set[str]) -> list[Struct]:
    """The column order of each leaf, by which readers compare its bounds."""
    leaves = [tree[0] for tree in _subtrees(footer.fields) for element in tree if not _is_group(element)]
    own = value_of(footer.fields, _COLUMN_ORDERS)[1]
    kept = [order for leaf, order in zip(leaves, own, strict=True) if _name(leaf) not in excluded]
    return [*kept, *value_of(added, _COLUMN_ORDERS)[1]]


def _is_group(element: Struct) -> bool:
    return bool(element.get(_CHILDREN, (0, 0))[1])


def _group(
    group: Struct, begins: int, constant: Struct, constant_begins: int, excluded: Set[str], number: int
) -> Struct:
    if value_of(group, _GROUP_ROWS) != value_of(constant, _GROUP_ROWS):
        raise UnsupportedParquet
    columns = [
        *[_moved(c, begins) for c in value_of(group, _COLUMNS)[1] if _column_of(c) not in excluded],
        *[_moved(c, constant_begins) for c in value_of(constant, _COLUMNS)[1]],
    ]
    facts = [value_of(c, _METADATA) for c in columns]
    first = facts[0]
    at = min(offset for offset in (first.get(_DICTIONARY_PAGE, (0, 0))[1], value_of(first, _DATA_PAGE)) if offset)
    return {
        _COLUMNS: (LIST, (STRUCT, columns)),
        _GROUP_BYTES: (I64, sum(value_of(f, _UNCOMPRESSED) for f in facts)),
        _GROUP_ROWS: group[_GROUP_ROWS],
        _GROUP_OFFSET: (I64, at),
        _GROUP_COMPRESSED: (I64, sum(value_of(f, _COMPRESSED) for f in facts)),
        **({_ORDINAL: (I16, number)} if number < 2**15 else {}),
    }


def _column_of(chunk: Struct) -> str:
    """The name of the top-level column that a column chunk belongs to."""
    return str(bytes(value_of(value_of(chunk, _METADATA), _PATH)[1][0]).decode())


def _moved(chunk: Struct, by: int) -> Struct:
    """The column chunk, with all offsets moved by so many bytes."""
    if _FILE_PATH in chunk:
        raise UnsupportedParquet
    facts = dict(value_of(chunk, _METADATA))
    for number in (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _BLOOM):
        _move(facts, number, by)
    moved = {**chunk, _METADATA: (STRUCT, facts)}
    for number in (_CHUNK_OFFSET, _OFFSET_INDEX, _COLUMN_INDEX):
        _move(moved, number, by)
    return moved


def _move(fields: Struct, number: int, by: int) -> None:
    kind, offset = fields.get(number, (0, 0))
    if offset > 0:  # some writers say 0 for none
        fields[number] = (kind, offset + by)
