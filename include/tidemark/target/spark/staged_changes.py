"""Reads the staged Parquet files of one table into one DataFrame of changes, in the newest schema version's shape.

The manifest has the path, schema and size of each file, so no folder is listed and no schema is inferred. Each schema
version takes one read. A file of an older version lacks columns that were added later. They become NULL, or get the
default of older rows (`Column.missing`). A dropped column is NULL in newer files. A widened column is read in its
staged type and cast. A renamed column is matched by its number, and the marks get its newest name. Any other difference
between two versions of a plan is an error, because the drain parks such a table earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.errors import SchemaVersionsDiffer
from tidemark.formats.manifest import Claim, StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, OLD_KEY_PREFIX, OLD_PREFIX, spark_identifier
from tidemark.schema.delta_types import widens
from tidemark.schema.table import Column, TableSchema
from tidemark.schema.values import convert
from tidemark.target.spark.fold import BEFORE

# The prefixes of a column's name in `_text`. In `_unchanged` names have no prefix.
PREFIXES: Final = ("", OLD_KEY_PREFIX, OLD_PREFIX)

# The column that names the folder of a chunk row's file, and so its chunk and attempt.
FOLDER = "__tidemark_folder"


def check_versions(schemas: Sequence[TableSchema]) -> None:
    """Raise SchemaVersionsDiffer if a version differs from the last one, the target's, in more than allowed ways.

    A version may lack columns of the target, and its columns may be narrower or have other names.
    """
    newest = schemas[-1]
    names = {c.name for c in newest.columns}
    for schema in schemas[:-1]:
        pairs = [(c, schema.column_in(newest, c)) for c in schema.columns]
        # A dropped column stays in the newest version, unless another column now has its name.
        differing = sorted(
            c.name for c, now in pairs if not (c.name in names if now is None else _is_compatible(c, now))
        )
        other_names = newest.other_names(schema)
        if (
            tuple(other_names.get(name, name) for name in schema.key) != newest.key
            or schema.is_multiset != newest.is_multiset
        ):
            differing = ["the key", *differing]
        if differing:
            raise SchemaVersionsDiffer(
                table=str(newest.table), older=schema.version, newer=newest.version, columns=", ".join(differing)
            )


def _is_compatible(older: Column, newer: Column) -> bool:
    return older.target == newer.target or widens(older.target, newer.target)


def read_changes(
    session: SparkSession, lake: str, schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch]
) -> DataFrame:
    """All changes of the batches: metadata, the newest version's columns, `_unchanged`, `_text`, and BEFORE.

    BEFORE is a struct of the identity's columns before the change: `_old_key` of a keyed table, `_old` of a multiset.
    The result has no BEFORE if the table is neither.
    """
    newest = schemas[-1]
    frames = []
    for schema in schemas:
        files = [f for b in batches for f in b.files if f.schema_version == schema.version]
        if files:
            frame = _read(session, staged_type(schema), lake, files)
            frames.append(_aligned(frame, schema, newest))
    if not frames:
        return _aligned(_no_rows(session, staged_type(newest)), newest, newest)
    return reduce(DataFrame.unionByName, frames)


def read_chunk_rows(
    session: SparkSession, lake: str, schemas: Sequence[TableSchema], claims: Iterable[Claim]
) -> DataFrame:
    """All rows of the claimed chunks: the newest version's columns, `_text`, and FOLDER, which identifies the chunk."""
    newest = schemas[-1]
    files = [file for claim in claims for file in claim.files]
    frames = []
    for schema in schemas:
        of_version = [file for file in files if file.schema_version == schema.version]
        if of_version:
            frame = _read(session, chunk_type(schema), lake, of_version)
            path = frame.metadataColumn("_metadata")["file_path"]  # a column of the table may be called so too
            folder = F.element_at(F.split(path, "/"), -2).alias(FOLDER)
            frames.append(frame.select(folder, *_values(schema, newest, F.lit(True)), _marks(schema, newest)["_text"]))
    if not frames:
        empty = _no_rows(session, chunk_type(newest))
        return empty.select(F.lit("").alias(FOLDER), *_values(newest, newest, F.lit(True)), "_text")
    return reduce(DataFrame.unionByName, frames)


def _read(session: SparkSession, of: StructType, lake: str, files: Sequence[StagedFile]) -> DataFrame:
    """The rows of staged files."""
    reader = session.read.schema(of).option("__globPaths__", "false")  # the lake's path may look like a pattern
    return reader.parquet(*(f"{lake}/{file.path}" for file in files))


def _no_rows(session: SparkSession, of: StructType) -> DataFrame:
    """An empty frame of the type. `createDataFrame` would start Python on executors, which may not have it."""
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in of.fields]
    return session.range(0).where(F.lit(False)).select(*columns)


def folder_of(claim: Claim) -> str:
    """The value of FOLDER for a chunk's rows: the name of its files' folder."""
    return f"{claim.chunk}-{claim.attempt}"


