"""A Delta table read without Spark: log + Parquet + deletion vectors -> rows. It judges what Spark wrote.

Follows Delta's PROTOCOL.md: "Actions", "Deletion Vectors" with "Deletion Vector Format" (a 64-bit Roaring bitmap in
the portable format of RoaringFormatSpec), "Column Mapping" by name. Only what Tidemark's tables can hold is known,
anything else raises: a reader feature, a partition, a log whose beginning is gone."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as T

Row = dict[str, Any]

_READER_FEATURES = {"deletionVectors", "columnMapping", "timestampNtz", "typeWidening"}
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The newest version of a table: its columns, and its data files with the vector of each."""

    path: Path
    version: int
    fields: list[T.StructField]
    files: list[tuple[str, dict[str, Any] | None]]

    def rows(self) -> list[Row]:
        """All rows, in no order: times as microseconds or days since 1970, floats as their repr, arrays as tuples, maps
        as sorted pairs.
        """
        return self._rows(values)

    def rows_as_stored(self) -> list[Row]:
        """All rows, in no order, as Arrow has them."""
        return self._rows(lambda table, field: _column(table, field).to_pylist())

    def _rows(self, of_column_in: Callable[[pa.Table, T.StructField], list[Any]]) -> list[Row]:
        rows: list[Row] = []
        for name, vector in self.files:
            table = pq.ParquetFile(self.path / unquote(name)).read()
            deleted = set() if vector is None else _deleted(self.path, vector)
            columns = {f.name: of_column_in(table, f) for f in self.fields}
            rows += [
                {column: of_column[row] for column, of_column in columns.items()}
                for row in range(table.num_rows)
                if row not in deleted
            ]
        return rows


def read(path: Path) -> DeltaFiles | None:
    """The table as its log has it now; None where there is no log."""
    log = path / "_delta_log"
    commits = sorted(file for file in log.glob("*.json") if file.stem.isdigit())
    if not commits:
        return None
    if int(commits[0].stem) != 0:
        raise ValueError(f"the log of {path} does not begin with version 0")
    metadata: dict[str, Any] = {}
    files: dict[tuple[str, str], tuple[str, dict[str, Any] | None]] = {}
    for commit in commits:
        for line in commit.read_text(encoding="utf-8").strip().split("\n"):  # other ends of lines stand in names
            action = json.loads(line)
            if "metaData" in action:
                metadata = action["metaData"]
            elif "protocol" in action:
                unknown = set(action["protocol"].get("readerFeatures", ())) - _READER_FEATURES
                if unknown:
                    raise ValueError(f"{path} uses the reader features {sorted(unknown)}")
            elif "add" in action:
                vector = action["add"].get("deletionVector")
                files[_file_id(action["add"])] = (action["add"]["path"], vector)
            elif "remove" in action:
                files.pop(_file_id(action["remove"]), None)
    if metadata["partitionColumns"]:
        raise ValueError(f"{path} is partitioned")
    schema = T.StructType.fromJson(json.loads(metadata["schemaString"]))
    return DeltaFiles(path, int(commits[-1].stem), schema.fields, list(files.values()))


def _file_id(action: dict[str, Any]) -> tuple[str, str]:
    vector = action.get("deletionVector") or {}
    return action["path"], f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}{vector.get('offset')}"


# --- values ----------------------------------------------------------------------------------------------------------


def values(table: pa.Table, field: T.StructField) -> list[Any]:
    """One column as Python values; NULL throughout in a file that is older than the column."""
    column = _column(table, field)
    if pa.types.is_null(column.type):
        return [None] * table.num_rows
    match field.dataType:
        case T.TimestampNTZType() if pa.types.is_date(column.type):  # a file from before the column was widened
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        case T.TimestampType() | T.TimestampNTZType():
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        case T.DateType():
            column = column.cast(pa.int32())
        case T.ArrayType(elementType=T.TimestampType() | T.TimestampNTZType()):
            column = column.cast(pa.list_(pa.timestamp("us", column.type.value_type.tz))).cast(pa.list_(pa.int64()))
        case T.ArrayType(elementType=T.DateType()):
            column = column.cast(pa.list_(pa.int32()))
    return [_value(value) for value in column.to_pylist()]


