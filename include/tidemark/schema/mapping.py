"""PostgreSQL types -> Delta types (DDL) -> Arrow types, by the table in docs/formats.md.

Pure: the catalogue's rows come in as `PgType`s. Built-in types are recognised by their OID, which
PostgreSQL never changes, types of extensions by their name. A type that is not known becomes `string`,
PostgreSQL's own text, never a failure (R8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

Kind = Literal["b", "e", "d", "c", "r", "m", "p"]


@dataclass(frozen=True, slots=True)
class PgType:
    """One row of pg_type: `kind` is typtype; `base_oid` and `base_typmod` of a domain,
    `element_oid` of a true array, else 0.

    A true array is one whose typsubscript is array_subscript_handler: "name" and "point" have a typelem and are none.
    """

    oid: int
    name: str
    schema: str
    kind: Kind
    base_oid: int = 0
    base_typmod: int = -1
    element_oid: int = 0
    delimiter: str = ","


_NUMERIC: Final = 1700

# OID -> Delta type, of the built-in types that map to something other than text.
_TYPED: Final = {
    16: "boolean",
    21: "smallint",
    23: "int",
    20: "bigint",
    700: "float",
    701: "double",
    26: "bigint",  # oid
    28: "bigint",  # xid
    17: "binary",  # bytea
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}

# Built-in types whose text is stored, and of which an array becomes an array of text.
_TEXTUAL: Final = frozenset(
    {
        25,  # text
        1043,  # varchar
        1042,  # bpchar
        18,  # "char"
        19,  # name
        142,  # xml
        790,  # money
        2950,  # uuid
        869,  # inet
        650,  # cidr
        829,  # macaddr
        774,  # macaddr8
        1560,  # bit
        1562,  # varbit
        3614,  # tsvector
        3220,  # pg_lsn
        1083,  # time
        1266,  # timetz
        1186,  # interval
        114,  # json
        3802,  # jsonb
    }
)

_EXTENSION_TEXTUAL: Final = frozenset({"citext", "ltree"})
_EXTENSION_TYPED: Final = {"hstore": "map<string,string>", "vector": "array<float>", "halfvec": "array<float>"}

# Where PostgreSQL's SQL name differs from pg_type.typname.
_SQL_NAMES: Final = {
    16: "boolean",
    18: '"char"',
    20: "bigint",
    21: "smallint",
    23: "integer",
    700: "real",
    701: "double precision",
    1042: "character",
    1043: "character varying",
    1083: "time without time zone",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1266: "time with time zone",
    1560: "bit",
    1562: "bit varying",
}

_INTERVAL_FIELDS: Final = {
    4: "year",
    2: "month",
    8: "day",
    1024: "hour",
    2048: "minute",
    4096: "second",
    6: "year to month",
    1032: "day to hour",
    3080: "day to minute",
    7176: "day to second",
    3072: "hour to minute",
    7168: "hour to second",
    6144: "minute to second",
}

_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.IGNORECASE)
_ARRAY: Final = re.compile(r"array<(.+)>")


def target_type(type_oid: int, typmod: int, types: Mapping[int, PgType], override: str | None = None) -> str:
    """The Delta type as DDL. `override` is "text" or "decimal(p,s)"; ValueError where the
    column's type does not allow it."""
    if override is None:
        return _target(type_oid, typmod, types)
    if override.strip().lower() in ("text", "string"):
        return "string"
    parsed = _DECIMAL.fullmatch(override.strip())
    if parsed is None:
        raise ValueError(f'unknown target type {override!r}: it is "text", or "decimal(p,s)" for a numeric column')
    precision, scale = int(parsed[1]), int(parsed[2])
    if not (1 <= precision <= 38 and scale <= precision):
        raise ValueError(f"{override!r} is no Delta type: decimal(p,s) needs 1 <= p <= 38 and 0 <= s <= p")
    if _undomained(type_oid, typmod, types)[0] != _NUMERIC:
        raise ValueError(f"{override!r} is for numeric columns; this one is {type_name(type_oid, typmod, types)}")
    return f"decimal({precision},{scale})"


