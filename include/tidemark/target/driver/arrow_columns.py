"""Compares Arrow columns as Spark compares them, converts them to a shape, and computes their bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Key = tuple[Any, ...]


def is_comparable(of: pa.DataType) -> bool:
    """Whether Arrow and Spark agree on the equality of two values of the type.

    They disagree for floating-point types: in Spark's joins NaN equals NaN, and -0.0 equals 0.0.
    """
    return bool(
        pa.types.is_integer(of)
        or pa.types.is_string(of)
        or pa.types.is_binary(of)
        or pa.types.is_boolean(of)
        or pa.types.is_date32(of)
        or pa.types.is_decimal128(of)
        or (pa.types.is_timestamp(of) and of.unit == "us")
    )


def keys_of(columns: Sequence[pa.ChunkedArray | pa.Array]) -> list[Key]:
    """The rows of a key's columns as tuples that can be compared and hashed."""
    return list(zip(*[comparable(column).to_pylist() for column in columns], strict=True))


def comparable(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Replace dates and times by Arrow's integers: Python has no date after the year 9999 and none BC."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column


def in_shape(rows: pa.Table, shape: pa.Schema) -> pa.Table:
    """The rows with exactly the columns and types of the shape; a column that they lack is NULL."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in shape
    ]
    return pa.table(columns, schema=shape)


def bounds(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the least and the greatest value of each of these columns that is of integers or has commit times, and has
    no NULL. The source's own times may be none of Python's."""
    for name in names:
        column = table[name]
        is_bounded = pa.types.is_integer(column.type) or name == "_committed_at"
        if is_bounded and len(column) and not column.null_count:
            between = pc.min_max(column).as_py()
            yield name, (between["min"], between["max"])


def field_of(structs: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """The values of one field of structs, by its index: Arrow reads a name that begins with a dot as a path."""
    return pc.struct_field(structs, [structs.type.get_field_index(name)])
