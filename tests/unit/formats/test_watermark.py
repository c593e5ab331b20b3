"""Whatever somebody writes into a watermark's place: `Watermark.parse` gives a whole one, or None, and never raises."""

from __future__ import annotations

import json
import random
from typing import Any

from tidemark.formats.watermark import LONGEST_BYTES, Watermark
from tidemark.names import TableName

MARK = Watermark("high", "shop", 3, "b1", "shop.orders", "1-7", "6d0cf5b4-2c3f-4a52-9b0e-2f3a5f3e9a11")


def is_whole(mark: Watermark) -> bool:
    return (
        mark.side in ("low", "high")
        and type(mark.generation) is int
        and all(type(getattr(mark, name)) is str for name in mark.__struct_fields__ if name != "generation")
    )


def test_a_watermark_comes_back_as_it_was_written() -> None:
    assert Watermark.parse(MARK.content().encode()) == MARK


def test_the_longest_names_fit() -> None:
    table = str(TableName("\x01" * 63, "\x01" * 63))
    longest = Watermark("high", "p" * 64, 2**31, "b" * 64, table, "1000000-1000000", MARK.attempt)
    assert Watermark.parse(longest.content().encode()) == longest
    assert len(longest.content()) < LONGEST_BYTES / 2


def test_bytes_that_were_changed_anywhere_never_raise() -> None:
    chance = random.Random(20)
    content = MARK.content().encode()
    for _ in range(20_000):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(changed))
            match chance.randrange(4):
                case 0:
                    changed[at] = chance.randrange(256)
                case 1:
                    del changed[at : at + chance.randint(1, 20)]
                case 2:
                    changed[at:at] = chance.choice(
                        [b"[", b"{", b'"', b"\\ud800", b"null", b"-1e999", b"\\u0000", b"1" * 99]
                    )
                case _:
                    changed[at:at] = changed[: chance.randint(1, 40)]
            changed = changed or bytearray(b" ")
        mark = Watermark.parse(bytes(changed))
        assert mark is None or is_whole(mark)


def test_values_of_any_type_in_any_field_never_raise() -> None:
    chance = random.Random(21)
    raw = json.loads(MARK.content())

    def value(depth: int = 0) -> Any:
        match chance.randrange(9 if depth < 4 else 7):
            case 0:
                return None
            case 1:
                return chance.choice([True, False])
            case 2:
                return chance.choice([0, -1, 2**70, 1.5, float("nan"), float("inf")])
            case 3:
                return chance.choice(["", "high", "\ud800", "\0", "x" * 5000, "watermark"])
            case 4:
                return chance.choice(list(raw.values()))
            case 5 | 6:
                return "text"
            case 7:
                return [value(depth + 1) for _ in range(chance.randrange(4))]
            case _:
                return {chance.choice([*raw, "other"]): value(depth + 1) for _ in range(chance.randrange(4))}

    for _ in range(20_000):
        changed = {**raw, **{chance.choice([*raw, "other"]): value() for _ in range(chance.randint(1, 3))}}
        mark = Watermark.parse(json.dumps(changed).encode())
        assert mark is None or is_whole(mark)
