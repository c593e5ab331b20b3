"""Converts the texts of a column in a buffer to its target type, for the stream and for chunks.

`decoder` (pgoutput) and `copy_rows` (binary COPY) compute start and length of each value, for whole columns. This
module and `schema.values` do the rest: masks, conversion, and the texts of values that do not fit (R8). So a value has
one form in the lake, whether it comes from the stream or from a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.errors import MaskWithoutSalt
from tidemark.schema.table import Column, TableSchema
from tidemark.schema.values import Converted, Mask, Positions, convert, gather, kept_text, mask

# pgoutput's kinds of values in a tuple.
TEXT, NULL, UNCHANGED = b"tnu"

# Follows the last message of a block, so that eight bytes can be read from the end of any message.
PADDING: Final = bytes(8)


def require_salt(schema: TableSchema, salt: bytes | None) -> None:
    """Raises MaskWithoutSalt if a column needs a salt and there is none."""
    masked = [c.name for c in schema.columns if c.mask == "sha256"]
    if masked and salt is None:
        raise MaskWithoutSalt(table=schema.table, columns=", ".join(masked))


def words(data: NDArray[np.uint8], dtype: str) -> NDArray[np.int64]:
    """A view in which element i is the integer that begins at byte i, in the byte order of `dtype`."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((len(data) - width + 1,), dtype, data, strides=(1,))


def int64(data: NDArray[np.uint8], at: Positions) -> Positions:
    """The big-endian 64-bit integers at these positions."""
    return words(data, "<i8")[at].byteswap(inplace=True)


def uint32(data: NDArray[np.uint8], at: Positions) -> Positions:
    """The big-endian unsigned 32-bit integers at these positions."""
    return words(data, "<u4")[at].byteswap(inplace=True).astype(np.int64)


@dataclass(slots=True)
class Values:
    """One captured column in each of several tuples: the value's kind byte, the start of its text, and its length
    in bytes."""

    kind: NDArray[np.uint8]
    start: Positions
    length: Positions

    def fill(self, rows: NDArray[np.intp], other: Values, other_rows: NDArray[np.intp]) -> None:
        """Replace the values in `rows` by those in `other_rows` of `other`."""
        self.kind[rows] = other.kind[other_rows]
        self.start[rows] = other.start[other_rows]
        self.length[rows] = other.length[other_rows]

    def take(self, rows: NDArray[np.intp]) -> Values:
        return Values(self.kind[rows], self.start[rows], self.length[rows])

    def text(self, data: NDArray[np.uint8]) -> pa.Array:
        """The values as binary texts, NULL where the kind is not TEXT."""
        valid = self.kind == TEXT
        return gather(data, self.start, self.length, None if valid.all() else valid)


class Conversion:
    """Converts columns of one relation's rows, and collects the texts of values that do not fit (R8)."""

    def __init__(self, data: NDArray[np.uint8], salt: bytes | None, rows: int) -> None:
        self._data = data
        self._salt = salt
        self._count = rows
        self._kept: list[tuple[str, NDArray[np.intp], pa.Array]] = []

    def column(
        self,
        column: Column,
        values: Values,
        rows: NDArray[np.intp],
        name: str,
        *,
        clamp: bool = True,
        renamed: tuple[Mask, str] | None = None,
    ) -> pa.Array:
        """`values` of `rows` as the column's target type. The texts of values that do not fit are kept under
        `name`, or under the name in `renamed` where its mask is true."""
        text = values.text(self._data)
        if column.mask is not None:
            return mask(text, column.mask, column.target, self._salt or b"")
        converted: Converted = convert(text, column.target, clamp=clamp)
        if converted.kept is not None:
            refused = {name: converted.kept}
            if renamed is not None:
                refused = {name: converted.kept & ~renamed[0], renamed[1]: converted.kept & renamed[0]}
            for under, of in refused.items():
                unfit = np.flatnonzero(of)
                if len(unfit):
                    self._kept.append((under, rows[unfit], kept_text(text, unfit)))
        return converted.values

    def counts(self) -> dict[str, int]:
        """The number of kept texts by name; names without kept texts are left out."""
        return {name: len(rows) for name, rows, _ in self._kept}

    def text(self) -> pa.Array:
        """The `_text` column: per row the kept texts by column, NULL in rows without kept texts."""
        if not self._kept:
            return pa.nulls(self._count, pa.map_(pa.string(), pa.string()))
        rows = np.concatenate([r for _, r, _ in self._kept])
        in_order = np.argsort(rows, kind="stable")
        names = pa.array([name for name, _, _ in self._kept], pa.string())
        of_name = np.repeat(np.arange(len(self._kept)), [len(r) for _, r, _ in self._kept])
        keys = names.take(pa.array(of_name[in_order]))
        items = pa.concat_arrays([t for _, _, t in self._kept]).take(pa.array(in_order))
        counts = np.bincount(rows, minlength=self._count)
        return pa.MapArray.from_arrays(list_offsets(counts), keys, items, mask=pa.array(counts == 0))


def list_offsets(counts: Positions) -> pa.Array:
    """The offsets of an Arrow list array whose lists have these lengths."""
    return pa.array(np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32))))


def structs(type_: pa.StructType, fields: list[pa.Array], rows: NDArray[np.intp], count: int) -> pa.Array:
    """An array of `count` structs: the given fields in `rows`, in order, and NULL in all other rows."""
    if not len(rows):
        return pa.nulls(count, type_)
    place = np.zeros(count, np.int64)
    place[rows] = np.arange(len(rows))
    absent = np.ones(count, np.bool_)
    absent[rows] = False
    take = pa.array(place, mask=absent)
    spread = [field.take(take) for field in fields]
    return pa.StructArray.from_arrays(spread, fields=list(type_), mask=pa.array(absent))
