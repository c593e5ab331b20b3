"""Keys have the same places by their codes as by their hashes."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemark.target.driver import key_set
from tidemark.target.driver.key_codes import KeyCodes
from tidemark.target.driver.key_set import MOST_ALIKE, KeySet

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
    "an integer and a short text": (
        [INT, TEXT],
        lambda rng: (rng.randrange(-(2**39), 2**39), rng.choice(["usd", "eur", "btc", ""])),
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
    monkeypatch.setattr(key_set, "LEAST_CODED", 1)


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
        assert keys._coded is not None or kind == "words"
        places = keys.places(columns(given, types, pieces=2))
        assert places.to_pylist() == [own.index(key) if key in own else None for key in given]
        assert not keys.has_doubles
        assert KeySet(types, [columns([*own, own[-1]], types)]).has_doubles


def test_keys_with_one_code_are_told_apart() -> None:
    own = [f"{n:03}-{'x' * 20}-{name}" for n in range(100) for name in "abc"[: 3 if n % 20 == 0 else 1]]
    given = [f"{n:03}-{'x' * 20}-{name}" for n in range(110) for name in "cba"]
    keys = KeySet([TEXT], [columns([(text,) for text in own], [TEXT])])
    assert keys._coded is not None
    assert keys._coded.most_alike == 3
    places = keys.places(columns([(text,) for text in given], [TEXT]))
    assert places.to_pylist() == [own.index(text) if text in own else None for text in given]
    pieces = [columns([(text,) for text in piece], [TEXT]) for piece in (own[3:90], *([text] for text in own))]
    assert [piece.to_pylist() for piece in keys.places_of(pieces)] == [[*range(3, 90)], *([n] for n in range(len(own)))]
    swapped = [*own[3:22], own[24], own[22], own[23], *own[25:90]]
    assert {text[:3] for text in own[22:25]} == {"020"}
    assert keys.places(columns([(text,) for text in swapped], [TEXT])).to_pylist() == [own.index(t) for t in swapped]
    assert not keys.has_doubles


@pytest.mark.parametrize(("names", "has_doubles"), [("abcd", False), ("abca", True), ("abbc", True), ("abcc", True)])
def test_a_key_that_was_given_twice_is_noticed_among_those_with_its_code(names: str, has_doubles: bool) -> None:
    own = [(f"{n:03}{'x' * 20}{name}",) for n in range(50) for name in (names if n == 20 else "a")]
    keys = KeySet([TEXT], [columns(own, [TEXT])])
    assert keys._coded is not None
    assert keys._coded.most_alike == 4
    assert keys.has_doubles == has_doubles


def test_keys_outside_the_range_of_the_set_are_not_those_whose_codes_they_have() -> None:
    own, given = [(0, 0), (1, 7)], [(0, 8), (1, -1), (2, -8), (-1, 15), (1, 7)]
    key_codes, _ = KeyCodes.for_set(columns(own, [INT, INT]))
    assert key_codes.of(columns([(1, 0), (0, 8)], [INT, INT])).tolist() == [8, 8]
    keys = KeySet([INT, INT], [columns([*own, (1, 0)], [INT, INT])])
    assert keys._coded is not None
    assert keys.places(columns(given, [INT, INT])).to_pylist() == [None, None, None, None, 1]


def test_no_more_keys_with_one_code_are_counted_than_matter() -> None:
    coded = KeySet([INT], [columns([(7,)] * 100, [INT])])._coded
    assert coded is not None
    assert coded.most_alike == MOST_ALIKE + 1


def test_an_empty_piece_may_have_no_offsets() -> None:
    empty = pa.Array.from_buffers(TEXT, 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    keys = KeySet([TEXT], [[pa.chunked_array([pa.array(["a", "b"]), empty])]])
    assert keys.places([pa.chunked_array([empty, pa.array(["b"])])]).to_pylist() == [1]


@pytest.mark.parametrize(
    ("types", "keys", "is_coded"),
    [([INT], [(1,)], True), ([TEXT], [("a",), ("b",)], False), ([TEXT], [("a",), ("b",), ("c",)], True)],
)
def test_a_small_set_is_hashed_unless_its_keys_are_whole_numbers(
    types: list[pa.DataType], keys: list[Key], is_coded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_set, "LEAST_CODED", 3)
    assert (KeySet(types, [columns(keys, types)])._coded is not None) == is_coded


@pytest.mark.parametrize(("most_alike", "is_coded"), [(MOST_ALIKE, True), (MOST_ALIKE + 1, False)])
def test_if_too_many_keys_have_one_code_all_are_hashed(most_alike: int, is_coded: bool) -> None:
    texts = [f"{n:08}{'x' * 200}{m}" for n in range(100) for m in range(most_alike if n == 50 else 1)]
    keys = KeySet([TEXT], [columns([(text,) for text in texts], [TEXT])])
    assert (keys._coded is not None) == is_coded
    assert keys.places(columns([(texts[53],), ("?",)], [TEXT])).to_pylist() == [53, None]
    assert not keys.has_doubles


def test_keys_of_many_bytes_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [(f"{n:03}",) for n in range(100)]
    monkeypatch.setattr(key_set, "MAX_CODED_BYTES", columns(own, [TEXT])[0].nbytes)
    keys = KeySet([TEXT], [columns(own, [TEXT])])
    assert keys._coded is not None
    assert keys.places(columns(own[1:], [TEXT])).type == pa.int64()
    assert keys.places(columns([*own, ("x",)], [TEXT])).type == pa.int32()
    assert KeySet([TEXT], [columns([*own, ("x",)], [TEXT])])._coded is None


def test_what_is_missing_is_never_compared_with_a_long_key() -> None:
    """Which would be copied for each of them, and be more than an array of texts holds."""
    own = [f"{n:08}" for n in range(2_000)] + ["f" + "x" * 500_000]
    keys = KeySet([TEXT], [columns([(text,) for text in own], [TEXT])])
    assert keys._coded is not None
    given = [(f"f{'x' * 7}{n}",) for n in range(5_000)]
    assert keys.places(columns(given, [TEXT])).null_count == len(given)


def test_no_keys_are_looked_up_without_hashing_the_set() -> None:
    for types, key in (([INT], (1,)), ([TEXT], ("a",)), ([INT, TEXT], (1, "a"))):
        nothing = columns([], types)
        keys = KeySet(types, [columns([key], types)])
        assert keys.places(nothing).to_pylist() == []
        assert "_values" not in vars(keys)
        assert KeySet(types, [nothing]).places(nothing).to_pylist() == []
        assert not KeySet(types, [nothing]).has_doubles


def test_keys_without_a_value_are_hashed() -> None:
    with_null, without = pa.chunked_array([[None, "a"]], TEXT), pa.chunked_array([["", "a"]], TEXT)
    assert KeySet([TEXT], [[without]]).places([with_null]).to_pylist() == [None, 1]
    assert KeySet([TEXT], [[with_null]]).places([without]).to_pylist() == [None, 1]
    assert KeySet([TEXT], [[with_null]]).places([with_null]).to_pylist() == [0, 1]


@pytest.mark.parametrize("of", [pa.bool_(), pa.binary(), pa.decimal128(9, 2)])
def test_keys_of_other_types_are_hashed(of: pa.DataType) -> None:
    assert KeySet([INT, of], [[pa.chunked_array([], INT), pa.chunked_array([], of)]])._coded is None


def test_neighbours_with_one_code_do_not_take_the_order_from_the_others() -> None:
    rng = random.Random(5)
    own = sorted(a_uuid(rng) for _ in range(500))
    own[7] = own[6][:8] + "-ffff-ffff"
    key_codes, codes = KeyCodes.for_set(columns([(text,) for text in own], [TEXT]))
    assert key_codes.places == [0]
    assert (codes[1:] >= codes[:-1]).all()
    assert codes[6] == codes[7]


@pytest.mark.parametrize(
    "kind", ["integers", "uuids", "texts that begin alike", "two integers", "an integer and a short text"]
)
def test_codes_are_in_the_order_of_the_keys(kind: str) -> None:
    types, draw = KINDS[kind]
    rng = random.Random(3)
    own = columns(sorted({draw(rng) for _ in range(300)}), types)
    key_codes, codes = KeyCodes.for_set(own)
    assert np.array_equal(codes, key_codes.of(own))
    assert (codes[1:] >= codes[:-1]).all()
    assert len(np.unique(codes)) > 200