def _undomained(type_oid: int, typmod: int, types: Mapping[int, PgType]) -> tuple[int, int]:
    """A domain's base type and the modifier that holds for it, through any number of domains."""
    known = types.get(type_oid)
    while known is not None and known.kind == "d":
        type_oid, typmod = known.base_oid, known.base_typmod
        known = types.get(type_oid)
    return type_oid, typmod


def _target(type_oid: int, typmod: int, types: Mapping[int, PgType]) -> str:
    type_oid, typmod = _undomained(type_oid, typmod, types)
    if type_oid in _TYPED:
        return _TYPED[type_oid]
    if type_oid == _NUMERIC:
        return _numeric_target(typmod)
    if type_oid in _TEXTUAL or type_oid not in types:
        return "string"
    known = types[type_oid]
    if known.kind == "b" and known.element_oid:
        element_oid, _ = _undomained(known.element_oid, typmod, types)
        return f"array<{_target(known.element_oid, typmod, types)}>" if _is_scalar(element_oid, types) else "string"
    if known.kind == "b":
        return _EXTENSION_TYPED.get(known.name, "string")
    return "string"


def _is_scalar(type_oid: int, types: Mapping[int, PgType]) -> bool:
    """Whether an array of the type becomes an array; of composites, ranges, geometry
    and unknown types it stays text."""
    if type_oid in _TYPED or type_oid in _TEXTUAL or type_oid == _NUMERIC:
        return True
    known = types.get(type_oid)
    return known is not None and (known.kind == "e" or known.name in _EXTENSION_TEXTUAL)


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
    """PostgreSQL's name with modifiers, as format_type gives it: "numeric(10,2)", "character varying(20)[]"."""
    known = types.get(type_oid)
    if known is not None and known.element_oid and type_oid not in _TYPED and type_oid not in _TEXTUAL:
        return f"{type_name(known.element_oid, typmod, types)}[]"
    if type_oid == 1042 and typmod < 0:
        return "bpchar"
    modifiers = _modifiers(type_oid, typmod, known)
    name = _SQL_NAMES.get(type_oid)
    if name is None:
        name = f"type {type_oid}" if known is None else _qualified(known)
    first, _, rest = name.partition(" ")
    if modifiers and type_oid in (1083, 1114, 1184, 1266):
        return f"{first}{modifiers} {rest}"
    return f"{name}{modifiers}"


def _modifiers(type_oid: int, typmod: int, known: PgType | None) -> str:
    if typmod < 0:
        return ""
    if type_oid == _NUMERIC:
        modifiers = _numeric_modifiers(typmod)
        return "" if modifiers is None else f"({modifiers[0]},{modifiers[1]})"
    if type_oid in (1042, 1043):
        return f"({typmod - 4})"
    if type_oid in (1083, 1114, 1184, 1266, 1560, 1562):
        return f"({typmod})"
    if type_oid == 1186:
        fields, precision = _INTERVAL_FIELDS.get(typmod >> 16 & 0x7FFF, ""), typmod & 0xFFFF
        return (f" {fields}" if fields else "") + (f"({precision})" if precision != 0xFFFF else "")
    if known is not None and known.name in ("vector", "halfvec"):
        return f"({typmod})"
    return ""


def _qualified(known: PgType) -> str:
    def quoted(name: str) -> str:
        return name if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) else '"' + name.replace('"', '""') + '"'

    name = quoted(known.name)
    return name if known.schema in ("pg_catalog", "public") else f"{quoted(known.schema)}.{name}"


_ARROW: Final = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_type(target: str) -> pa.DataType:
    """Delta DDL -> the Arrow type of staged files. ValueError for a type that Tidemark does not write."""
    if target in _ARROW:
        return _ARROW[target]
    decimal = _DECIMAL.fullmatch(target)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    array = _ARRAY.fullmatch(target)
    if array is not None:
        return pa.list_(arrow_type(array[1]))
    raise ValueError(f"no staged files of type {target!r}")
