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
from tidemark.target.driver.key_codes import Codes, KeyCodes, have_codes

Columns = Sequence[pa.ChunkedArray]

# The most given keys per key of the set that are looked up by codes. Arrow hashes the set again for each call, which
# only pays for more keys.
GIVEN_PER_KEY: Final = 4

# Keys that are not one whole number get codes if they are so many, and no more of them than MOST_ALIKE have one code.
# Of fewer keys in no order, hashing is faster.
LEAST_CODED: Final = 100_000
MOST_ALIKE: Final = 8
MAX_CODED_BYTES: Final = 2**30  # of a set, and of the keys looked up at a time; an array of texts holds twice as many


class KeySet:
    """The keys of several pieces; a piece is one array per column of the key. A set with codes is searched in their
    order. Arrow hashes the keys of others, those of several columns by the numbers of their values."""

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
    def _coded(self) -> _CodedKeys | None:
        """The keys in the order of their codes; None for keys without codes, or if too many have the same one."""
        is_whole_number = len(self.types) == 1 and pa.types.is_integer(self._own[0].type)
        is_large = len(self) >= LEAST_CODED and sum(column.nbytes for column in self._own) <= MAX_CODED_BYTES
        if not have_codes(self._own) or not (is_whole_number or is_large):
            return None
        coded = _CodedKeys(self._own)
        return coded if is_whole_number or coded.most_alike <= MOST_ALIKE else None

    def __len__(self) -> int:
        """The number of keys; a key that was given twice counts twice."""
        return len(self.columns[0])

    @property
    def has_doubles(self) -> bool:
        """Whether a key was given twice."""
        if self._coded is not None:
            return self._coded.has_doubles
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
        """For each row an integer of 32 or 64 bits, NULL if the set does not have its key. In a set without doubles
        this is the position at which the key was given."""
        given = [comparable(column.cast(of)) for column, of in zip(columns, self.types, strict=True)]
        is_small = sum(column.nbytes for column in given) <= MAX_CODED_BYTES
        if len(given[0]) <= GIVEN_PER_KEY * len(self) and is_small and have_codes(given) and self._coded is not None:
            return pa.chunked_array([self._coded.positions(given)])
        numbers = pc.index_in(given[0], self._values[0])
        for column, values, pairs in zip(given[1:], self._values[1:], self._pairs, strict=True):
            numbers = pc.index_in(_paired(numbers, column, values), pairs)
        return numbers

    def places_of(self, pieces: Sequence[Columns]) -> list[pa.ChunkedArray]:
        """`places` of each piece. Arrow hashes the set again for each call, so pieces with many keys are looked up
        together: a hundred pieces of five million keys took a minute one by one. By codes each piece is looked up
        alone, because its keys are likely to follow each other in the set."""
        if not pieces or self._coded is not None:
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


class _CodedKeys:
    """The keys of a set in the order of their codes. `most_alike` is the most of them with one code, or the first
    number above MOST_ALIKE."""

    def __init__(self, columns: Columns) -> None:
        self.key_codes, codes = KeyCodes.for_set(columns)
        # Keys that are whole numbers are never compared: their codes are.
        self._columns = [] if self.key_codes.is_exact else [column.combine_chunks() for column in columns]
        self._lengths = [_lengths(column) for column in self._columns]
        self._positions = np.argsort(codes, kind="stable")  # fast for codes in order, or nearly so
        self._codes = codes[self._positions]
        step = 1
        while step <= MOST_ALIKE and (self._codes[step:] == self._codes[:-step]).any():
            step += 1
        self.most_alike = step

    @property
    def has_doubles(self) -> bool:
        if self.key_codes.is_exact:
            return self.most_alike > 1
        for step in range(1, self.most_alike):
            first = np.flatnonzero(self._codes[step:] == self._codes[:-step])
            others = pa.array(self._positions[first + step])
            keys = [pa.chunked_array([column.take(others)]) for column in self._columns]
            if (self._positions_if_equal(first, self._codes[first], keys) >= 0).any():
                return True
        return False

    def positions(self, columns: Columns) -> pa.Array:
        """The positions of these keys; NULL for others."""
        codes = self.key_codes.of(columns)
        at = self._nearest(codes)
        if self.key_codes.is_exact:
            return pa.array(self._positions[at], mask=self._codes[at] != codes)
        found = self._positions_if_equal(at, codes, columns)
        if self.most_alike > 1:
            rows = np.flatnonzero((found < 0) & (self._codes[at] == codes))
            first = np.searchsorted(self._codes, codes[rows])
            keys = [column.take(pa.array(rows)) for column in columns]
            for step in range(self.most_alike if len(rows) else 0):
                found[rows] = np.maximum(found[rows], self._positions_if_equal(first + step, codes[rows], keys))
        return pa.array(found, mask=found < 0)

    def _nearest(self, codes: Codes) -> NDArray[np.intp]:
        """For each code where it is in the order, or another place if it is not there. Keys that follow each other in
        the set, such as those of a chunk, are compared with that part of it, which is a tenth of the work."""
        if len(codes):
            first = int(np.searchsorted(self._codes, codes[0]))
            if np.array_equal(self._codes[first : first + len(codes)], codes):
                return np.arange(first, first + len(codes))
        return np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)

    def _positions_if_equal(self, at: NDArray[np.intp], codes: Codes, columns: Columns) -> NDArray[np.intp]:
        """For each of these keys the position of the key at this place of the order, if it is the same; -1 if not. Only
        values of the same length are read, so that they are not larger than those of the given keys."""
        at = np.minimum(at, len(self._codes) - 1)
        positions, is_same = self._positions[at], self._codes[at] == codes
        for given, lengths in zip(columns, self._lengths, strict=True):
            if lengths is not None:
                is_same &= lengths[positions] == _lengths(given)
        read = pa.array(positions, mask=~is_same)
        for given, own in zip(columns, self._columns, strict=True):
            is_same &= np.asarray(pc.fill_null(pc.equal(given, own.take(read)), False))
        return np.where(is_same, positions, -1)


def _lengths(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int32] | None:
    """The length of each text in bytes; None for other types."""
    return np.asarray(pc.binary_length(column)) if pa.types.is_string(column.type) else None
