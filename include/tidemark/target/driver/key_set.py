"""Holds a set of keys in Arrow's columns and looks other keys up in it, without a Python object for each.

Only key types are allowed whose equality is the same in Arrow and in Spark (`arrow_columns.is_comparable`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.target.driver.arrow_columns import comparable

Columns = Sequence[pa.ChunkedArray]

# The most given keys per key of the set that are looked up by order. Arrow hashes the set again for each call, which
# only pays for more keys.
GIVEN_PER_KEY: Final = 4


class KeySet:
    """The keys of several pieces; a piece is one array per column of the key. Keys of several columns are compared
    by the numbers of their values in the set."""

    def __init__(self, types: Sequence[pa.DataType], pieces: Iterable[Columns]) -> None:
        listed = list(pieces)
        self.types = types
        self.columns = [
            pa.chunked_array([chunk for piece in listed for chunk in piece[n].cast(of).chunks], of)
            for n, of in enumerate(types)
        ]

    @cached_property
    def _own(self) -> list[pa.ChunkedArray]:
        return [comparable(column) for column in self.columns]

    @cached_property
    def _values(self) -> list[pa.Array]:
        return [column.unique() for column in self._own]

    @cached_property
    def _pairs(self) -> list[pa.Array]:
        """Per further column the pairs that occur, of the number so far and the column's value."""
        found: list[pa.Array] = []
        own = self._own
        numbers = pc.index_in(own[0], self._values[0]) if len(own) > 1 else own[0]
        for column, values in zip(own[1:], self._values[1:], strict=True):
            pairs = _paired(numbers, column, values)
            found.append(pairs.unique())
            numbers = pc.index_in(pairs, found[-1])
        return found

    @cached_property
    def _in_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """The keys in ascending order and their positions, if the key is one whole number; None for other keys."""
        numbers = _whole_numbers(self._own)
        if numbers is None:
            return None
        order = np.argsort(numbers, kind="stable")  # fast for keys that rise, or nearly do
        return numbers[order], order

    def __len__(self) -> int:
        """The number of keys; a key that was given twice counts twice."""
        return len(self.columns[0])

    @property
    def has_doubles(self) -> bool:
        """Whether a key was given twice."""
        if self._in_order is not None:
            keys, _ = self._in_order
            return bool((keys[1:] == keys[:-1]).any())
        return len(self._pairs[-1] if self._pairs else self._values[0]) < len(self)

    def distinct(self) -> KeySet:
        """The set with each key once."""
        names = [str(n) for n in range(len(self.columns))]
        once = pa.table(self.columns, names=names).group_by(names).aggregate([])
        return KeySet(self.types, [[once[name] for name in names]])

    def holds(self, columns: Columns) -> pa.ChunkedArray:
        """Per row, whether the set has its key."""
        return pc.is_valid(self.places(columns))

    def places(self, columns: Columns) -> pa.ChunkedArray:
        """For each row the number of its key in the set, NULL if the set does not have it. In a set without doubles
        this is the position at which the key was given."""
        given = [comparable(column.cast(of)) for column, of in zip(columns, self.types, strict=True)]
        if len(self) and len(given[0]) <= GIVEN_PER_KEY * len(self):
            sought = _whole_numbers(given)
            if sought is not None and self._in_order is not None:
                return pa.chunked_array([_places_in_order(*self._in_order, sought)])
        numbers = pc.index_in(given[0], self._values[0])
        for column, values, pairs in zip(given[1:], self._values[1:], self._pairs, strict=True):
            numbers = pc.index_in(_paired(numbers, column, values), pairs)
        return numbers

    def places_of(self, pieces: Sequence[Columns]) -> list[pa.ChunkedArray]:
        """`places` of each piece. Arrow hashes the set again for each call, so pieces with many keys are looked up
        together: a hundred pieces of five million keys took a minute one by one. Of keys in order each piece is looked
        up alone, because its keys are likely to follow each other in the set."""
        if not pieces or self._in_order is not None:
            return [self.places(piece) for piece in pieces]
        together = [
            pa.chunked_array([chunk for piece in pieces for chunk in piece[n].cast(of).chunks], of)
            for n, of in enumerate(self.types)
        ]
        numbers, begins, parts = self.places(together), 0, []
        for piece in pieces:
            parts.append(numbers.slice(begins, len(piece[0])))
            begins += len(piece[0])
        return parts

    def without(self, columns: Columns) -> KeySet:
        """The set without these keys, which may be many more."""
        in_both = self.holds(columns)
        gone = KeySet(self.types, [[column.filter(in_both) for column in columns]])
        stay = pc.invert(gone.holds(self.columns))
        return KeySet(self.types, [[column.filter(stay) for column in self.columns]])


def _paired(numbers: pa.ChunkedArray, column: pa.ChunkedArray, values: pa.Array) -> pa.ChunkedArray:
    """One number for the key's columns so far and this column's value; NULL if the set lacks one of the two."""
    own = pc.index_in(column, values).cast(pa.int64())
    return pc.add(pc.multiply(numbers.cast(pa.int64()), max(1, len(values))), own)


def _places_in_order(keys: NDArray[np.int64], positions: NDArray[np.int64], sought: NDArray[np.int64]) -> pa.Array:
    """The positions of the sought keys among `keys`, which ascend; NULL for others. Keys that follow each other in the
    set, such as those of a chunk, are compared with that part of it, which is a tenth of the work."""
    if len(sought):
        first = np.searchsorted(keys, sought[0])
        if np.array_equal(keys[first : first + len(sought)], sought):
            return pa.array(positions[first : first + len(sought)])
    at = np.minimum(np.searchsorted(keys, sought), len(keys) - 1)
    return pa.array(positions[at], mask=keys[at] != sought)


def _whole_numbers(columns: Columns) -> NDArray[np.int64] | None:
    """The values of a key that is one whole number without NULLs; None for other keys."""
    if len(columns) > 1 or not pa.types.is_integer(columns[0].type) or columns[0].null_count:
        return None
    return np.asarray(columns[0].to_numpy(), np.int64)
