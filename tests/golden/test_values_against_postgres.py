"""PostgreSQL is the oracle: every type, as the stream sends it, against what PostgreSQL itself says of the value.

One table per server holds a column for each type. Its rows go through a slot and the codec; the same rows are asked of
PostgreSQL as a plain number, a float's bits, seconds since 1970, bytes: forms that this codec has no part in.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database, drop_database
from tests.golden.record import SETTINGS
from tidemark.pgoutput.decoder import Decoder
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.delta_types import target_type, type_name
from tidemark.schema.table import Column, TableSchema
from tidemark.source.catalogue.catalog import read_types

# Type -> Delta type, and values as SQL text; NULL is added to each.
CASES: dict[str, tuple[str, list[str]]] = {
    "boolean": ("boolean", ["true", "false"]),
    "smallint": ("smallint", ["-32768", "32767", "0"]),
    "integer": ("int", ["-2147483648", "2147483647"]),
    "bigint": ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    "oid": ("bigint", ["4294967295", "0"]),
    "xid": ("bigint", ["4294967295"]),
    "real": ("float", ["0.1", "3.4028235e38", "1e-45", "-0", "NaN", "Infinity", "-Infinity", "16777217"]),
    "double precision": (
        "double",
        ["0.1", "1.7976931348623157e308", "5e-324", "-0", "NaN", "-Infinity", "0.30000000000000004"],
    ),
    "numeric(5,2)": ("decimal(5,2)", ["1.1", "-999.99", "0", "0.005"]),
    "numeric(38,10)": ("decimal(38,10)", ["1234567890123456789012345678.0123456789", "-0.0000000001"]),
    "numeric(38,0)": ("decimal(38,0)", ["99999999999999999999999999999999999999"]),
    "numeric(2,2)": ("decimal(2,2)", ["0.99", "-0.01"]),
    "numeric": ("string", ["1.10", "NaN", "1e50", "-1e-30"]),
    "numeric(40,2)": ("string", ["12345678901234567890123456789012345678.12"]),
    "numeric(5,-2)": ("string", ["12345"]),
    "numeric(2,4)": ("string", ["0.0012"]),
    "money": ("string", ["1234.5", "-0.01"]),
    "text": ("string", ["", "é\n\\", "NULL", " "]),
    "character varying(10)": ("string", ["short"]),
    "character(4)": ("string", ["ab", "", "äöüß"]),
    "name": ("string", ["n"]),
    '"char"': ("string", ["c", ""]),
    "xml": ("string", []),  # the embedded server is built without libxml; the type alone exists
    "uuid": ("string", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]),
    "inet": ("string", ["10.0.0.1", "10.0.0.1/8", "::1"]),
    "cidr": ("string", ["10.0.0.0/8", "10.1.2.3/32"]),
    "macaddr": ("string", ["08:00:2b:01:02:03"]),
    "macaddr8": ("string", ["08:00:2b:01:02:03:04:05"]),
    "bit(3)": ("string", ["101"]),
    "bit varying": ("string", ["", "10101"]),
    "tsvector": ("string", ["a:1 b:2"]),
    "pg_lsn": ("string", ["16/B374D848"]),
    "time without time zone": ("string", ["24:00:00", "12:00:00.5"]),
    "time with time zone": ("string", ["12:00:00.5+05:30"]),
    "interval": ("string", ["1 mon 2 days 03:04:05.6", "-1 year", "0"]),
    "json": ("string", ['{"a": 1.10,  "a": 2}']),
    "jsonb": ("string", ['{"n": 1e40, "long": 12345678901234567890}']),
    "bytea": ("binary", ["", "\\x00ff5c27"]),
    "date": ("date", ["0001-01-01", "9999-12-31", "1582-10-10", "1970-01-01"]),
    "timestamp without time zone": (
        "timestamp_ntz",
        ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "2024-02-29 12:00:00.1"],
    ),
    "timestamp with time zone": (
        "timestamp",
        [
            "0001-01-01 00:00:00+00",
            "9999-12-31 23:59:59.999999+00",
            "1883-11-18 12:03:58-07:56:02",
            "2024-07-01 00:00:00+05:45",
        ],
    ),
    "mood": ("string", ["sad", "very happy"]),
    "positive": ("int", ["1"]),
    "price": ("decimal(10,2)", ["1.5"]),
    "label": ("string", ["x"]),
    "point": ("string", ["(1.5,2)"]),
    "pair": ("string", ['(1,"x,""y")']),
    "int4range": ("string", ["[1,5)", "empty"]),
    "int4multirange": ("string", ["{[1,3),[5,7)}"]),
    "int2vector": ("string", ["1 2 3"]),
    "integer[]": ("array<int>", ["{1,NULL,-3}", "{}"]),
    "boolean[]": ("array<boolean>", ["{t,f,NULL}"]),
    "double precision[]": ("array<double>", ["{0.1,-Infinity}"]),
    "numeric(6,2)[]": ("array<decimal(6,2)>", ["{1.10,-9999.99}"]),
    "numeric[]": ("array<string>", ["{1.10,1e50,NaN}"]),
    "text[]": ("array<string>", ["{[],a[1],]}", '{"a,b","c\\"d","e\\\\f",NULL,"NULL",""," g "}', "{}"]),
    "character varying(5)[]": ("array<string>", ["{abc}"]),
    "date[]": ("array<date>", ["{2024-01-01,NULL}"]),
    "timestamp with time zone[]": ("array<timestamp>", ['{"2024-01-01 00:00:00+00"}']),
    "uuid[]": ("array<string>", ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"]),
    "bytea[]": ("array<binary>", ['{"\\\\x00ff",NULL}']),
    "jsonb[]": ("array<string>", ["{[],[1]}", '{"{\\"a\\": [1, 2]}"}']),
    "mood[]": ("array<string>", ['{"very happy",sad}']),
    "price[]": ("array<decimal(10,2)>", ["{1.5}"]),
    "vector(3)": ("array<float>", ["[1,2.5,-3]"]),
    "halfvec(2)": ("array<float>", ["[0.5,-65504]"]),
    "box[]": ("string", ["{(1,1),(0,0)}"]),
    "pair[]": ("string", ['{"(1,x)"}']),
}
# Values that the target cannot hold -> what it holds instead. Kept as text, and counted.
UNFIT: dict[str, list[tuple[str, Any]]] = {
    "numeric(5,2)": [("NaN", None)],
    "date": [
        ("infinity", "9999-12-31"),
        ("-infinity", "0001-01-01"),
        ("4713-01-01 BC", "0001-01-01"),
        ("10000-01-01", "9999-12-31"),
    ],
    "timestamp without time zone": [
        ("infinity", "9999-12-31T23:59:59.999999"),
        ("-infinity", "0001-01-01T00:00:00"),
        ("0044-03-15 00:00:00 BC", "0001-01-01T00:00:00"),
        ("294276-12-31 23:59:59.999999", "9999-12-31T23:59:59.999999"),
    ],
    "timestamp with time zone": [
        ("infinity", "9999-12-31T23:59:59.999999+00:00"),
        ("0001-01-01 00:00:00+05", "0001-01-01T00:00:00+00:00"),
        ("9999-12-31 23:59:59-01", "9999-12-31T23:59:59.999999+00:00"),
    ],
    "integer[]": [("{{1,2},{3,4}}", None), ("[0:1]={1,2}", None)],
    "date[]": [("{infinity}", ["9999-12-31"])],
    "numeric(6,2)[]": [("{NaN,1.5}", [None, "1.50"])],
}
DDL = """
CREATE EXTENSION vector;
CREATE TYPE mood AS ENUM ('sad', 'very happy');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN label AS varchar(10);
CREATE TYPE pair AS (a int, b text);
"""


@pytest.fixture(scope="module", params=[16, 18])
def stream(request: pytest.FixtureRequest) -> Iterator[tuple[psycopg.Connection[Any], dict[str, Any]]]:
    """A connection, and per case the decoded block of a table of its own."""
    server: PostgresServer = request.getfixturevalue("postgres16" if request.param == 16 else "postgres")
    conninfo = create_database(server, "values")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for name, value in SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute(DDL)
        for i, type_ in enumerate(CASES):
            connection.execute(f"CREATE TABLE t{i} (n int PRIMARY KEY, v {type_})")
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        slot = connection.info.dbname
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        for i, (type_, (_, texts)) in enumerate(CASES.items()):
            rows = [*texts, None, *(text for text, _ in UNFIT.get(type_, []))]
            for n, text in enumerate(rows):
                value = f"CAST(%s::numeric AS {type_})" if type_ == "money" else f"CAST(%s::text AS {type_})"
                connection.execute(f"INSERT INTO t{i} VALUES (%s, {value})", (n, text))
        types = read_types(connection)

        def schema_for(message: RelationMessage) -> TableSchema:
            columns = tuple(
                Column(c.name, type_name(c.type_oid, c.typmod, types), c.type_oid, c.typmod, target)
                for c in message.columns
                for target in [target_type(c.type_oid, c.typmod, types)]
            )
            return TableSchema(message.table, 1, message.relation_oid, message.identity, ("n",), columns)

        messages = [
            row[0]
            for row in connection.execute(
                """
                SELECT data FROM pg_logical_slot_peek_binary_changes(
                  %s, NULL, NULL, 'proto_version', '1', 'publication_names', 'p')
                """,
                (slot,),
            )
        ]
        block = Decoder(schema_for, 1).decode(messages)
        assert {change.schema.table.name for change in block.changes} == {f"t{i}" for i in range(len(CASES))}
        yield connection, {change.schema.table.name: change for change in block.changes}
    drop_database(server, conninfo)


def oracle(target: str) -> str:
    """An SQL expression over v whose value Python reads without the codec."""
    if target in ("float", "double"):
        return f"encode({'float4send' if target == 'float' else 'float8send'}(v), 'hex')"
    if target == "date":
        return "v - DATE '1970-01-01'"
    if target in ("timestamp", "timestamp_ntz"):
        return "(extract(epoch FROM v) * 1000000)::bigint"
    if target == "binary":
        return "encode(v, 'base64')"
    if target.startswith("array"):
        return "to_jsonb(v::real[])::text" if target == "array<float>" else "to_jsonb(v)::text"
    if target == "boolean":
        return "v::int"
    if target == "string":
        return "convert_to(concat(v), 'UTF8')"
    return "v::numeric" if target.startswith("decimal") else "v::text::bigint"


def read(target: str, value: Any) -> Any:
    """The same of a decoded value."""
    if value is None:
        return None
    if target in ("float", "double"):
        return struct.pack(">f" if target == "float" else ">d", value).hex()
    if target == "date":
        return (value - dt.date(1970, 1, 1)).days
    if target in ("timestamp", "timestamp_ntz"):
        return (value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    if target == "string":
        return value.encode()
    return int(value) if target == "boolean" else value


def comparable(value: Any) -> Any:
    """An array's element as PostgreSQL's JSON has it."""
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float):
        return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"
    return value.isoformat() if isinstance(value, dt.date) else value


@pytest.mark.parametrize("type_", CASES)
def test_a_value_is_what_postgresql_says_it_is(
    stream: tuple[psycopg.Connection[Any], dict[str, Any]], type_: str
) -> None:
    connection, changes = stream
    target, texts = CASES[type_]
    number = list(CASES).index(type_)
    change = changes[f"t{number}"]
    column = change.schema.columns[1]
    assert column.target == target
    (formatted,) = connection.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'v'",
        (f"t{number}",),
    ).fetchone() or ("",)
    assert column.type == formatted

    rows = change.rows.to_pylist()
    answers = connection.execute(
        f"SELECT CASE WHEN v IS NOT NULL THEN {oracle(target)} END FROM t{number} WHERE n <= %s ORDER BY n",
        (len(texts),),
    ).fetchall()
    assert len(answers) == len(texts) + 1
    for row, (expected,) in zip(rows, answers, strict=False):
        assert row["_text"] is None
        if target.startswith("array") and expected is not None:
            parsed = json.loads(expected, parse_float=str if target == "array<string>" else float)
            decoded = [comparable(v) for v in row["v"]]
            if target == "array<string>" and type_ != "text[]":
                parsed = [v if v is None or isinstance(v, str) else json.dumps(v) for v in parsed]
            if type_ == "numeric[]":
                decoded, parsed = [Decimal(v) for v in decoded[:2]], [Decimal(v) for v in parsed[:2]]
            assert decoded == parsed
        elif target == "binary" and expected is not None:
            assert row["v"] == base64.b64decode(expected)
        else:
            assert read(target, row["v"]) == expected


@pytest.mark.parametrize("type_", UNFIT)
def test_a_value_that_does_not_fit_is_postgresqls_own_text(
    stream: tuple[psycopg.Connection[Any], dict[str, Any]], type_: str
) -> None:
    connection, changes = stream
    number = list(CASES).index(type_)
    change = changes[f"t{number}"]
    first = len(CASES[type_][1]) + 1
    rows = change.rows.to_pylist()[first:]
    texts_of_postgres = connection.execute(
        f"SELECT concat(v) FROM t{number} WHERE n >= %s ORDER BY n", (first,)
    ).fetchall()
    assert [dict(row["_text"]) for row in rows] == [{"v": text} for (text,) in texts_of_postgres]

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(v) for v in value]
        return value.isoformat() if isinstance(value, dt.date) else None if value is None else str(value)

    assert [plain(row["v"]) for row in rows] == [instead for _, instead in UNFIT[type_]]
    assert change.converted == {"v": len(UNFIT[type_])}
