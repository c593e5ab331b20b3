"""The table of types: PostgreSQL -> Delta -> Arrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sandbox.documents import types_table
from tests.support import pgoutput
from tidemark.formats.columns import staged_schema
from tidemark.schema import postgres_types
from tidemark.schema.delta_types import PgType, arrow_type, target_type, type_name

TYPES = {
    t.oid: t
    for t in (
        PgType(1007, "_int4", "pg_catalog", "b", element_oid=23),
        PgType(1231, "_numeric", "pg_catalog", "b", element_oid=1700),
        PgType(1015, "_varchar", "pg_catalog", "b", element_oid=1043),
        PgType(1017, "_point", "pg_catalog", "b", element_oid=600),
        PgType(600, "point", "pg_catalog", "b"),
        PgType(3904, "int4range", "pg_catalog", "r"),
        PgType(4451, "int4multirange", "pg_catalog", "m"),
        PgType(50001, "mood", "shop", "e"),
        PgType(50002, "_mood", "shop", "b", element_oid=50001),
        PgType(50003, "price", "public", "d", base_oid=1700, base_typmod=(10 << 16 | 2) + 4),
        PgType(50004, "fair price", "public", "d", base_oid=50003),
        PgType(50005, "_price", "public", "b", element_oid=50003),
        PgType(50006, "pair", "public", "c"),
        PgType(50007, "_pair", "public", "b", element_oid=50006),
        PgType(50008, "tags", "public", "d", base_oid=1007),
        PgType(50009, "hstore", "public", "b"),
        PgType(50010, "_hstore", "public", "b", element_oid=50009),
        PgType(50011, "vector", "public", "b"),
        PgType(50012, "halfvec", "extensions", "b"),
        PgType(50013, "citext", "public", "b"),
        PgType(50014, "_citext", "public", "b", element_oid=50013),
        PgType(50015, "geometry", "public", "b"),
        PgType(50016, "_geometry", "public", "b", element_oid=50015),
    )
}


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("type_oid", "typmod", "target"),
    [
        (16, -1, "boolean"),
        (26, -1, "bigint"),
        (1700, -1, "string"),
        (1700, numeric(38, 0), "decimal(38,0)"),
        (1700, numeric(39, 0), "string"),
        (1700, numeric(2, 3), "string"),
        (1700, numeric(5, -2), "string"),
        (1114, 3, "timestamp_ntz"),
        (1184, -1, "timestamp"),
        (3802, -1, "string"),
        (1007, -1, "array<int>"),
        (1231, numeric(6, 2), "array<decimal(6,2)>"),
        (1231, -1, "array<string>"),
        (1017, -1, "string"),
        (600, -1, "string"),
        (3904, -1, "string"),
        (4451, -1, "string"),
        (50001, -1, "string"),
        (50002, -1, "array<string>"),
        (50003, -1, "decimal(10,2)"),
        (50004, -1, "decimal(10,2)"),
        (50005, -1, "array<decimal(10,2)>"),
        (50006, -1, "string"),
        (50007, -1, "string"),
        (50008, -1, "array<int>"),
        (50009, -1, "map<string,string>"),
        (50010, -1, "string"),
        (50011, 3, "array<float>"),
        (50012, -1, "array<float>"),
        (50013, -1, "string"),
        (50014, -1, "array<string>"),
        (50015, -1, "string"),
        (50016, -1, "string"),
        (99999, 7, "string"),
    ],
)
def test_every_type_has_a_target(type_oid: int, typmod: int, target: str) -> None:
    assert target_type(type_oid, typmod, TYPES) == target
    assert isinstance(arrow_type(target), pa.DataType)


def test_a_column_can_be_set_to_text_or_a_numeric_one_to_a_decimal() -> None:
    assert target_type(1184, -1, TYPES, "text") == "string"
    assert target_type(1700, -1, TYPES, "decimal(20, 4)") == "decimal(20,4)"
    assert target_type(50003, -1, TYPES, "decimal( 12 ,2 )") == "decimal(12,2)"


def test_a_decimal_is_for_numeric_columns() -> None:
    with pytest.raises(ValueError, match="this one is integer"):
        target_type(23, -1, TYPES, "decimal(5,2)")


@pytest.mark.parametrize(
    ("type_oid", "typmod", "name"),
    [
        (1700, numeric(10, 2), "numeric(10,2)"),
        (1043, 24, "character varying(20)"),
        (1015, 24, "character varying(20)[]"),
        (1184, 3, "timestamp(3) with time zone"),
        (50001, -1, "shop.mood"),
        (50004, -1, '"fair price"'),
        (50011, 3, "vector(3)"),
        (99999, -1, "type 99999"),
    ],
)
def test_names_are_those_of_format_type(type_oid: int, typmod: int, name: str) -> None:
    named = {
        **TYPES,
        1700: PgType(1700, "numeric", "pg_catalog", "b"),
        1043: PgType(1043, "varchar", "pg_catalog", "b"),
    }
    assert type_name(type_oid, typmod, named) == name


def test_a_type_that_is_not_staged_is_refused() -> None:
    with pytest.raises(ValueError, match="variant"):
        arrow_type("variant")


def test_the_documented_table_is_that_of_the_code() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "formats.md").read_text()
    assert types_table.document() in page, "python -m sandbox.documents.types_table prints it"


def test_every_codec_and_target_is_used_by_a_type() -> None:
    targets = {row.target.ddl for row in postgres_types.POSTGRES_TYPES}
    assert targets == {*(target.ddl for target in postgres_types.SCALARS), "array<float>"}
    for row in postgres_types.POSTGRES_TYPES:
        assert postgres_types.target_of(row.target.ddl) == row.target


def test_types_are_alike_where_an_alter_changes_neither_text_nor_order() -> None:
    assert postgres_types.are_alike(25, 1043)
    assert postgres_types.are_alike(50001, 50001)
    assert not postgres_types.are_alike(869, 650), "inet and cidr have one storage and two texts"
    assert not postgres_types.are_alike(1043, 50001)
    assert postgres_types.ORDERED_AS == {"smallint": "bigint", "integer": "bigint", "character varying": "text"}


def test_staged_columns_depend_on_key_and_identity() -> None:
    keyed = staged_schema(pgoutput.schema({"b": "string", "a": "int"}, key=["a", "b"]))
    assert keyed.names[6:] == ["b", "a", "_old_key", "_unchanged", "_text"]
    assert [field.name for field in keyed.field("_old_key").type] == ["a", "b"]
    keyless = staged_schema(pgoutput.schema({"b": "string", "a": "int"}, identity="full"))
    assert keyless.names[6:] == ["b", "a", "_unchanged", "_text", "_old"]
    assert [field.name for field in keyless.field("_old").type] == ["b", "a"]
    assert staged_schema(pgoutput.schema({"a": "int"}, identity="nothing")).names[6:] == ["a", "_unchanged", "_text"]
