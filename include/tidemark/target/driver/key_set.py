"""Holds a set of keys in Arrow's columns and looks other keys up in it, without a Python object for each.

Only key types are allowed whose equality is the same in Arrow and in Spark (`arrow_columns.is_comparable`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.target.driver.arrow_columns import comparable

Columns = Sequence[pa.ChunkedArray]


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
        own = [comparable(column) for column in self.columns]
        self._values = [column.unique() for column in own]
        self._pairs: list[pa.Array] = []  # per further column those that occur, of the numbers so far and its own
        numbers = pc.index_in(own[0], self._values[0]) if len(own) > 1 else own[0]
        for column, values in zip(own[1:], self._values[1:], strict=True):
            pairs = _paired(numbers, column, values)
            self._pairs.append(pairs.unique())
            numbers = pc.index_in(pairs, self._pairs[-1])

    def __len__(self) -> int:
        """The number of keys; a key that was given twice counts twice."""
        return len(self.columns[0])

    @property
    def has_doubles(self) -> bool:
        """Whether a key was given twice."""
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
        numbers = pc.index_in(given[0], self._values[0])
        for column, values, pairs in zip(given[1:], self._values[1:], self._pairs, strict=True):
            numbers = pc.index_in(_paired(numbers, column, values), pairs)
        return numbers

    def places_of(self, pieces: Sequence[Columns]) -> list[pa.ChunkedArray]:
        """`places` of each piece. Arrow hashes the set again for each call, so pieces with many keys are looked up
        together: a hundred pieces of five million keys took a minute one by one."""
        if not pieces:
            return []
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
