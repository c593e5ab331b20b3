"""Compares, shapes and bounds Arrow columns, with the equality that Spark has of a key's values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Key = tuple[Any, ...]


def is_comparable(of: pa.DataType) -> bool:
    """Whether Arrow and Spark mean the same by two values of the type being equal. Of floating point they do not: to
    Spark's joins NaN equals NaN and -0.0 is 0.0."""
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
    """Python knows no date beyond the year 9999 and none BC; Arrow's own number for it is as good."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column


def in_shape(rows: pa.Table, shape: pa.Schema) -> pa.Table:
    """The rows with these columns in these types; a column that they lack is NULL."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in shape
    ]
    return pa.table(columns, schema=shape)


def bounds(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The least and the greatest value of each column of integers that has no NULL."""
    for name in names:
        column = table[name]
        if pa.types.is_integer(column.type) and len(column) and not column.null_count:
            between = pc.min_max(column).as_py()
            yield name, (between["min"], between["max"])
