"""Lists the PostgreSQL types that Tidemark maps, one row each, and the Delta types that hold them.

A row has PostgreSQL's name of the type, and the Delta type of its values. Each Delta type has a row of its own: how
Arrow holds it, which codec reads PostgreSQL's text, what becomes of a value that does not fit, and whether a key may
have it. Everything else is derived. `delta_types` names and maps columns, `values` converts them, `evolution` and
`source.rows.key_ranges` compare types. The table of types in docs/formats.md is made of them by
`sandbox.documents.types_table`.

To add a type that is stored as its text, or that PostgreSQL writes like one of these, add one line here. A type without
a row is stored as PostgreSQL's text, never a failure (R8). Built-in types have the OIDs that PostgreSQL never changes.
Types of extensions are recognised by their names. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

# Which function of `schema.values` reads PostgreSQL's text.
Codec = Literal["text", "cast", "boolean", "bytes", "array", "hstore"]

# How a column's type modifier is spelled: not at all, as a number behind the name or before "with time zone", as a
# number with the four bytes of a length counted in, as precision and scale.
Modifiers = Literal["none", "number", "number before zone", "length", "precision and scale"]


@dataclass(frozen=True, slots=True)
class Target:
    """A Delta type as DDL. `unfit` describes the column's value in place of one that does not fit, "" if all fit. A key
    column is text if no key may have the type."""

    ddl: str
    arrow: pa.DataType
    codec: Codec
    unfit: str = ""
    in_keys: bool = True


@dataclass(frozen=True, slots=True)
class PostgresType:
    """`name` is pg_type.typname; `sql_name` is format_type's name if that differs. `oid` is None for a type of an
    extension.

    `target` is the Delta type, but numeric gets its own precision if Delta has it. `alike` names the type to which an
    ALTER changes neither text nor order of stored values. `sent_as_text`: the binary form on the wire is the text.
    `in_arrays`: an array of the type is stored as an array.
    """

    name: str
    oid: int | None
    target: Target
    sql_name: str = ""
    modifiers: Modifiers = "none"
    alike: str = ""
    sent_as_text: bool = False
    in_arrays: bool = True


# --- Delta ------------------------------------------------------------------------------------------------------------

_ENDS: Final = "the nearest end of 0001-01-01 … 9999-12-31T23:59:59.999999"
_NO_UTF8: Final = "NULL (only bytes that are not UTF-8; `_text` has them as `\\xNN`)"

BOOLEAN: Final = Target("boolean", pa.bool_(), "boolean")
SMALLINT: Final = Target("smallint", pa.int16(), "cast")
INT: Final = Target("int", pa.int32(), "cast")
BIGINT: Final = Target("bigint", pa.int64(), "cast")
FLOAT: Final = Target("float", pa.float32(), "cast")
DOUBLE: Final = Target("double", pa.float64(), "cast")
BINARY: Final = Target("binary", pa.binary(), "bytes")
DATE: Final = Target("date", pa.date32(), "cast", unfit=_ENDS)
TIMESTAMP: Final = Target("timestamp", pa.timestamp("us", tz="UTC"), "cast", unfit=_ENDS)
TIMESTAMP_NTZ: Final = Target("timestamp_ntz", pa.timestamp("us"), "cast", unfit=_ENDS)
STRING: Final = Target("string", pa.string(), "text", unfit=_NO_UTF8)
TEXTS_BY_TEXT: Final = Target("map<string,string>", pa.map_(pa.string(), pa.string()), "hstore", in_keys=False)

SCALARS: Final = (
    *(BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, STRING),
    *(TEXTS_BY_TEXT,),
)
_BY_DDL: Final = {target.ddl: target for target in SCALARS}


def decimal(precision: int, scale: int) -> Target:
    return Target(f"decimal({precision},{scale})", pa.decimal128(precision, scale), "cast", unfit="NULL")


def array_of(element: Target) -> Target:
    """The target of an array. Everything follows the element's target; in addition, an array with several dimensions or
    another lower bound does not fit."""
    return Target(
        f"array<{element.ddl}>",
        pa.list_(element.arrow),
        "array",
        unfit="NULL",
        in_keys=element.in_keys,
    )


DECIMAL_DDL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.IGNORECASE)
_ARRAY_DDL: Final = re.compile(r"array<(.+)>")


def target_of(ddl: str) -> Target:
    """The row of a Delta type. ValueError for a type that Tidemark does not write."""
    if ddl in _BY_DDL:
        return _BY_DDL[ddl]
    if modifiers := DECIMAL_DDL.fullmatch(ddl):
        return decimal(int(modifiers[1]), int(modifiers[2]))
    if array := _ARRAY_DDL.fullmatch(ddl):
        return array_of(target_of(array[1]))
    raise ValueError(f"no staged files of type {ddl!r}")


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

NUMERIC: Final = PostgresType("numeric", 1700, STRING, modifiers="precision and scale")

# In the order of the documented table: what is mapped alike stands together.
POSTGRES_TYPES: Final = (
    PostgresType("bool", 16, BOOLEAN, sql_name="boolean"),
    PostgresType("int2", 21, SMALLINT, sql_name="smallint", alike="int8"),
    PostgresType("int4", 23, INT, sql_name="integer", alike="int8"),
    PostgresType("int8", 20, BIGINT, sql_name="bigint"),
    PostgresType("oid", 26, BIGINT),
    PostgresType("xid", 28, BIGINT),
    PostgresType("float4", 700, FLOAT, sql_name="real"),
    PostgresType("float8", 701, DOUBLE, sql_name="double precision"),
    PostgresType("bytea", 17, BINARY),
    PostgresType("date", 1082, DATE),
    PostgresType("timestamp", 1114, TIMESTAMP_NTZ, "timestamp without time zone", "number before zone"),
    PostgresType("timestamptz", 1184, TIMESTAMP, "timestamp with time zone", "number before zone"),
    PostgresType("text", 25, STRING, sent_as_text=True),
    PostgresType("varchar", 1043, STRING, "character varying", "length", alike="text", sent_as_text=True),
    PostgresType("bpchar", 1042, STRING, "character", "length", sent_as_text=True),
    PostgresType("char", 18, STRING, sql_name='"char"'),
    PostgresType("name", 19, STRING),
    PostgresType("citext", None, STRING),
    PostgresType("xml", 142, STRING),
    PostgresType("json", 114, STRING, sent_as_text=True),
    PostgresType("jsonb", 3802, STRING),
    PostgresType("money", 790, STRING),
    PostgresType("uuid", 2950, STRING),
    PostgresType("inet", 869, STRING),
    PostgresType("cidr", 650, STRING),
    PostgresType("macaddr", 829, STRING),
    PostgresType("macaddr8", 774, STRING),
    PostgresType("bit", 1560, STRING, modifiers="number"),
    PostgresType("varbit", 1562, STRING, "bit varying", "number"),
    PostgresType("time", 1083, STRING, "time without time zone", "number before zone"),
    PostgresType("timetz", 1266, STRING, "time with time zone", "number before zone"),
    PostgresType("interval", 1186, STRING),
    PostgresType("tsvector", 3614, STRING),
    PostgresType("ltree", None, STRING),
    PostgresType("pg_lsn", 3220, STRING),
    NUMERIC,
    PostgresType("hstore", None, TEXTS_BY_TEXT, in_arrays=False),
    PostgresType("vector", None, array_of(FLOAT), modifiers="number", in_arrays=False),
    PostgresType("halfvec", None, array_of(FLOAT), modifiers="number", in_arrays=False),
)

BY_OID: Final = {row.oid: row for row in POSTGRES_TYPES if row.oid is not None}
OF_EXTENSIONS: Final = {row.name: row for row in POSTGRES_TYPES if row.oid is None}
_BY_NAME: Final = {row.name: row for row in POSTGRES_TYPES}

# OIDs of types whose binary form on the wire is their text.
SENT_AS_TEXT: Final = frozenset(oid for oid, row in BY_OID.items() if row.sent_as_text)


def are_alike(one_oid: int, other_oid: int) -> bool:
    """Whether an ALTER from one type to the other changes neither the text nor the order of a stored value."""
    one, other = BY_OID.get(one_oid), BY_OID.get(other_oid)
    if one is None or other is None:
        return one_oid == other_oid
    return (one.alike or one.name) == (other.alike or other.name)


def _sql_name(row: PostgresType) -> str:
    return row.sql_name or row.name


# PostgreSQL's name of a type -> that of the type whose order and texts it has, where that is another one.
ORDERED_AS: Final = {_sql_name(row): _sql_name(_BY_NAME[row.alike]) for row in POSTGRES_TYPES if row.alike}
