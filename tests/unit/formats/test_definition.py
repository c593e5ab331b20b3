"""What anybody may write under the prefix of the definitions: never an error, and no definition without its code."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tidemark.formats.definition import (
    LONGEST_BYTES,
    DefinedColumn,
    DefinedRelation,
    DefinedType,
    Definition,
    DroppedRelation,
    Keys,
    UnknownDefinition,
    parse,
)

KEYS = Keys(b"i" * 64, b"o" * 64)
XID = 2**33 + 7
RELATION: dict[str, Any] = {
    "kind": "relation",
    "oid": 16400,
    "schema": "shop",
    "name": "orders",
    "relkind": "r",
    "filenode": 16401,
    "persistence": "p",
    "identity": "d",
    "above": [],
    "listed": None,
    "key": [1],
    "columns": [[1, "id", 23, -1, True, "", False, None], [3, "mood", 16500, -1, False, "", True, "good"]],
    "types": [[16500, "shop", "mood", "e", 0, -1, 0, ","]],
}


def text(definition: object, publication: str = "tidemark_shop") -> bytes:
    return json.dumps({"publication": publication, "definition": definition}).encode()


def signed(content: bytes, xid: int = XID, keys: Keys = KEYS) -> bytes:
    return keys.code(xid, content).encode() + content


def read(content: bytes, xid: int = XID) -> Definition | None:
    return parse(content, xid, KEYS, "tidemark_shop")


def test_a_relation_is_read_with_all_that_it_has() -> None:
    assert read(signed(text(RELATION))) == DefinedRelation(
        oid=16400,
        schema="shop",
        name="orders",
        relkind="r",
        filenode=16401,
        persistence="p",
        identity="d",
        above=(),
        listed=None,
        key=(1,),
        columns=(
            DefinedColumn(1, "id", 23, -1, True, "", False, None),
            DefinedColumn(3, "mood", 16500, -1, False, "", True, "good"),
        ),
        types=(DefinedType(16500, "shop", "mood", "e", 0, -1, 0, ","),),
    )
    assert read(signed(text({"kind": "dropped", "oid": 5}))) == DroppedRelation(5)
    assert read(signed(text({"kind": "unknown", "oid": 5, "sqlstate": "25001"}))) == UnknownDefinition(5)
    assert read(b"unknown") == UnknownDefinition(None)


def test_a_code_is_of_one_text_one_transaction_and_one_trigger() -> None:
    content = signed(text(RELATION))
    assert read(content) is not None
    assert read(content, XID + 1) is None
    assert read(content, XID - 2**32) is None
    assert read(content[:-1] + b" ") is None
    assert read(signed(text(RELATION), keys=Keys(b"o" * 64, b"i" * 64))) is None
    assert read(signed(text(RELATION, "tidemark_other"))) is None
    assert read(text(RELATION)) is None
    assert read(content + b" " * LONGEST_BYTES) is None


def test_no_value_of_a_row_is_in_what_a_log_shows() -> None:
    assert "good" not in repr(read(signed(text(RELATION))))
    assert "iiii" not in repr(KEYS)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "later"},
        {"oid": "16400"},
        {"oid": True},
        {"key": ["1"]},
        {"key": None},
        {"columns": [[1, "id", 23, -1, True, "", False]]},
        {"columns": [[1, "id", 23, -1, 1, "", False, None]]},
        {"columns": 5},
        {"types": [[1]]},
        {"more": 1},
        {"name": None},
    ],
)
def test_what_another_version_signed_is_unknown(change: dict[str, Any]) -> None:
    assert read(signed(text({**RELATION, **change}))) == UnknownDefinition(None)
    for definition in ([], None, "relation", 5):
        assert read(signed(text(definition))) == UnknownDefinition(None)
    assert read(signed(b"[" * 100_000)) == UnknownDefinition(None)


def test_no_content_raises() -> None:
    chance, whole = random.Random(7), text(RELATION)
    for _ in range(2000):
        cut = bytearray(whole[: chance.randrange(len(whole))])
        for _ in range(chance.randrange(1, 5)):
            cut.insert(chance.randrange(len(cut) + 1), chance.randrange(256))
        assert read(bytes(cut)) is None
        assert read(signed(bytes(cut))) in (UnknownDefinition(None), None)
