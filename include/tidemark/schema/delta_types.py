"""Derives a column's Delta type (DDL) and type name from its PostgreSQL type, by the rows of `postgres_types`.

The catalogue's rows come in as `PgType`s. Built-in types are recognised by their OID, types of extensions by their
name. An unknown type becomes `string`, with PostgreSQL's own text, never a failure (R8). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from tidemark.schema.postgres_types import BY_OID, DECIMAL_DDL, NUMERIC, OF_EXTENSIONS, PostgresType, target_of

Kind = Literal["b", "e", "d", "c", "r", "m", "p"]


@dataclass(frozen=True, slots=True)
class PgType:
    """One row of pg_type. `kind` is typtype. `base_oid` and `base_typmod` are those of a domain, `element_oid` that of
    a true array, else 0. A true array is one whose typsubscript is array_subscript_handler; "name" and "point" have a
    typelem and are no arrays."""

    oid: int
    name: str
    schema: str
    kind: Kind
    base_oid: int = 0
    base_typmod: int = -1
    element_oid: int = 0
    delimiter: str = ","


def target_type(type_oid: int, typmod: int, types: Mapping[int, PgType], override: str | None = None) -> str:
    """The Delta type as DDL. `override` is the file's option `target`: "text" or "decimal(p,s)". Raises ValueError if
    the column's type does not allow it."""
    if override is None:
        return _target(type_oid, typmod, types)
    if override == "text":
        return "string"
    if _base_type(type_oid, typmod, types)[0] != NUMERIC.oid:
        raise ValueError(f"{override!r} is for numeric columns; this one is {type_name(type_oid, typmod, types)}")
    return target_of(override).ddl


def _base_type(type_oid: int, typmod: int, types: Mapping[int, PgType]) -> tuple[int, int]:
    """A domain's base type and the modifier that holds for it, through any number of domains."""
    pg_type = types.get(type_oid)
    while pg_type is not None and pg_type.kind == "d":
        type_oid, typmod = pg_type.base_oid, pg_type.base_typmod
        pg_type = types.get(type_oid)
    return type_oid, typmod


def _target(type_oid: int, typmod: int, types: Mapping[int, PgType]) -> str:
    type_oid, typmod = _base_type(type_oid, typmod, types)
    row = _row(type_oid, types)
    if row is NUMERIC:
        return _numeric_target(typmod)
    if row is not None:
        return row.target.ddl
    element_oid = types[type_oid].element_oid if type_oid in types and types[type_oid].kind == "b" else 0
    if element_oid and _becomes_element(_base_type(element_oid, typmod, types)[0], types):
        return f"array<{_target(element_oid, typmod, types)}>"
    return "string"


def _row(type_oid: int, types: Mapping[int, PgType]) -> PostgresType | None:
    """The row of the type in `postgres_types`. Only base types can belong to an extension."""
    pg_type = types.get(type_oid)
    if type_oid in BY_OID or pg_type is None or pg_type.kind != "b":
        return BY_OID.get(type_oid)
    return OF_EXTENSIONS.get(pg_type.name)


def _becomes_element(type_oid: int, types: Mapping[int, PgType]) -> bool:
    """Whether an array of the type is stored as an array. Arrays of composites, ranges, geometry and unknown types stay
    text."""
    row = _row(type_oid, types)
    return row.in_arrays if row is not None else type_oid in types and types[type_oid].kind == "e"


def _numeric_modifiers(typmod: int) -> tuple[int, int] | None:
    """Precision and scale (11 bits, signed since PostgreSQL 15) of numeric's type modifier; None without precision."""
    if typmod < 4:
        return None
    return (typmod - 4) >> 16 & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 1024) - 1024


def _numeric_target(typmod: int) -> str:
    modifiers = _numeric_modifiers(typmod)
    if modifiers is None:
        return "string"
    precision, scale = modifiers
    return f"decimal({precision},{scale})" if precision <= 38 and 0 <= scale <= precision else "string"


def type_name(type_oid: int, typmod: int, types: Mapping[int, PgType]) -> str:
    """PostgreSQL's name with modifiers, as format_type gives it: "numeric(10,2)", "character varying(20)[]". The fields
    of an interval are left out."""
    pg_type, row = types.get(type_oid), _row(type_oid, types)
    if pg_type is not None and pg_type.element_oid and row is None:
        return f"{type_name(pg_type.element_oid, typmod, types)}[]"
    if row is None or row.oid is None:
        name = f"type {type_oid}" if pg_type is None else _qualified(pg_type)
    elif row.name == "bpchar" and typmod < 0:
        name = "bpchar"
    else:
        name = row.sql_name or row.name
    modifiers = "" if row is None or typmod < 0 else _modifiers(row, typmod)
    if row is not None and row.modifiers == "number before zone":
        first, _, zone = name.partition(" ")
        return f"{first}{modifiers} {zone}"
    return f"{name}{modifiers}"


def _modifiers(row: PostgresType, typmod: int) -> str:
    match row.modifiers:
        case "number" | "number before zone":
            return f"({typmod})"
        case "length":
            return f"({typmod - 4})"
        case "precision and scale":
            numeric = _numeric_modifiers(typmod)
            return "" if numeric is None else f"({numeric[0]},{numeric[1]})"
    return ""


def _qualified(pg_type: PgType) -> str:
    def quoted(name: str) -> str:
        return name if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) else '"' + name.replace('"', '""') + '"'

    name = quoted(pg_type.name)
    return name if pg_type.schema in ("pg_catalog", "public") else f"{quoted(pg_type.schema)}.{name}"


# Delta's integers, and its floating point numbers, from the narrowest on.
_WIDTHS: Final = (("smallint", "int", "bigint"), ("float", "double"))


def widens(narrow: str, wide: str) -> bool:
    """Whether Delta can change a column from the first type to the second without rewriting files. Every value of the
    first type has to be a value of the second (Delta protocol, "Type Widening")."""
    for widths in _WIDTHS:
        if narrow in widths and wide in widths:
            return widths.index(narrow) < widths.index(wide)
    before, after = DECIMAL_DDL.fullmatch(narrow), DECIMAL_DDL.fullmatch(wide)
    if before is not None and after is not None:
        more_digits, more_scale = int(after[1]) - int(before[1]), int(after[2]) - int(before[2])
        return more_digits >= more_scale >= 0 and more_digits > 0
    return (narrow, wide) == ("date", "timestamp_ntz")


def arrow_type(target: str) -> pa.DataType:
    """Delta DDL -> the Arrow type of staged files. ValueError for a type that Tidemark does not write."""
    return target_of(target).arrow
