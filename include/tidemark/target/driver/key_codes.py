"""Turns each key into a code of 64 bits. Equal keys have equal codes, and few other keys have.

    a whole number            itself
    a text                    eight of its bytes, from the place on where the texts of a set differ most
    several columns           the codes of their values, side by side if they fit into 64 bits, else mixed

Codes in order are sorted and searched in a fraction of the time in which texts are hashed. Those of keys in order are,
unless they are mixed. Whoever finds a code must compare the keys, unless each key is one whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Unsigned = NDArray[np.uint64]
Codes = NDArray[np.int64] | Unsigned

_WIDTH: Final = 8  # bytes of a text in a code
_RUNS: Final = 32  # of as many neighbours each: the sample of texts that chooses these bytes
_MOST_PLACES: Final = 40  # tried, where these bytes may begin
_NEARLY_ALL: Final = 0.98  # of these texts: two of ten million uuids are likely to have the first eight bytes in common
_FACTOR: Final = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio: its products spread well


def have_codes(columns: Sequence[pa.ChunkedArray]) -> bool:
    """Whether keys of these columns have codes."""
    return all(
        (pa.types.is_integer(column.type) or pa.types.is_string(column.type)) and not column.null_count
        for column in columns
    )


@dataclass(frozen=True, slots=True)
class KeyCodes:
    """The way to compute codes of keys.

    Per column `places` says from which byte on a text's bytes are taken, `least` what is subtracted from the code of a
    value, and `dropped` how many low bits are dropped then, which are zero in the whole set: those behind the end of a
    currency's name, say. Per further column `steps` says by what the code so far is multiplied before that of its value
    is added. `is_exact`: each key is one whole number. Only then no other key has its code, be it in the set or not.
    """

    places: Sequence[int]
    least: Sequence[np.uint64]
    dropped: Sequence[np.uint64]
    steps: Sequence[np.uint64]
    is_exact: bool = False

    @classmethod
    def for_set(cls, columns: Sequence[pa.ChunkedArray]) -> tuple[KeyCodes, Codes]:
        """The way that suits these keys, so that few of them share a code, and their codes."""
        if len(columns) == 1 and pa.types.is_integer(columns[0].type):
            whole_numbers = cls((), (), (), (), is_exact=True)
            return whole_numbers, whole_numbers.of(columns)
        places = [_telling_place(column) if pa.types.is_string(column.type) else 0 for column in columns]
        of_columns = _codes_of_columns(columns, places)
        least = [codes.min(initial=np.iinfo(np.uint64).max) for codes in of_columns]
        used = [int(np.bitwise_or.reduce(codes - low)) for codes, low in zip(of_columns, least, strict=True)]
        dropped = [max(0, (bits & -bits).bit_length() - 1) for bits in used]
        widths = [bits.bit_length() - zeros for bits, zeros in zip(used, dropped, strict=True)]
        fit = sum(widths) <= 64
        steps = [np.uint64(1 << min(width, 63) if fit else _FACTOR) for width in widths[1:]]
        key_codes = cls(places, least, [np.uint64(zeros) for zeros in dropped], steps)
        return key_codes, key_codes._joined(of_columns)

    def of(self, columns: Sequence[pa.ChunkedArray]) -> Codes:
        """The codes of keys, of the set or others, without NULLs."""
        if self.is_exact:
            return np.asarray(columns[0].to_numpy(), np.int64)
        return self._joined(_codes_of_columns(columns, self.places))

    def _joined(self, of_columns: Sequence[Unsigned]) -> Unsigned:
        """The codes of keys from those of their columns, whose arrays are overwritten."""
        for codes, least, dropped in zip(of_columns, self.least, self.dropped, strict=True):
            codes -= least
            codes >>= dropped
        joined, *others = of_columns
        for codes, step in zip(others, self.steps, strict=True):
            joined *= step
            joined += codes
        return joined


def _codes_of_columns(columns: Sequence[pa.ChunkedArray], places: Sequence[int]) -> list[Unsigned]:
    """The codes of each column's values, in new arrays."""
    return [
        _codes_of_texts(column, place) if pa.types.is_string(column.type) else _codes_of_integers(column)
        for column, place in zip(columns, places, strict=True)
    ]


def _codes_of_integers(column: pa.ChunkedArray) -> Unsigned:
    """The integers, the negative ones below the others."""
    codes = np.array(column.to_numpy(), np.int64).view(np.uint64)
    codes ^= np.uint64(2**63)
    return codes


def _codes_of_texts(column: pa.ChunkedArray, place: int) -> Unsigned:
    """Eight bytes of each text, from `place` on, as numbers in the order of these bytes. Behind a text's end are
    zeros."""
    codes = [np.empty(0, np.uint64)]
    for chunk in column.chunks:
        if not len(chunk):
            continue
        _, offsets, content = chunk.buffers()
        ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
        size = int(ends[-1] - ends[0])
        padded = np.zeros(size + 2 * _WIDTH, np.uint8)
        if content is not None:
            padded[:size] = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
        ends -= ends[0]
        at_each_byte = np.ndarray(size + _WIDTH, ">u8", padded.data, strides=(1,))
        begins = ends[:-1] + place
        own = at_each_byte[np.minimum(begins, size)].astype(np.uint64)
        room = np.clip(ends[1:] - begins, 0, _WIDTH)
        if (room < _WIDTH).any():
            shift = (8 * (_WIDTH - room)).astype(np.uint64)
            own = np.where(room == 0, np.uint64(0), (own >> shift) << shift)
        codes.append(own)
    return np.concatenate(codes)


def _telling_place(column: pa.ChunkedArray) -> int:
    """The first byte from which on nearly all texts differ that differ anywhere in eight bytes, behind what all of them
    begin with. The further behind it lies, the less the codes are in the order of the texts. It is judged by a sample
    of neighbours, which have most in common if the texts are in order."""
    if not len(column):
        return 0
    runs = np.linspace(0, max(0, len(column) - _RUNS), _RUNS).astype(np.int64)
    rows = np.minimum(np.add.outer(runs, np.arange(_RUNS)).ravel(), len(column) - 1)
    sample = column.take(pa.array(rows))
    texts = sample.cast(pa.binary()).to_pylist()
    least, longest = min(texts), max(map(len, texts))
    common = next((n for n, pair in enumerate(zip(least, max(texts), strict=False)) if pair[0] != pair[1]), len(least))
    places = range(common, max(common + 1, min(common + _MOST_PLACES, longest - _WIDTH + 1)))
    different = [len(np.unique(_codes_of_texts(sample, place))) for place in places]
    return next(place for place, n in zip(places, different, strict=True) if n >= _NEARLY_ALL * max(different))
