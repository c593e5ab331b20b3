"""Keys have the same places by their numbers as by their hashes."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemark.target.driver import key_set
from tidemark.target.driver.key_numbers import KeyNumbers
from tidemark.target.driver.key_set import KeySet

Key = tuple[Any, ...]
Draw = Callable[[random.Random], Key]

INT, TEXT = pa.int64(), pa.string()


def a_uuid(rng: random.Random) -> str:
    return f"{rng.randrange(2**32):08x}-{rng.randrange(2**16):04x}-{rng.randrange(2**16):04x}"


def a_word(rng: random.Random) -> str:
    return "".join(rng.choices("ab\0é€😀", k=rng.randrange(12)))


# Per kind the types of the columns, and how to draw a key.
KINDS: dict[str, tuple[list[pa.DataType], Draw]] = {
    "integers": ([INT], lambda rng: (rng.choice([rng.randrange(-(2**63), 2**63), rng.randrange(300)]),)),
    "uuids": ([TEXT], lambda rng: (a_uuid(rng),)),
    "texts that begin alike": ([TEXT], lambda rng: (f"https://example.org/orders/{a_uuid(rng)[: rng.randrange(30)]}",)),
    "texts that end alike": ([TEXT], lambda rng: (f"{rng.randrange(10**6)}@example.org",)),
    "texts that differ far behind": ([TEXT], lambda rng: (f"{rng.choice('ab')}{'-' * 30}{a_uuid(rng)}",)),
    "words": ([TEXT], lambda rng: (a_word(rng),)),
    "two integers": ([pa.int16(), INT], lambda rng: (rng.randrange(-40, 40), rng.randrange(2**40))),
    "two wide integers": ([INT, INT], lambda rng: (rng.randrange(-(2**63), 2**63), rng.randrange(-(2**63), 2**63))),
    "an integer and a text": (
        [pa.int32(), TEXT],
        lambda rng: (rng.randrange(20), rng.choice(string.ascii_letters) * 9),
    ),
    "two texts": ([TEXT, TEXT], lambda rng: (a_uuid(rng), rng.choice(["usd", "eur", ""]))),
    "a time": ([pa.timestamp("us", "UTC")], lambda rng: (rng.randrange(-(2**62), 2**62),)),
}


def columns(keys: list[Key], types: list[pa.DataType], pieces: int = 1) -> list[pa.ChunkedArray]:
    """The columns of these keys, each in several chunks, which are parts of larger arrays."""
    found = []
    for n, of in enumerate(types):
        raw = INT if pa.types.is_timestamp(of) else of
        whole = pa.array(["?" if raw == TEXT else 0, *(key[n] for key in keys)], raw).cast(of).slice(1)
        each = -(-len(keys) // pieces) or 1
        found.append(pa.chunked_array([whole.slice(at, each) for at in range(0, len(keys), each)], of))
    return found


@pytest.fixture(autouse=True)
def of_small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_set, "LEAST_NUMBERED", 1)


@pytest.mark.parametrize("count", [1, 3, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_every_kind_have_their_places(kind: str, count: int) -> None:
    types, draw = KINDS[kind]
    for seed in range(10):
        rng = random.Random(seed)
        drawn = list(dict.fromkeys(draw(rng) for _ in range(2 * count)))
        own = sorted(drawn[:count]) if seed % 2 else drawn[:count]
        given = own[count // 4 : count // 2] if seed % 3 == 0 else rng.sample(drawn, len(drawn))
        keys = KeySet(types, [columns(own, types, pieces=3)])
        assert keys._in_order is not None or kind == "words"
        places = keys.places(columns(given, types, pieces=2))
        assert places.to_pylist() == [own.index(key) if key in own else None for key in given]
        assert not keys.has_doubles
        assert KeySet(types, [columns([*own, own[-1]], types)]).has_doubles


def test_keys_that_share_a_number_are_told_apart() -> None:
    own = [f"{n:03}-{'x' * 20}-{name}" for n in range(100) for name in "abc"[: 3 if n % 20 == 0 else 1]]
    given = [f"{n:03}-{'x' * 20}-{name}" for n in range(110) for name in "cba"]
    keys = KeySet([TEXT], [columns([(text,) for text in own], [TEXT])])
    assert keys._in_order is not None
    assert 0 < keys._in_order.shares.sum() < len(own)
    places = keys.places(columns([(text,) for text in given], [TEXT]))
    assert places.to_pylist() == [own.index(text) if text in own else None for text in given]
    follow_each_other = columns([(text,) for text in own[3:90]], [TEXT])
    assert keys.places(follow_each_other).to_pylist() == [*range(3, 90)]
    assert not keys.has_doubles


def test_a_small_set_is_hashed_unless_its_keys_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_set, "LEAST_NUMBERED", 3)
    for types, keys in (([INT], [(1,)]), ([TEXT], [("a",), ("b",)]), ([TEXT], [("a",), ("b",), ("c",)])):
        is_hashed = KeySet(types, [columns(keys, types)])._in_order is None
        assert is_hashed == (len(keys) == 2)


@pytest.mark.parametrize("many", [True, False])
def test_if_many_keys_share_numbers_all_are_hashed(many: bool) -> None:
    texts = [f"{n:08}{'x' * 200}{m}" for n in range(100) for m in range(2 if many or n < 5 else 1)]
    keys = KeySet([TEXT], [columns([(text,) for text in texts], [TEXT])])
    assert (keys._in_order is None) == many
    assert keys.places(columns([(texts[7],), ("?",)], [TEXT])).to_pylist() == [7, None]


def test_keys_without_a_value_are_hashed() -> None:
    with_null, without = pa.chunked_array([[None, "a"]], TEXT), pa.chunked_array([["", "a"]], TEXT)
    assert KeySet([TEXT], [[without]]).places([with_null]).to_pylist() == [None, 1]
    assert KeySet([TEXT], [[with_null]]).places([without]).to_pylist() == [None, 1]
    assert KeySet([TEXT], [[with_null]]).places([with_null]).to_pylist() == [0, 1]


@pytest.mark.parametrize("of", [pa.bool_(), pa.binary(), pa.decimal128(9, 2)])
def test_keys_of_other_types_are_hashed(of: pa.DataType) -> None:
    assert KeySet([INT, of], [[pa.chunked_array([], INT), pa.chunked_array([], of)]])._in_order is None


@pytest.mark.parametrize("kind", ["integers", "uuids", "texts that begin alike", "two integers"])
def test_numbers_ascend_as_the_keys_do(kind: str) -> None:
    types, draw = KINDS[kind]
    rng = random.Random(3)
    own = columns(sorted({draw(rng) for _ in range(300)}), types)
    key_numbers, numbers = KeyNumbers.for_set(own)
    assert np.array_equal(numbers, key_numbers.of(own))
    assert (numbers[1:] >= numbers[:-1]).all()
    assert len(np.unique(numbers)) > 200
