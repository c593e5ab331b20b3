"""PostgreSQL's text of values -> Arrow arrays of the target type: the one codec of stream and chunks (R8)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Converted:
    """`kept` is None where every value fits, else a boolean array: true where `values` is NULL or clamped instead."""

    values: pa.Array
    kept: pa.Array | None
    count: int


def convert(text: pa.Array, target: str, *, clamp: bool = True) -> Converted:
    """`text` is a string or binary array; with `clamp` false (keys) a value that does not fit becomes NULL."""
    raise NotImplementedError
