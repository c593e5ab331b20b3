"""Defines what the Parquet footer of a file of changes records about its rows: `Extent`. Pure.

A merge adds a staged file to `history` without rewriting, if the file's extent shows that none of its changes needs
computing. Without an extent, the merge computes all rows, with the same result. So an extent needs no format number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from tidemark import strict_json
from tidemark.names import ORDER_COLUMNS
from tidemark.strict_json import JsonRecord

_KEY: Final = "tidemark.extent"

# Not NULL in a row that history does not have as it was staged: values that were not sent, and the row's key, or in a
# table without one the whole row, as it was before.
_REFERS_BACK: Final = ("_unchanged", "_old_key", "_old")

OrderKey = tuple[int, int]


class Extent(JsonRecord, frozen=True):
    """The order keys (R1) of a file's first and last change, and whether each of its rows is what history has of it."""

    first: OrderKey
    last: OrderKey
    is_self_contained: bool

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch]) -> Extent:
        """Of rows in R1 order, at least one."""
        names = [name for name in _REFERS_BACK if name in batches[0].schema.names]
        is_self_contained = all(rows.column(name).null_count == rows.num_rows for rows in batches for name in names)
        return cls(_order_key(batches[0], 0), _order_key(batches[-1], batches[-1].num_rows - 1), is_self_contained)

    def followed_by(self, other: Extent) -> Extent:
        return replace(self, last=other.last, is_self_contained=self.is_self_contained and other.is_self_contained)

    def to_metadata(self) -> dict[str, str]:
        return {_KEY: json.dumps(self.to_json())}

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> Extent | None:
        """None if the file says nothing of itself, or not in these words."""
        try:
            return cls.from_json(strict_json.parse((metadata or {})[_KEY.encode()]))
        except (KeyError, ValueError):
            return None


def _order_key(rows: pa.RecordBatch, number: int) -> OrderKey:
    lsn, ordinal = (rows.column(name)[number].as_py() for name in ORDER_COLUMNS)
    return lsn, ordinal
