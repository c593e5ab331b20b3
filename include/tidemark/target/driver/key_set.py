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
from tidemark.target.driver.key_numbers import KeyNumbers, Numbers, are_whole_numbers, have_numbers

Columns = Sequence[pa.ChunkedArray]

# The most given keys per key of the set that are looked up by order. Arrow hashes the set again for each call, which
# only pays for more keys.
GIVEN_PER_KEY: Final = 4

# Keys that are not one whole number get numbers in a set of so many, of fewer bytes, if at most one of so many shares
# its number. Smaller sets fit in the processor's cache, where hashing is as fast.
LEAST_NUMBERED: Final = 100_000
MAX_NUMBERED_BYTES: Final = 2**30
SHARING: Final = 4


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
    def _in_order(self) -> _NumberedKeys | None:
        """The keys by their numbers; None for keys without numbers, or if many keys share theirs with others."""
        own = self._own
        if not have_numbers(own):
            return None
        if are_whole_numbers(own):
            return _NumberedKeys(own)
        if len(self) < LEAST_NUMBERED or sum(column.nbytes for column in own) > MAX_NUMBERED_BYTES:
            return None
        numbered = _NumberedKeys(own)
        return numbered if SHARING * numbered.shares.sum() <= len(self) else None

    def __len__(self) -> int:
        """The number of keys; a key that was given twice counts twice."""
        return len(self.columns[0])

    @property
    def has_doubles(self) -> bool:
        """Whether a key was given twice."""
        if self._in_order is not None:
            return self._in_order.has_doubles
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
        if 0 < len(given[0]) <= GIVEN_PER_KEY * len(self) and have_numbers(given) and self._in_order is not None:
            return pa.chunked_array([self._in_order.places(given)])
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


class _NumberedKeys:
    """The keys of a set in ascending order of their numbers. `shares` says which have the number of another one."""

    def __init__(self, columns: Columns) -> None:
        self._columns = [column.combine_chunks() for column in columns]
        self._is_exact = are_whole_numbers(columns)
        self._key_numbers, numbers = KeyNumbers.for_set(columns)
        self._positions = np.argsort(numbers, kind="stable")  # fast for keys that ascend, or nearly do
        self._numbers = numbers[self._positions]
        is_as_next = self._numbers[1:] == self._numbers[:-1]
        self.shares = np.zeros(len(numbers), np.bool_)
        self.shares[1:] |= is_as_next
        self.shares[:-1] |= is_as_next

    @cached_property
    def _sharing(self) -> tuple[KeySet, NDArray[np.intp]]:
        """The keys that share their numbers, and their positions."""
        positions = self._positions[self.shares]
        columns = [pa.chunked_array([own.take(pa.array(positions))]) for own in self._columns]
        return KeySet([own.type for own in self._columns], [columns]), positions

    @property
    def has_doubles(self) -> bool:
        return bool(self.shares.any()) and (self._is_exact or self._sharing[0].has_doubles)

    def places(self, columns: Columns) -> pa.Array:
        """The positions of these keys; NULL for others."""
        sought = self._key_numbers.of(columns)
        at = self._nearest(sought)
        positions, is_there = self._positions[at], self._numbers[at] == sought
        if not self._is_exact:
            rows = np.flatnonzero(is_there & self.shares[at])
            for own, given in zip(self._columns, columns, strict=True):
                is_there &= np.asarray(pc.equal(given, own.take(pa.array(positions))))
            if len(rows):
                keys, of_keys = self._sharing
                places = keys.places([given.take(pa.array(rows)) for given in columns])
                is_there[rows] = np.asarray(pc.is_valid(places))
                positions[rows] = of_keys[np.asarray(pc.fill_null(places.cast(pa.int64()), 0))]
        return pa.array(positions, mask=~is_there)

    def _nearest(self, sought: Numbers) -> NDArray[np.intp]:
        """For each number where it is in the order, or another one if it is not there. Keys that follow each other in
        the set, such as those of a chunk, are compared with that part of it, which is a tenth of the work."""
        if len(sought):
            first = int(np.searchsorted(self._numbers, sought[0]))
            if np.array_equal(self._numbers[first : first + len(sought)], sought):
                return np.arange(first, first + len(sought))
        return np.minimum(np.searchsorted(self._numbers, sought), len(self._numbers) - 1)
