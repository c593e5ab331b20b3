"""Reads the messages in which the source's event trigger writes definitions (`source.definition_trigger`).

    content = code (64 hex digits) + {"publication": …, "definition": {"kind": …, …}}
    kind    = "relation" | "rewritten" | "dropped" | "unknown"

Anybody can write a message under any prefix, so a content counts only if its code was made with the trigger's keys,
over the id of the transaction that brings it. One content has no code: the trigger's word that it failed, which says
the least that can be said (`Unknown`), whoever wrote it. No content makes `parse` raise. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Any, Final

PREFIX: Final = "tidemark_definition"
# More than the longest of ours (`definition_trigger.MOST_BYTES`).
LONGEST_BYTES: Final = 1_000_000

_CODE_DIGITS: Final = 64
_UNSIGNED: Final = b"unknown"


@dataclass(frozen=True, slots=True)
class Keys:
    """What the code of a message is made with."""

    inner: bytes = field(repr=False)
    outer: bytes = field(repr=False)

    def code(self, xid: int, text: bytes) -> str:
        inner = hashlib.sha256(self.inner + f"{xid}:".encode() + text).digest()
        return hashlib.sha256(self.outer + inner).hexdigest()


@dataclass(frozen=True, slots=True)
class DefinedColumn:
    """`has_missing`: rows from before the column was added have the value `missing`, which is None where it is NULL or
    too long to be sent; its text is as the session of a chunk would have it."""

    attnum: int
    name: str
    type_oid: int
    typmod: int
    not_null: bool
    generated: str
    has_missing: bool
    missing: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class DefinedType:
    """A type that is not PostgreSQL's own, as pg_type has it."""

    oid: int
    schema: str
    name: str
    kind: str
    base_oid: int
    base_typmod: int
    element_oid: int
    delimiter: str


@dataclass(frozen=True, slots=True)
class DefinedRelation:
    """A relation as the catalogue had it at this point of the transaction. `above` are the partitioned tables that it
    is a partition of, the nearest first; `listed` the numbers of the publication's column list, None without one. `key`
    are the numbers of the identity's index, under FULL and by default those of the primary key."""

    oid: int
    schema: str
    name: str
    relkind: str
    filenode: int
    persistence: str
    identity: str
    above: tuple[int, ...]
    listed: tuple[int, ...] | None
    key: tuple[int, ...]
    columns: tuple[DefinedColumn, ...]
    types: tuple[DefinedType, ...]


@dataclass(frozen=True, slots=True)
class DroppedRelation:
    oid: int


@dataclass(frozen=True, slots=True)
class RewrittenRelation:
    """An ALTER writes all rows of a relation anew; its definition follows. `reasons` are the bits of
    `pg_event_trigger_table_rewrite_reason`, `above` as in DefinedRelation."""

    oid: int
    reasons: int
    above: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """The trigger could not describe a relation, or, where `oid` is None, whatever the command touched."""

    oid: int | None


Definition = DefinedRelation | RewrittenRelation | DroppedRelation | Unknown


def parse(content: bytes, xid: int, keys: Keys, publication: str) -> Definition | None:
    """What this publication's trigger wrote in transaction `xid`, a 64-bit id; None if it wrote nothing of the kind.

    A message with the right code has the right form too, unless another version wrote it: then nothing is known."""
    if content == _UNSIGNED:
        return Unknown(None)
    code, text = content[:_CODE_DIGITS], content[_CODE_DIGITS:]
    if len(content) > LONGEST_BYTES or not hmac.compare_digest(keys.code(xid, text).encode(), code):
        return None
    try:
        raw = json.loads(text)
        if raw["publication"] != publication:
            return None
        return _definition(raw["definition"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return Unknown(None)


def _definition(raw: Any) -> Definition:
    """Raises ValueError, TypeError or KeyError."""
    if not isinstance(raw, dict):
        raise TypeError("an object is expected")
    kind = raw.pop("kind")
    if kind == "dropped":
        return DroppedRelation(_number(raw["oid"]))
    if kind == "rewritten":
        return RewrittenRelation(_number(raw["oid"]), _number(raw["reasons"]), _numbers(raw["above"]))
    if kind == "unknown":
        return Unknown(_number(raw["oid"]))
    if kind != "relation":
        raise ValueError(kind)
    columns, types = raw.pop("columns"), raw.pop("types")
    above, key, listed = (raw.pop(name) for name in ("above", "key", "listed"))
    _require(raw, {"oid": int, "filenode": int, **dict.fromkeys(("schema", "name", "relkind"), str)})
    _require(raw, dict.fromkeys(("persistence", "identity"), str))
    return DefinedRelation(
        **raw,
        above=_numbers(above),
        key=_numbers(key),
        listed=None if listed is None else _numbers(listed),
        columns=tuple(
            DefinedColumn(*_values(c, (int, str, int, int, bool, str, bool, (str, type(None))))) for c in columns
        ),
        types=tuple(DefinedType(*_values(t, (int, str, str, str, int, int, int, str))) for t in types),
    )


def _require(raw: dict[str, Any], types: dict[str, type]) -> None:
    for name, expected in types.items():
        if type(raw[name]) is not expected:
            raise TypeError(name)


def _values(raw: list[Any], types: tuple[Any, ...]) -> list[Any]:
    for value, expected in zip(raw, types, strict=True):
        if type(value) not in (expected if isinstance(expected, tuple) else (expected,)):
            raise TypeError(expected)
    return raw


def _numbers(raw: list[Any]) -> tuple[int, ...]:
    return tuple(map(_number, raw))


def _number(raw: Any) -> int:
    if type(raw) is not int:
        raise TypeError("a number is expected")
    return raw
