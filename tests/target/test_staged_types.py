"""What Arrow writes is what Spark is told to read, and two values are stored alike as the row of their type says."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tests.target.lake import table_schema
from tidemark.formats.columns import chunk_schema, staged_schema
from tidemark.schema.postgres_types import SCALARS, array_of, decimal
from tidemark.schema.table import TableSchema
from tidemark.target.spark.fold import stored_form
from tidemark.target.spark.staged_changes import chunk_type, staged_type

TARGETS = [*SCALARS, decimal(38, 10), *(array_of(target) for target in SCALARS if target.in_keys)]
COLUMNS = {"id": "int", **{f"of type {n}": target.ddl for n, target in enumerate(TARGETS)}}
TABLES = [
    table_schema("keyed", COLUMNS, key=("id", "of type 10")),
    table_schema("multiset", COLUMNS, key=(), identity="full"),
    table_schema("history_only", COLUMNS, key=(), identity="nothing"),
    table_schema("empty_multiset", {}, key=(), identity="full"),
]


@pytest.mark.parametrize("schema", TABLES, ids=lambda schema: schema.table.name)
def test_spark_reads_the_columns_that_arrow_writes(schema: TableSchema, spark: SparkSession) -> None:
    assert _types(from_arrow_schema(staged_schema(schema), prefer_timestamp_ntz=True)) == _types(staged_type(schema))
    assert _types(from_arrow_schema(chunk_schema(schema), prefer_timestamp_ntz=True)) == _types(chunk_type(schema))


def _types(struct: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in struct.fields]


@pytest.mark.parametrize("ddl", [target.ddl for target in TARGETS])
def test_two_values_are_stored_alike_where_0_differs_from_minus_0_and_maps_have_no_order(
    ddl: str, spark: SparkSession
) -> None:
    value = F.col("v")
    form = stored_form(value, StructType.fromDDL(f"v {ddl}")["v"].dataType)
    if ddl.startswith("map"):
        assert str(form) == str(F.array_sort(F.map_entries(value)))
    elif "float" in ddl or "double" in ddl:
        assert str(form) == str(value.cast("array<string>" if ddl.startswith("array") else "string"))
    else:
        assert str(form) == str(value)
