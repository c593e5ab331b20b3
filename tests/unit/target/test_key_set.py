"""A set of keys in columns holds what a set of tuples holds."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest

from tidemark.target.driver import key_set
from tidemark.target.driver.key_set import GIVEN_PER_KEY, KeySet

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


@pytest.mark.parametrize("of", [pa.int16(), pa.int64(), pa.date32(), pa.timestamp("us", "UTC")])
@pytest.mark.parametrize("given_per_key", [0, 1, GIVEN_PER_KEY])
def test_whole_numbers_have_the_same_places_by_order_and_by_hash(
    of: pa.DataType, given_per_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_set, "GIVEN_PER_KEY", given_per_key)
    rng = random.Random(2)
    raw = pa.int16() if of == pa.int16() else pa.int32() if of == pa.date32() else pa.int64()
    for count in (0, 1, 40):
        for chosen in (rng.sample(range(-50, 50), count), sorted(rng.sample(range(-50, 50), count))):
            keys = KeySet([of], [[pa.chunked_array([pa.array(chosen, raw)]).cast(of)]])
            given = [*range(-60, 60)] if count == 40 else [*chosen, 99][: count + 1]
            places = keys.places([pa.chunked_array([pa.array(given, raw)]).cast(of)])
            assert places.to_pylist() == [chosen.index(key) if key in chosen else None for key in given]
            assert not keys.has_doubles


def test_keys_that_follow_each_other_in_the_set_are_found_there_and_others_where_they_are() -> None:
    own = [*range(0, 40, 2), *range(41, 80, 2)]
    for chosen in (own, own[::-1], own[20:] + own[:20]):
        keys = KeySet([pa.int64()], [[pa.chunked_array([chosen])]])
        given = [
            own[:5],
            own[7:19],
            own[18:23],
            own[30:],
            [*own[3:6], 7],
            [own[5], own[4]],
            [own[5], own[7]],
            [99, 101],
            [],
        ]
        pieces = [[pa.chunked_array([pa.array(piece, pa.int64())])] for piece in given]
        assert [of.to_pylist() for of in keys.places_of(pieces)] == [
            [chosen.index(key) if key in chosen else None for key in piece] for piece in given
        ]


@pytest.mark.parametrize("keys", [[2, 1, 2], [1, 2, 2], [None, None, 1]])
def test_a_key_that_was_given_twice_is_noticed(keys: list[int | None]) -> None:
    assert KeySet([pa.int64()], [[pa.chunked_array([pa.array(keys, pa.int64())])]]).has_doubles


def test_a_key_without_a_value_is_looked_up_too() -> None:
    keys = KeySet([pa.int64()], [[pa.chunked_array([[1, 2]])]])
    assert keys.places([pa.chunked_array([pa.array([2, None], pa.int64())])]).to_pylist() == [1, None]
