"""A set of keys in columns holds what a set of tuples holds."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa

from tidemark.target.driver.key_set import KeySet

TYPES = [pa.int32(), pa.string(), pa.timestamp("us", "UTC")]


def columns(keys: list[tuple[int, str, int]]) -> list[pa.ChunkedArray]:
    arrays = [pa.array([key[n] for key in keys], pa.int64() if n == 2 else of) for n, of in enumerate(TYPES)]
    return [pa.chunked_array([array]).cast(of) for array, of in zip(arrays, TYPES, strict=True)]


def test_of_several_columns_the_combinations_count() -> None:
    every = [*itertools.product((1, 2, 3), ("a", "ä", ""), (-(2**60), 0, 7))]
    rng = random.Random(1)
    for count in (0, 1, 5, 20):
        chosen = rng.sample(every, count)
        keys = KeySet(TYPES, [columns(chosen[:3]), columns(chosen[3:])])
        assert keys.holds(columns(every)).to_pylist() == [key in chosen for key in every]
        left = keys.without(columns(every[:9]))
        assert left.holds(columns(every)).to_pylist() == [key in chosen and key not in every[:9] for key in every]


def test_a_key_of_a_narrower_type_is_the_same_number() -> None:
    keys = KeySet([pa.int64()], [[pa.chunked_array([pa.array([1, 2], pa.int32())])]])
    assert keys.holds([pa.chunked_array([pa.array([2, 2**40])])]).to_pylist() == [True, False]


def test_pieces_are_asked_about_together_and_answered_one_by_one() -> None:
    keys = KeySet([pa.int64()], [[pa.chunked_array([[3, 1]])], [pa.chunked_array([[2]])]])
    pieces = [
        [pa.chunked_array([[1, 9], [2]])],
        [pa.chunked_array([pa.array([], pa.int64())])],
        [pa.chunked_array([[3]])],
    ]
    assert [of.to_pylist() for of in keys.places_of(pieces)] == [[1, None, 2], [], [0]]
    assert keys.places_of([]) == []
