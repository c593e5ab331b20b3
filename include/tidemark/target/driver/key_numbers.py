"""Turns each key into one number. Equal keys have equal numbers, and few other keys have.

    a whole number            itself
    a text                    eight of its bytes, from the place on where the texts of a set differ most
    several of these          their numbers, side by side in 64 bits if they fit, else mixed

Numbers are sorted and found in a fraction of the time in which texts are hashed. Keys that ascend have numbers that
ascend, or nearly do. Whoever finds a number must compare the keys, unless they are single whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Unsigned = NDArray[np.uint64]
Numbers = NDArray[np.int64] | Unsigned

_WIDTH: Final = 8  # bytes of a text in a number
_SAMPLE: Final = 1_000  # texts, to choose these bytes
_MOST_PLACES: Final = 16  # tried, where these bytes may begin
_FACTOR: Final = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio: its products spread well


def have_numbers(columns: Sequence[pa.ChunkedArray]) -> bool:
    """Whether keys of these columns have numbers."""
    return all(
        (pa.types.is_integer(column.type) or pa.types.is_string(column.type)) and not column.null_count
        for column in columns
    )


def are_whole_numbers(columns: Sequence[pa.ChunkedArray]) -> bool:
    """Whether each key of these columns is one whole number, so that different keys have different numbers."""
    return len(columns) == 1 and pa.types.is_integer(columns[0].type)


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """Computes the numbers of keys of one table.

    Per column `begins` is the place in a text from which on its bytes are taken, `least` is what is subtracted from a
    value's number, and `steps` by what the number so far is multiplied before it is added.
    """

    begins: Sequence[int]
    least: Sequence[np.uint64]
    steps: Sequence[np.uint64]

    @classmethod
    def for_set(cls, columns: Sequence[pa.ChunkedArray]) -> tuple[KeyNumbers, Numbers]:
        """The way to compute numbers of which few of these keys share one, and their numbers."""
        begins = [_telling_place(column) if pa.types.is_string(column.type) else 0 for column in columns]
        if are_whole_numbers(columns):
            whole_numbers = cls(begins, [np.uint64(0)], [np.uint64(1)])
            return whole_numbers, whole_numbers.of(columns)
        own = _of_columns(columns, begins)
        least = [numbers.min(initial=np.iinfo(np.uint64).max) for numbers in own]
        bits = [int(numbers.max(initial=low) - low).bit_length() for numbers, low in zip(own, least, strict=True)]
        fit = sum(bits) <= 64
        key_numbers = cls(begins, least, [np.uint64(1 << min(n, 63) if fit else _FACTOR) for n in bits])
        return key_numbers, key_numbers._together(own)

    def of(self, columns: Sequence[pa.ChunkedArray]) -> Numbers:
        """The numbers of keys, of the set or others, without NULLs."""
        if are_whole_numbers(columns):
            return np.asarray(columns[0].to_numpy(), np.int64)
        return self._together(_of_columns(columns, self.begins))

    def _together(self, own: Sequence[Unsigned]) -> Unsigned:
        """The numbers of keys from those of their columns, which it overwrites."""
        together, *others = own
        together -= self.least[0]
        for numbers, least, step in zip(others, self.least[1:], self.steps[1:], strict=True):
            numbers -= least
            together *= step
            together += numbers
        return together


def _of_columns(columns: Sequence[pa.ChunkedArray], begins: Sequence[int]) -> list[Unsigned]:
    """The numbers of each column's values in new arrays."""
    return [
        _of_texts(column, place) if pa.types.is_string(column.type) else _of_integers(column)
        for column, place in zip(columns, begins, strict=True)
    ]


def _of_integers(column: pa.ChunkedArray) -> Unsigned:
    """The numbers of integers, those of negative ones below the others."""
    numbers = np.array(column.to_numpy(), np.int64).view(np.uint64)
    numbers ^= np.uint64(2**63)
    return numbers


def _of_texts(column: pa.ChunkedArray, begins: int) -> Unsigned:
    """Eight bytes of each text, from `begins` on, as numbers in the order of these bytes. A text that ends before is
    continued by zeros."""
    numbers = [np.empty(0, np.uint64)]
    for chunk in column.chunks:
        _, offsets, content = chunk.buffers()
        ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
        first, last = (int(ends[0]), int(ends[-1])) if len(chunk) else (0, 0)
        padded = np.zeros(last - first + 2 * _WIDTH, np.uint8)
        if content is not None:
            padded[: last - first] = np.frombuffer(content, np.uint8)[first:last]
        at_each_byte = np.ndarray(len(padded) - _WIDTH, ">u8", padded.data, strides=(1,))
        starts = ends[:-1] - first + begins
        own = at_each_byte[np.minimum(starts, last - first)].astype(np.uint64)
        room = np.clip(ends[1:] - first - starts, 0, _WIDTH)
        if (room < _WIDTH).any():
            shift = (8 * (_WIDTH - room)).astype(np.uint64)
            own = np.where(room == 0, np.uint64(0), (own >> shift) << shift)
        numbers.append(own)
    return np.concatenate(numbers)


def _telling_place(column: pa.ChunkedArray) -> int:
    """From which byte on the texts differ most, among the places behind what all of them begin with. The first of equal
    places: there the numbers ascend where the texts do."""
    if not len(column):
        return 0
    between = pc.min_max(column.cast(pa.binary())).as_py()
    least, most = between["min"], between["max"]
    common = next((n for n, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), min(len(least), len(most)))
    sample = column.take(pa.array(np.linspace(0, len(column) - 1, _SAMPLE).astype(np.int64)))
    places = range(common, max(map(len, sample.cast(pa.binary()).to_pylist())) + 1, _WIDTH)[:_MOST_PLACES]
    return max(places or [common], key=lambda begins: len(np.unique(_of_texts(sample, begins))))