def chunk_type(schema: TableSchema) -> StructType:
    """The Spark type of a chunk's file: `formats.columns.chunk_schema` in Spark's terms."""
    return struct_of(", ".join([*(_ddl(c) for c in schema.columns), metadata_ddl({"_text": MARK_COLUMNS["_text"]})]))


def staged_type(schema: TableSchema) -> StructType:
    """The Spark type of a staged file: `formats.columns.staged_schema` in Spark's terms."""
    fields = [metadata_ddl(CHANGE_COLUMNS), *(_ddl(c) for c in schema.columns)]
    if schema.key:
        fields.append(f"_old_key STRUCT<{_fields(_identity(schema))}>")
    fields.append(metadata_ddl(MARK_COLUMNS))
    if schema.is_multiset:
        fields.append(f"_old STRUCT<{_fields(schema.columns)}>")
    return struct_of(", ".join(fields))


def metadata_ddl(columns: Mapping[str, str]) -> str:
    """Columns of Tidemark's own, name -> type, as DDL."""
    return ", ".join(f"{name} {target}" for name, target in columns.items())


def struct_of(ddl: str) -> StructType:
    """Columns as DDL -> their type."""
    return cast(StructType, StructType.fromDDL(ddl))


def _identity(schema: TableSchema) -> list[Column]:
    by_name = {c.name: c for c in schema.columns}
    return [by_name[name] for name in schema.key]


def _ddl(column: Column) -> str:
    return f"{spark_identifier(column.name)} {column.target}"


def _fields(columns: Sequence[Column]) -> str:
    return ", ".join(f"{spark_identifier(c.name)}: {c.target}" for c in columns)


def _values(schema: TableSchema, newest: TableSchema, is_row: SparkColumn) -> list[SparkColumn]:
    """The newest version's columns, selected from a frame with the columns of `schema`.

    Where `is_row` holds, a column that was added later gets the default of older rows.
    """
    return [_value(schema, newest, c, "", F.when(is_row, missing_value(c))) for c in newest.columns]


def _value(schema: TableSchema, newest: TableSchema, column: Column, before: str, missing: SparkColumn) -> SparkColumn:
    own = newest.column_in(schema, column)
    if own is None:
        return missing.alias(column.name)
    value = F.col(before + spark_identifier(own.name))
    if own.target != column.target:
        value = value.cast(column.target)
    return value if (own.name, own.target) == (column.name, column.target) and not before else value.alias(column.name)


def _marks(schema: TableSchema, newest: TableSchema) -> dict[str, SparkColumn]:
    """MARK_COLUMNS, with the columns' newest names in them."""
    other_names = newest.other_names(schema)
    if not other_names:
        return {name: F.col(name) for name in MARK_COLUMNS}
    prefixed = [(before + old, before + new) for old, new in other_names.items() for before in PREFIXES]
    names = F.create_map(*[F.lit(name) for pair in prefixed for name in pair])

    def newest_name(name: SparkColumn) -> SparkColumn:
        return F.coalesce(F.try_element_at(names, name), name)

    return {
        "_unchanged": F.transform("_unchanged", newest_name).alias("_unchanged"),
        "_text": F.transform_keys("_text", lambda name, _: newest_name(name)).alias("_text"),
    }


def _aligned(frame: DataFrame, schema: TableSchema, newest: TableSchema) -> DataFrame:
    values = _values(schema, newest, F.col("_op").isin("insert", "update"))
    before = []
    if newest.key:
        # The struct is cast by position: the key's columns may have other names by now, and wider types.
        before = [F.col("_old_key").cast(f"STRUCT<{_fields(_identity(newest))}>").alias(BEFORE)]
    elif newest.is_multiset:
        old = [_value(schema, newest, c, "_old.", missing_value(c)) for c in newest.columns]
        before = [F.when(F.col("_old").isNotNull(), F.struct(*old)).alias(BEFORE)]
    return frame.select(*CHANGE_COLUMNS, *values, *_marks(schema, newest).values(), *before)


def missing_value(column: Column) -> SparkColumn:
    """The value of a column in rows that were written before it was added (`Column.missing`), in its target type."""
    return _literal(missing_scalar(column).as_py(), column.target)


def missing_scalar(column: Column) -> pa.Scalar:
    """The value as an Arrow scalar, decoded as the stream's values are."""
    return convert(pa.array([column.missing], pa.string()), column.target).values[0]


def _literal(value: Any, target: str) -> SparkColumn:
    if isinstance(value, bytes):
        return F.lit(bytearray(value))
    if isinstance(value, list):
        item = target[len("array<") : -1]
        return F.array(*[_literal(element, item) for element in value]).cast(target)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return F.expr(f"TIMESTAMP '{value.isoformat()}'")
    if isinstance(value, datetime):
        return F.expr(f"TIMESTAMP_NTZ '{value.isoformat()}'")
    if isinstance(value, date):  # PySpark's own way to Java writes a year below 1000 without its zeros
        return F.expr(f"DATE '{value.isoformat()}'")
    return F.lit(value).cast(target)
