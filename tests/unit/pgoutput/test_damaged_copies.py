"""Rows of a COPY with bytes cut out, flipped, doubled and swapped, by seed: refused by name, or read as they are there.

The twin reads one row at a time, by the grammar of PostgreSQL's binary format."""

from __future__ import annotations

import random
import struct

import pytest

from tests.support import pgoutput as wire
from tests.support.thorough import seeds_of_damage
from tests.unit.pgoutput.test_copy_rows import HEADER, TRAILER, Row, messages
from tests.unit.pgoutput.test_copy_rows import row as packed
from tests.unit.pgoutput.test_damaged_streams import Messages, damage, refused_of_200
from tidemark.errors import MalformedMessage
from tidemark.pgoutput.copy_rows import CopyDecoder

DAMAGES = 40
SCHEMA = wire.schema({"a": "string", "b": "string", "c": "string"}, key=[])


def random_copy(random_: random.Random) -> Messages:
    def value() -> str | None:
        return random_.choice([None, "", "é", "x" * random_.randrange(40)])

    rows: list[Row] = [[value(), value(), value()] for _ in range(random_.randrange(8))]
    return messages(rows) if rows else [HEADER + TRAILER]


def decoded(copied: Messages, cuts: list[int]) -> list[list[str | None]]:
    """Every row, as blocks that end at the cuts give them."""
    decoder = CopyDecoder(SCHEMA)
    rows = []
    for start, stop in zip([0, *cuts], [*cuts, len(copied)], strict=True):
        rows += decoder.decode(copied[start:stop]).rows.to_pylist()
    decoder.finish()
    return [[row["a"], row["b"], row["c"]] for row in rows]


def in_the_bytes(copied: Messages) -> list[list[str | None]]:
    """The rows, if the messages are those of a server; UnicodeDecodeError where a value is no text."""
    header = len(HEADER) + int.from_bytes(copied[0][len(HEADER) - 4 : len(HEADER)], "big")
    told = [copied[0][header:], *copied[1:]]
    assert [message for message in told if message == TRAILER] == told[-1:]
    rows = []
    for message in told[:-1]:
        at, row = 2, []
        for _ in range(struct.unpack(">h", message[:2])[0]):
            (length,) = struct.unpack(">i", message[at : at + 4])
            at += 4
            row.append(None if length < 0 else message[at : at + length].decode())
            at += max(0, length)
        assert packed(row) == message
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", seeds_of_damage(*range(4), below=400))
def test_a_damaged_copy_is_refused_by_name_or_holds_every_row_that_comes_of_it(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(DAMAGES):
        copied = random_copy(random_)
        cuts = damage(random_, copied)
        try:
            rows = decoded(copied, cuts)
        except MalformedMessage:
            continue
        try:
            there = in_the_bytes(copied)
        except UnicodeDecodeError:
            continue  # a value that is no text any more
        assert rows == there


def test_the_damage_of_a_copy_is_of_both_kinds() -> None:
    """Refused always, or never, would prove little."""
    assert 20 < refused_of_200(random_copy, decoded) < 180
