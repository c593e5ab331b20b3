"""Binary COPY against hand-built messages: by column, exact, in any blocks."""

from __future__ import annotations

import itertools
import random
import struct

import pytest

from tests.support import pgoutput as wire
from tidemark.errors import MalformedMessage, MaskWithoutSalt
from tidemark.formats.columns import chunk_schema
from tidemark.pgoutput.copy_rows import CopyDecoder

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">II", 0, 0)
TRAILER = b"\xff\xff"

Row = list[str | bytes | None]


def row(values: Row) -> bytes:
    out = struct.pack(">h", len(values))
    for value in values:
        data = value.encode() if isinstance(value, str) else value
        out += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return out


def messages(rows: list[Row]) -> list[bytes]:
    """As the server sends them: the header in front of the first, the trailer as one of its own."""
    copied = [*map(row, rows), TRAILER]
    return [HEADER + copied[0], *copied[1:]]


SCHEMA = wire.schema({"id": "int", "at": "date", "v": "string"}, key=["id"])


def test_rows_follow_the_chunk_schema_and_the_last_key_is_a_text() -> None:
    decoder = CopyDecoder(SCHEMA)
    block = decoder.decode(messages([["1", "2024-01-01", "é"], ["02", "infinity", None], ["3", None, ""]]))
    decoder.finish()
    assert block.rows.schema.equals(chunk_schema(SCHEMA))
    rows = block.rows.to_pylist()
    assert [(r["id"], r["v"], r["_text"]) for r in rows] == [
        (1, "é", None),
        (2, None, [("at", "infinity")]),
        (3, "", None),
    ]
    assert [str(r["at"]) for r in rows] == ["2024-01-01", "9999-12-31", "None"]
    assert (block.converted, block.key_unfit, block.last_key) == ({"at": 1}, (), ("3",))


def test_no_row_is_one_message_with_header_and_trailer() -> None:
    decoder = CopyDecoder(SCHEMA)
    block = decoder.decode([HEADER + TRAILER])
    decoder.finish()
    assert (block.rows.num_rows, block.last_key) == (0, None)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_cut_anywhere_between_messages(seed: int) -> None:
    dice = random.Random(seed)
    rows: list[Row] = [
        [str(i), None if dice.random() < 0.3 else f"2024-01-{1 + i % 28:02d}", "x" * dice.randrange(50)]
        for i in range(200)
    ]
    sent = messages(rows)
    cuts = sorted({0, len(sent), *(dice.randrange(len(sent)) for _ in range(10))})
    decoder = CopyDecoder(SCHEMA)
    blocks = [decoder.decode(sent[a:b]) for a, b in itertools.pairwise(cuts)]
    decoder.finish()
    decoded = [r for block in blocks for r in block.rows.to_pylist()]
    assert [[str(r["id"]), r["at"] and str(r["at"]), r["v"]] for r in decoded] == rows


def test_a_key_that_does_not_fit_is_named_and_gives_no_position() -> None:
    for values in (["99999999999", None, None], [b"\xff", None, None], [None, None, None]):
        block = CopyDecoder(SCHEMA).decode(messages([["1", None, None], values]))
        assert (block.key_unfit, block.last_key) == (("id",), None)
        assert block.key_null == (("id",) if values[0] is None else ())


def test_masked_columns_need_a_salt() -> None:
    schema = wire.schema({"id": "int", "mail": "string"}, key=["id"], masks={"mail": "sha256"})
    with pytest.raises(MaskWithoutSalt):
        CopyDecoder(schema)
    (masked,) = CopyDecoder(schema, b"salt").decode(messages([["1", "a@b"]])).rows.to_pylist()
    assert len(masked["mail"]) == 64


def test_a_message_that_is_cut_at_any_byte_raises() -> None:
    whole = messages([["1", "2024-01-01", "text"]])
    for length in range(len(whole[0])):
        with pytest.raises(MalformedMessage):
            CopyDecoder(SCHEMA).decode([whole[0][:length], TRAILER])
    for more in (b"\0", b"\xff\xff"):
        with pytest.raises(MalformedMessage):
            CopyDecoder(SCHEMA).decode([whole[0] + more, TRAILER])


def test_an_end_that_is_missing_or_not_the_last_raises() -> None:
    decoder = CopyDecoder(SCHEMA)
    decoder.decode(messages([["1", None, None]])[:-1])
    with pytest.raises(MalformedMessage, match="lacks its end"):
        decoder.finish()
    decoder.decode([TRAILER])
    with pytest.raises(MalformedMessage, match="behind its end"):
        decoder.decode([row(["2", None, None])])
    with pytest.raises(MalformedMessage):
        CopyDecoder(SCHEMA).decode([HEADER + row(["1", None])])
    with pytest.raises(MalformedMessage):
        CopyDecoder(SCHEMA).decode([HEADER + struct.pack(">hi", 3, -2)])
