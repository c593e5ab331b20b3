"""Reads the messages in which the source's event trigger writes definitions (`source.event_trigger`).

    content = code (64 hex digits) + {"publication": …, "definition": {"kind": …, …}}
    kind    = "relation" | "rewritten" | "dropped" | "unknown"

Anybody can write a message under any prefix, so a content counts only if its code was made with the trigger's keys,
over the id of the transaction that brings it. One content has no code: the trigger's word that it failed, which says
the least that can be said (`UnknownDefinition`), whoever wrote it. No content makes `parse` raise. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from tidemark import strict_json

PREFIX: Final = "tidemark_definition"
# More than the longest of ours (`event_trigger.MOST_BYTES`).
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


class DefinedColumn(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`has_missing`: rows from before the column was added have the value `missing`, which is None where it is NULL or
    too long to be sent; its text is as the session of a chunk would have it."""

    attnum: int
    name: str
    type_oid: int
    typmod: int
    not_null: bool
    generated: str
    has_missing: bool
    missing: str | None

    def __repr__(self) -> str:
        """Without `missing`, which may be a value of rows."""
        return f"DefinedColumn(attnum={self.attnum}, name={self.name!r})"


class DefinedType(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A type that is not PostgreSQL's own, as pg_type has it."""

    oid: int
    schema: str
    name: str
    kind: str
    base_oid: int
    base_typmod: int
    element_oid: int
    delimiter: str


class DefinedRelation(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="relation"):
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


class DroppedRelation(Struct, frozen=True, tag_field="kind", tag="dropped"):
    oid: int


class RewrittenRelation(Struct, frozen=True, tag_field="kind", tag="rewritten"):
    """An ALTER writes all rows of a relation anew; its definition follows. `reasons` are the bits of
    `pg_event_trigger_table_rewrite_reason`, `above` as in DefinedRelation."""

    oid: int
    reasons: int
    above: tuple[int, ...]


class UnknownDefinition(Struct, frozen=True, tag_field="kind", tag="unknown"):
    """The trigger could not describe a relation, or, where `oid` is None, whatever the command touched."""

    oid: int | None


Definition = DefinedRelation | RewrittenRelation | DroppedRelation | UnknownDefinition


def parse(content: bytes, xid: int, keys: Keys, publication: str) -> Definition | None:
    """What this publication's trigger wrote in transaction `xid`, a 64-bit id; None if it wrote nothing of the kind.

    A message with the right code has the right form too, unless another version wrote it: then nothing is known."""
    if content == _UNSIGNED:
        return UnknownDefinition(None)
    code, text = content[:_CODE_DIGITS], content[_CODE_DIGITS:]
    if len(content) > LONGEST_BYTES or not hmac.compare_digest(keys.code(xid, text).encode(), code):
        return None
    try:
        raw = strict_json.parse(text)
        if raw["publication"] != publication:
            return None
        told: Definition = strict_json.to_record(raw["definition"], Definition)  # type: ignore[arg-type]  # a union
        return told
    except (ValueError, TypeError, KeyError):
        return UnknownDefinition(None)
