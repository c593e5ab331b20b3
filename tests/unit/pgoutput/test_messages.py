"""The rare messages: what was cut or changed anywhere raises MalformedMessage, or is read as what it then says."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import pgoutput
from tidemark.errors import MalformedMessage
from tidemark.lsn import Lsn
from tidemark.pgoutput.messages import check_origin, check_type, parse_logical, parse_relation, parse_truncate


def logical(prefix: bytes, content: bytes, flags: int = 1) -> bytes:
    return struct.pack(">cBQ", b"M", flags, 100) + prefix + b"\0" + struct.pack(">I", len(content)) + content


PARSERS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "RELATION": (pgoutput.relation(7, ["id", "note"], key=["id"]), parse_relation),
    "TRUNCATE": (struct.pack(">cIBII", b"T", 2, 1, 7, 8), parse_truncate),
    "TYPE": (b"Y" + struct.pack(">I", 9) + b"public\0mood\0", check_type),
    "ORIGIN": (b"O" + struct.pack(">Q", 9) + b"elsewhere\0", check_origin),
    "MESSAGE": (logical(b"tidemark", b"hello"), lambda message: parse_logical(message, Lsn(120), 700)),
}


@pytest.mark.parametrize("kind", PARSERS)
def test_a_message_cut_anywhere_raises(kind: str) -> None:
    message, parse = PARSERS[kind]
    parse(message)
    for length in range(1, len(message)):
        with pytest.raises(MalformedMessage):
            parse(message[:length])
    with pytest.raises(MalformedMessage):
        parse(message + b"\0")


@pytest.mark.parametrize("kind", PARSERS)
def test_a_message_changed_anywhere_is_read_or_raises_and_asks_for_no_more_than_it_has(kind: str) -> None:
    chance = random.Random(kind)
    message, parse = PARSERS[kind]
    for _ in range(5000):
        changed = bytearray(message)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(1, len(changed))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        with contextlib.suppress(MalformedMessage):
            parse(bytes(changed))


def test_a_prefix_that_is_not_utf_8_is_read_as_another_one() -> None:
    message = parse_logical(logical(b"tidemark\xff", b"\xff"), Lsn(120), 700)
    assert (message.prefix, message.content, message.xid) == ("tidemark\N{REPLACEMENT CHARACTER}", b"\xff", 700)


def test_a_message_that_is_not_transactional_belongs_to_no_transaction() -> None:
    message = parse_logical(logical(b"tidemark", b"", flags=0), Lsn(120), 700)
    assert (message.transactional, message.commit_lsn, message.xid) == (False, None, None)


def test_two_columns_of_one_name_are_no_relation() -> None:
    """Found by streams with flipped bits: of the two, one would have been read as the other, or none at all."""
    with pytest.raises(MalformedMessage, match="RELATION 7 has two columns of one name"):
        parse_relation(pgoutput.relation(7, ["id", "note", "id"], key=["id"]))
