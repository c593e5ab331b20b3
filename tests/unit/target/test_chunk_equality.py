"""Whether two columns are stored alike."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidemark.target.chunks.chunk_equality import _are_equal

FLOATS = pa.float64()
TEXTS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("of", "one", "other", "equal"),
    [
        (FLOATS, [0.5, None, float("nan")], [0.5, None, float("nan")], True),
        (FLOATS, [0.0], [-0.0], False),
        (FLOATS, [float("nan")], [None], False),
        (FLOATS, [float("nan")], [1.0], False),
        (FLOATS, [1.0], [float("nan")], False),
        (pa.float32(), [1.5], [1.25], False),
        (pa.list_(FLOATS), [[0.0, float("nan")]], [[0.0, float("nan")]], True),
        (pa.list_(FLOATS), [[0.0]], [[-0.0]], False),
        (TEXTS, [[("a", "1"), ("b", None)]], [[("b", None), ("a", "1")]], True),
        (TEXTS, [[("a", "1")]], [[("a", "2")]], False),
        (pa.string(), ["a", None], ["a", ""], False),
        (pa.string(), [None, "a"], ["a", None], False),
        (pa.string(), ["a", None], ["a", None], True),
        (pa.decimal128(9, 2), [Decimal("1.10")], [Decimal("1.1")], True),
        (pa.int64(), [], [], True),
        (pa.int64(), [2**63 - 1], [2**63 - 2], False),
        (pa.bool_(), [None], [False], False),
    ],
)
def test_only_what_is_stored_alike_is_equal(of: pa.DataType, one: list[Any], other: list[Any], equal: bool) -> None:
    columns = [pa.chunked_array([pa.array(values, of)], of) for values in (one, other)]
    assert _are_equal(*columns) is equal
    assert _are_equal(*reversed(columns)) is equal
