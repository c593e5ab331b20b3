"""Renders the columns and literals of a row filter so that exactly one operator of `pg_catalog` fits them (`written`).

A column is compared in the type whose operators PostgreSQL would use for it. A literal is a quoted text that is cast to
that type. So the operands have exactly the types that an operator takes: PostgreSQL neither chooses between operators
nor converts a value, and calls no cast that a user created. Source: PostgreSQL documentation, 10.2 "Operators".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from psycopg import sql

from tidemark.schema.delta_types import PgType

Type = tuple[str, str]


def own(name: str) -> Type:
    return "pg_catalog", name


BOOL: Final = own("bool")
TEXT: Final = own("text")
_OID: Final = own("oid")
_INTEGERS: Final = frozenset(map(own, ("int2", "int4", "int8")))
_FLOATS: Final = frozenset(map(own, ("float4", "float8")))
_NUMBERS: Final = _INTEGERS | _FLOATS | {own("numeric")}
# Every pair of these types has operators.
_MOMENTS: Final = frozenset(map(own, ("date", "timestamp", "timestamptz")))
_COMPARED: Final = frozenset(
    """
    bool int2 int4 int8 float4 float8 numeric money oid text varchar bpchar char name bytea bit varbit uuid date time
    timetz timestamp timestamptz interval inet cidr macaddr macaddr8 pg_lsn jsonb
    """.split()  # noqa: SIM905
)
# These types have no operators of their own: PostgreSQL uses the other type's.
_COMPARED_AS: Final = {"varchar": "text", "cidr": "inet"}
_LIKE: Final = frozenset(map(own, ("text", "bpchar", "name")))

# Texts that PostgreSQL converts to another value every day.
_MOVING: Final = re.compile(r"now|today|tomorrow|yesterday", re.IGNORECASE)
_OF_TIME: Final = _MOMENTS | {own("time"), own("timetz")}


class Incomparable(Exception):
    """The operands cannot be compared; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comparison: a column, a moment or a literal.

    A column or moment has its SQL, and in `type` the (schema, name) of the type that it is compared in. A column
    without a type cannot be compared. A literal has its text and no type. `name` is for messages.
    """

    kind: Literal["column", "moment", "text", "number", "boolean"]
    name: str
    sql: sql.Composable
    type: Type | None = None
    text: str = ""

    @property
    def is_column(self) -> bool:
        return self.kind == "column"


def column(name: str, type_oid: int, types: Mapping[int, PgType]) -> Operand:
    """The operand of a column. A domain is compared as its base type, so PostgreSQL does not check its constraints."""
    declared = base = types[type_oid]
    while base.kind == "d":
        base = types[base.base_oid]
    plain = sql.Identifier(name)
    called = f"{name} (type {base.name})"
    if base.kind == "e":
        type_ = base.schema, base.name
    elif base.schema == "pg_catalog" and base.name in _COMPARED:
        type_ = own(_COMPARED_AS.get(base.name, base.name))
    else:
        return Operand("column", called, plain)
    same = type_ == (declared.schema, declared.name)
    return Operand("column", called, plain if same else cast(plain, type_), type_)


def moment(text: str, type_: Type) -> Operand:
    return Operand("moment", f"a {type_[1]}", cast(sql.Literal(text), type_), type_)


def constant(kind: Literal["text", "number", "boolean"], text: str) -> Operand:
    """The operand of a literal. The column beside it determines its type."""
    return Operand(kind, f"a {kind}", sql.Literal(text), text=text)


def literal(text: str, type_: Type) -> sql.Composed:
    """The text, cast to the type. Raises Incomparable for a text that PostgreSQL converts to another moment every
    day."""
    if type_ in _OF_TIME and _MOVING.search(text):
        raise Incomparable("a text in quotes is no fixed date or time: write now() or current_date")
    return cast(sql.Literal(text), type_)


def cast(value: sql.Composable, type_: Type) -> sql.Composed:
    return sql.SQL("CAST({} AS {})").format(value, sql.Identifier(*type_))


def written(operands: Sequence[Operand]) -> list[sql.Composable]:
    """Render the two operands of a comparison, or a column and the literals of its IN, as SQL. Raises Incomparable."""
    for operand in operands:
        if operand.is_column and operand.type is None:
            raise Incomparable(f"{operand.name} fits IS NULL alone: others compare PostgreSQL's plain types, and enums")
    if not any(operand.is_column for operand in operands):
        raise Incomparable("one side of a comparison has to be a column")
    typed = [operand.type for operand in operands if operand.type is not None]
    literals = [operand for operand in operands if operand.type is None]
    numbers = [operand.text for operand in literals if operand.kind == "number"]
    kept, wide = frozenset(typed[:1]), typed[0]
    if _NUMBERS.issuperset(typed):
        if numbers or len(typed) > 1:
            kept, wide = _width(typed, numbers)
    elif _MOMENTS.issuperset(typed):
        kept = _MOMENTS
    if not (kept.issuperset(typed) or _NUMBERS.issuperset(typed)):
        raise Incomparable(f"a filter does not compare {' with '.join(operand.name for operand in operands)}")
    for operand in literals:
        fits = {
            "text": True,
            "number": wide in _NUMBERS or (wide == _OID and _is_int8(operand.text)),
            "boolean": wide == BOOL,
        }
        if not fits[operand.kind]:
            raise Incomparable(f"{operands[0].name} is compared with {operand.name}: write the value in quotes")
    return [
        literal(operand.text, wide)
        if operand.type is None
        else operand.sql
        if operand.type in kept
        else cast(operand.sql, wide)
        for operand in operands
    ]


def require_text(operand: Operand) -> None:
    """Raises Incomparable if LIKE has no operator for the operand and a pattern of type text."""
    if not operand.is_column or operand.type not in _LIKE:
        raise Incomparable(f"LIKE needs a column of a text type, and {operand.name} is none")


def _width(typed: Sequence[Type], numbers: Sequence[str]) -> tuple[frozenset[Type], Type]:
    """The number types that have operators with each other, and the type that all other operands are cast to."""
    if not _FLOATS.isdisjoint(typed):
        return _FLOATS, own("float8")
    if _INTEGERS.issuperset(typed) and all(map(_is_int8, numbers)):
        return _INTEGERS, own("int8")
    return frozenset({own("numeric")}), own("numeric")


def _is_int8(number: str) -> bool:
    return re.fullmatch("[+-]?[0-9]{1,19}", number) is not None and -(2**63) <= int(number) < 2**63