def from_text(text: str, field: T.StructField) -> Any:
    """A value as `values` gives it, of PostgreSQL's text of it, by Arrow's own casts."""
    types: dict[type, pa.DataType] = {
        T.IntegerType: pa.int32(),
        T.LongType: pa.int64(),
        T.StringType: pa.string(),
        T.DateType: pa.date32(),
        T.TimestampNTZType: pa.timestamp("us"),
        T.TimestampType: pa.timestamp("us", "UTC"),
    }
    kind: pa.DataType
    match field.dataType:
        case T.BooleanType():
            return text == "t"
        case T.DecimalType(precision=precision, scale=scale):
            kind = pa.decimal128(precision, scale)
        case other:
            kind = types[type(other)]
    column = pa.array([text]).cast(kind)
    return values(pa.table({field.name: column}), T.StructField(field.name, field.dataType))[0]


def _column(table: pa.Table, field: T.StructField) -> pa.ChunkedArray:
    name = field.metadata.get("delta.columnMapping.physicalName", field.name)
    if name in table.column_names:
        return table.column(name)
    return pa.chunked_array([pa.nulls(table.num_rows)])


def _value(value: Any) -> Any:
    match value:
        case float():
            return repr(value)
        case [(_, _), *_]:
            return tuple(sorted(value))
        case list():
            return tuple(_value(element) for element in value)
        case _:
            return value


# --- deletion vectors ------------------------------------------------------------------------------------------------


def _deleted(path: Path, vector: dict[str, Any]) -> set[int]:
    """The positions of the rows that a vector deletes."""
    match vector["storageType"]:
        case "u":
            prefix, name = vector["pathOrInlineDv"][:-20], vector["pathOrInlineDv"][-20:]
            file = path / prefix / f"deletion_vector_{uuid.UUID(bytes=_z85(name))}.bin"
            content = file.read_bytes()[vector["offset"] :]
            (size,) = struct.unpack_from(">i", content)
            data = content[4 : 4 + size]
        case "i":
            data = _z85(vector["pathOrInlineDv"])
        case other:
            raise ValueError(f"a deletion vector of storage type {other!r}")
    magic, bitmaps = struct.unpack_from("<iq", data)
    if magic != 1681511377:
        raise ValueError(f"a deletion vector of format {magic}")
    at, deleted = 12, set[int]()
    for _ in range(bitmaps):
        (high,) = struct.unpack_from("<I", data, at)
        positions, at = _roaring(data, at + 4)
        deleted.update(high << 32 | low for low in positions)
    if len(deleted) != vector["cardinality"]:
        raise ValueError(f"a deletion vector of {len(deleted)} rows, its descriptor says {vector['cardinality']}")
    return deleted


def _roaring(data: bytes, at: int) -> tuple[list[int], int]:
    """One 32-bit Roaring bitmap at an offset, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    is_run: list[bool]
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        flags = data[at : at + (count + 7) // 8]
        is_run = [bool(flags[i // 8] >> (i % 8) & 1) for i in range(count)]
        at += len(flags)
    elif cookie == 12346:
        (count,) = struct.unpack_from("<I", data, at)
        is_run = [False] * count
        at += 4
    else:
        raise ValueError(f"a Roaring bitmap with cookie {cookie}")
    headers = [struct.unpack_from("<HH", data, at + 4 * i) for i in range(count)]
    at += 4 * count
    if not any(is_run) or count >= 4:
        at += 4 * count
    positions: list[int] = []
    for (key, less_one), run in zip(headers, is_run, strict=True):
        if run:
            (runs,) = struct.unpack_from("<H", data, at)
            for i in range(runs):
                start, length = struct.unpack_from("<HH", data, at + 2 + 4 * i)
                positions += [key << 16 | low for low in range(start, start + length + 1)]
            at += 2 + 4 * runs
        elif less_one + 1 > 4096:
            words = struct.unpack_from("<1024Q", data, at)
            positions += [key << 16 | i * 64 + b for i, word in enumerate(words) for b in range(64) if word >> b & 1]
            at += 8192
        else:
            positions += [key << 16 | low for low in struct.unpack_from(f"<{less_one + 1}H", data, at)]
            at += 2 * (less_one + 1)
    return positions, at


def _z85(text: str) -> bytes:
    """ZeroMQ's base 85 (rfc.zeromq.org/spec/32)."""
    decoded = b""
    for i in range(0, len(text), 5):
        number = 0
        for c in text[i : i + 5]:
            number = number * 85 + _Z85.index(c)
        decoded += number.to_bytes(4, "big")
    return decoded
