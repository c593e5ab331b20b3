"""Streams with bytes cut out, flipped, doubled and swapped, by seed: the decoder says so, or decodes what is there.

What may come of a damaged stream is the named error, or rows each of which its twin, one value at a time, reads in the
same bytes. Never another exception, and never a row that is not in the stream.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import pgoutput as wire
from tests.support.thorough import seeds_of_damage
from tests.unit.pgoutput.test_decoder import as_text, random_stream
from tidemark.errors import MalformedMessage, SchemaDisagrees
from tidemark.pgoutput.decoder import Decoder
from tidemark.pgoutput.messages import parse_relation

DAMAGES = 40

Messages = list[bytes]


def cut(random_: random.Random, messages: Messages) -> None:
    """A message loses its end, its beginning, or something in between."""
    at = random_.randrange(len(messages))
    one, other = sorted(random_.choices(range(len(messages[at]) + 1), k=2))
    messages[at] = messages[at][:one] + messages[at][other:]


def flip(random_: random.Random, messages: Messages) -> None:
    """Single bits of one message."""
    at = random_.randrange(len(messages))
    data = bytearray(messages[at])
    for _ in range(random_.choice((1, 1, 2, 8))):
        if data:
            data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    messages[at] = bytes(data)


def lengthen(random_: random.Random, messages: Messages) -> None:
    """A length or a count becomes one of those that overflow."""
    at = random_.randrange(len(messages))
    data = bytearray(messages[at])
    if len(data) >= 4:
        place = random_.randrange(len(data) - 3)
        data[place : place + 4] = struct.pack(">I", random_.choice((0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1)))
    messages[at] = bytes(data)


def drop(random_: random.Random, messages: Messages) -> None:
    del messages[random_.randrange(len(messages))]


def double(random_: random.Random, messages: Messages) -> None:
    at = random_.randrange(len(messages))
    messages.insert(random_.randrange(len(messages) + 1), messages[at])


def swap(random_: random.Random, messages: Messages) -> None:
    one, other = random_.choices(range(len(messages)), k=2)
    messages[one], messages[other] = messages[other], messages[one]


def join(random_: random.Random, messages: Messages) -> None:
    """Two messages arrive as one."""
    at = random_.randrange(len(messages))
    messages[at : at + 2] = [b"".join(messages[at : at + 2])]


DAMAGE = (cut, flip, lengthen, drop, double, swap, join)


def damage(random_: random.Random, messages: Messages) -> list[int]:
    """Once or several times; and where blocks of what is left end."""
    for _ in range(random_.choice((1, 1, 1, 2, 5))):
        if messages:
            random_.choice(DAMAGE)(random_, messages)
    return sorted(random_.sample(range(len(messages) + 1), min(2, len(messages))))


def refused_of_200(make: Callable[[random.Random], Messages], decode: Callable[[Messages, list[int]], object]) -> int:
    """How many of 200 that are damaged once are refused."""
    refused = 0
    for seed in range(200):
        random_ = random.Random(seed)
        messages = make(random_)
        random_.choice(DAMAGE)(random_, messages)
        try:
            decode(messages, [])
        except (MalformedMessage, SchemaDisagrees):
            refused += 1
    return refused


def decoded(messages: Messages, cuts: list[int]) -> list[tuple[str, dict[str, Any]]]:
    """Every row, as blocks that end at the cuts give them."""
    decoder = Decoder(as_text, 1)
    rows = []
    for start, stop in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        for table in decoder.decode(messages[start:stop]).changes:
            own = table.rows.drop_columns(["_generation", "_committed_at"]).to_pylist()
            rows += [(str(table.schema.table), row) for row in own]
    return rows


def in_the_bytes(messages: Messages) -> list[tuple[str, dict[str, Any]]]:
    """Every row, if the messages are those of a server: nothing stands between and behind the values."""
    changes = [*wire.read(messages)]
    said = [message for message in messages if message[:1] in (b"I", b"U", b"D")]
    assert [wire.written(change) for change in changes if change.op != "truncate"] == said
    rows = []
    for change in changes:
        schema = as_text(parse_relation(change.relation))
        rows.append((str(schema.table), wire.staged(change, schema)))
    return rows


@pytest.mark.parametrize("seed", seeds_of_damage(*range(8), below=400))
def test_a_damaged_stream_is_refused_by_name_or_holds_every_row_that_comes_of_it(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(DAMAGES):
        messages = random_stream(random_)
        cuts = damage(random_, messages)
        try:
            rows = decoded(messages, cuts)
        except (MalformedMessage, SchemaDisagrees):
            continue
        try:
            there = in_the_bytes(messages)
        except UnicodeDecodeError:
            continue  # a value that is no text any more; the twin reads none of those, the codec keeps their bytes
        assert sorted(map(repr, rows)) == sorted(map(repr, there))


def test_the_damage_is_of_both_kinds() -> None:
    """Refused always, or never, would prove little."""
    assert 40 < refused_of_200(random_stream, decoded) < 195
