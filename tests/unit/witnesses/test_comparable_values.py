"""A value is the same in PostgreSQL's text and in Debezium's event, and another value is another one."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.witnesses.debezium.comparable_values import of_event, of_text

STRING = {"type": "string"}
BYTES = {"type": "bytes"}
BITS = {"type": "bytes", "name": "io.debezium.data.Bits"}
DATE = {"type": "int32", "name": "io.debezium.time.Date"}
MICROSECONDS = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
MILLISECONDS = {"type": "int64", "name": "io.debezium.time.Timestamp"}
TIME = {"type": "int64", "name": "io.debezium.time.MicroTime"}
ZONED = {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}
ZONED_TIME = {"type": "string", "name": "io.debezium.time.ZonedTime"}
POINT = {"type": "struct", "name": "io.debezium.data.geometry.Point"}


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


# The type, PostgreSQL's text, the schema of the event's field, the event's value, and another value's text.
SAME = [
    ("bool", "t", {"type": "boolean"}, True, "f"),
    ("int8", "9007199254740993", {"type": "int64"}, 9007199254740993, "9007199254740992"),
    ("numeric", "1234567890123456789012345678.50", STRING, "1234567890123456789012345678.5", "1"),
    (
        "numeric",
        "12345678901234567890123456789.1",
        STRING,
        "12345678901234567890123456789.1",
        "12345678901234567890123456789.2",
    ),
    ("numeric", "0.00", STRING, "0", "0.01"),
    ("numeric", "100", STRING, "1E+2", "1"),
    ("numeric", "NaN", STRING, "NAN", "Infinity"),
    ("numeric", "Infinity", STRING, "POSITIVE_INFINITY", "-Infinity"),
    ("numeric", "-Infinity", STRING, "NEGATIVE_INFINITY", "Infinity"),
    ("money", "-$1,234.50", STRING, "-1234.50", "$1,234.50"),
    ("float4", "1.1", {"type": "float"}, 1.1, "1.2"),
    ("float8", "-Infinity", {"type": "double"}, "-Infinity", "Infinity"),
    ("float8", "NaN", {"type": "double"}, "NaN", "0"),
    ("float8", "-0", {"type": "double"}, -0.0, "0"),
    ("date", "1970-01-02", DATE, 1, "1970-01-03"),
    ("date", "0001-01-01 BC", DATE, -719528, "0001-01-01"),
    ("timestamp", "1970-01-01 00:00:01.000002", MICROSECONDS, 1_000_002, "1970-01-01 00:00:01"),
    ("timestamp", "1970-01-01 00:00:00.002", MILLISECONDS, 2, "1970-01-01 00:00:00.003"),
    ("timestamp", "infinity", MICROSECONDS, 9223372036825200000, "-infinity"),
    ("timestamp", "0044-03-15 12:00:00 BC", MICROSECONDS, -63517780800000000, "0044-03-15 12:00:00"),
    ("timestamptz", "20000-01-01 00:00:00+00", ZONED, "+20000-01-01T00:00:00.000000Z", "2000-01-01 00:00:00+00"),
    ("timestamptz", "0044-03-15 12:00:00+00 BC", ZONED, "-0043-03-15T12:00:00.000000Z", "0043-03-15 12:00:00+00 BC"),
    ("timestamptz", "-infinity", ZONED, "-infinity", "infinity"),
    ("timestamptz", "2024-02-29 12:00:00+00", ZONED, "2024-02-29T14:00:00.000000+02:00", "2024-02-29 14:00:00+00"),
    ("time", "24:00:00", TIME, 86_400_000_000, "00:00:00"),
    ("timetz", "01:02:03+02", ZONED_TIME, "23:02:03Z", "01:02:03+00"),
    ("interval", "1 year -2 mons 3 days -04:05:06.7", STRING, "P1Y-2M3DT-4H-5M-6.7S", "10 mons 3 days"),
    ("interval", "00:00:00", STRING, "P0Y0M0DT0H0M0S", "00:00:01"),
    ("bit", "1", {"type": "boolean"}, True, "0"),
    ("varbit", "10000000001", BITS, encoded(b"\x01\x04"), "10000000000"),
    ("point", "(1.50,-2)", POINT, {"x": 1.5, "y": -2.0, "wkb": "", "srid": None}, "(1.5,2)"),
    ("point", "(Infinity,1e+300)", POINT, {"x": "Infinity", "y": 1e300, "wkb": "", "srid": None}, "(1,1e+300)"),
    ("box", "(1.10,2),(0,0)", BYTES, encoded(b"(1.1,2),(0,0)"), "(1.1,2),(0,1)"),
    ("path", "[(0,0),(1e+300,2)]", BYTES, encoded(b"[(0,0),(1e300,2)]"), "((0,0),(1e+300,2))"),
    ("circle", "<(1,2),3.50>", BYTES, encoded(b"<(1,2),3.5>"), "<(1,2),3.6>"),
    ("line", "{1,2,Infinity}", BYTES, encoded(b"{1,2,Infinity}"), "{1,2,-Infinity}"),
    ("bytea", "\\x00ff", BYTES, encoded(b"\x00\xff"), "\\x00"),
    ("text", "a\t\u00e9", STRING, "a\t\u00e9", ""),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", STRING, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "other"),
    ("jsonb", '{"a": 2.50}', STRING, '{"a": 2.50}', '{"a": 2.5}'),
    ("tsvector", "'a':1", STRING, "'a':1", "'a':2"),
    ("_int4", "[0:1]={1,NULL}", {"type": "array", "items": {"type": "int32"}}, [1, None], "{NULL,1}"),
    ("_text", '{"a,b",NULL,"NULL","q\\"x"}', {"type": "array", "items": STRING}, ["a,b", None, "NULL", 'q"x'], "{}"),
    ("_numeric", "{1.50,NaN}", {"type": "array", "items": STRING}, ["1.5", "NAN"], "{1.5,0}"),
    ("_date", "{1970-01-02}", {"type": "array", "items": DATE}, [1], "{1970-01-01}"),
    ("_int4", "{{1,2},{3,4}}", {"type": "array"}, [[1, 2], [3, 4]], "{1,2,3,4}"),
    ("int2vector", "1 2", {"type": "array"}, [1, 2], "1"),
    ("_box", "{(1,1),(0,0);(2,2),(1,1)}", BYTES, encoded(b"{(1,1),(0,0);(2,2),(1,1)}"), "{(1,1),(0,0)}"),
]


@pytest.mark.parametrize(("kind", "text", "field", "value", "other"), SAME)
def test_a_value_is_itself_and_no_other(kind: str, text: str, field: dict[str, Any], value: Any, other: str) -> None:
    assert of_text(kind, text) == of_event(kind, field, value)
    assert of_text(kind, other) != of_event(kind, field, value)


def test_null_is_no_value() -> None:
    assert of_text("text", None) is of_event("text", STRING, None) is None
    assert of_text("text", "") is not None


def test_a_value_that_is_none_of_its_type_equals_no_value() -> None:
    assert of_event("int4", STRING, "many") == ("?", '"many"')
