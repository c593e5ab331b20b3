"""Changes the columns of a Delta table after those of the source: one metadata commit per change, without a position.

Each of Delta's ALTER TABLE commands makes a separate commit, and none fills the column that it adds. Here one Delta
transaction writes the final metadata and the rows that belong to it. If a driver dies, the change is complete or not
made. If another driver committed first, the merge reads again (`delta_tables.is_contested`). Source: Delta protocol,
"Change Metadata", "Schema Serialization Format".

Facts about a column's source are kept in its metadata in Delta's schema:

    SOURCE    the column at the source: the OID of its table, and its number
    OLDER     history only: the rows written before the column was added; they have NULL and mean the default
    FILL      current only, if `public_path` added the column: the default that older rows get, see `fill`
    ADDED     history only: the table's position when it got the column; current gets the column after history, and
              has it once its position is above this one
    COPIED    the source's comment when it was last copied; also in the table's properties
    HAD       table properties only: the numbers of all columns that the table ever had, also of removed ones
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidemark.lsn import Lsn
from tidemark.names import ROW_HOLES, spark_identifier
from tidemark.schema.renamed_columns import Naming, naming, numbers_of
from tidemark.schema.table import Column as TableColumn
from tidemark.schema.table import TableSchema
from tidemark.target.delta import delta_tables, public_path
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.delta.internals import Transaction
from tidemark.target.spark.staged_changes import missing_value

OLDER: Final = "tidemark.older"
SOURCE: Final = "tidemark.column"
ADDED: Final = "tidemark.added"
FILL: Final = "tidemark.fill"
COPIED: Final = "tidemark.comment"
HAD: Final = "tidemark.columns"

_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_IDENTIFIER: Final = re.compile(r"`(?:[^`]|``)+`|[^,]+")


def older_rows(generation: int, position: Lsn | None, default: str) -> dict[str, Any]:
    """The metadata of a column of history that was added with a default.

    `position` is history's position when it got the column. Rows up to it mean `default`, which is PostgreSQL's text.
    """
    before = 0 if position is None else int(position)
    return {
        OLDER: {"generation": generation, "commit_lsn": before, "default": default},
        "comment": f"Added at the source with a default. A row of _generation < {generation}, or of _generation = "
        f"{generation} and _commit_lsn < {before}, has NULL here and means: {default}",
    }


def added_at(field: StructField, generation: int, position: Lsn | None) -> StructField:
    """The field, marked as added to history at this position."""
    at = {ADDED: {"generation": generation, "commit_lsn": 0 if position is None else int(position)}}
    return StructField(field.name, field.dataType, field.nullable, {**field.metadata, **at})


def added_when(field: StructField) -> tuple[int, Lsn] | None:
    """Generation and position at which history got the field, the lowest if it had the field from the beginning.

    None for a column that Tidemark did not add.
    """
    if ADDED in field.metadata:
        return int(field.metadata[ADDED]["generation"]), Lsn(field.metadata[ADDED]["commit_lsn"])
    return (0, Lsn(0)) if SOURCE in field.metadata else None


def add_columns(
    table: PinnedTable,
    fields: Sequence[StructField],
    values: Mapping[str, Column],
    rows: DataFrame | None = None,
) -> None:
    """Add columns after the others in one commit. Call `delta_tables.enable_features` first.

    With `rows`, the rows of the pinned version, the commit also replaces all rows by these with `values` in the new
    columns. On `public_path` rows are not replaced here, but by `fill`.
    """
    shape = StructType([*table.schema().fields, *fields])
    if table.logged is not None:
        public_path.add_columns(table.logged, fields, columns_property(shape, table.properties))
        return
    transaction = _metadata_transaction(table, shape)
    if rows is not None:
        frame = rows.select(
            *[F.col(spark_identifier(f.name)) for f in table.schema().fields],
            *[values[f.name].cast(f.dataType).alias(f.name) for f in fields],
        )
        transaction.remove_all()
        transaction.write(frame)
    transaction.commit()


def to_fill(field: StructField, default: str) -> StructField:
    """The field of current with the default (PostgreSQL's text) that `fill` writes into its rows in a later commit."""
    return StructField(field.name, field.dataType, field.nullable, {**field.metadata, FILL: default})


def fill(spark: SparkSession, table: PinnedTable) -> bool:
    """Write the defaults in the columns' metadata (FILL) into all rows, unless a driver has done it already.

    Each commit has its own application id, so it takes effect once, even if a driver dies or two drivers try. Returns
    whether there was a commit.
    """
    due = [f for f in table.schema().fields if FILL in f.metadata and table.position(_fill_id(f)) is None]
    for field in due:
        values = {field.name: _default(field, field.metadata[FILL])}
        public_path.update_once(spark, table.path, _fill_id(field), values)
    return bool(due)


def _fill_id(field: StructField) -> str:
    """The application id of the commit that fills the column. A source column is added once in a Delta table's life."""
    source = field.metadata.get(SOURCE, {"attnum": field.name})
    return f"tidemark:fill:{source.get('relation', '')}:{source['attnum']}"


def _default(field: StructField, text: str) -> Column:
    target = field.dataType.simpleString()
    return missing_value(TableColumn(field.name, target, 0, -1, target, missing=text))


def widen(spark: SparkSession, table: PinnedTable, fields: Sequence[StructField]) -> None:
    """Widen the columns to these types ("Type Widening"). No file is rewritten, and readers must support the feature.

    One commit enables the feature, and each column takes one more. If a driver dies in between, the next merge widens
    the remaining columns.
    """
    delta_tables.enable_features(spark, table, fields)
    quoted = f"delta.{spark_identifier(table.path)}"
    spark.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for field in fields:
        spark.sql(
            f"ALTER TABLE {quoted} ALTER COLUMN {spark_identifier(field.name)} TYPE {field.dataType.simpleString()}"
        )


def copy_comments(table: PinnedTable, relation: int, comments: Mapping[int, str], first: str) -> bool:
    """Copy the source's comments to the table and its columns, in one commit. Returns False if nothing changed.

    Other text in a column's comment stays after the source's comment. A comment that begins with `first` is not
    changed. A table comment that somebody wrote by hand stays unless the source has one.
    """
    numbers = source_numbers(table, relation)
    fields = []
    for field in table.schema().fields:
        copied, now = field.metadata.get(COPIED, ""), comments.get(numbers.get(field.name, 0), "")
        if field.name not in numbers or copied == now or field.metadata.get("comment", "").startswith(first):
            fields.append(field)  # not a column of the source, an up-to-date comment, or a dropped column
            continue
        other_text = field.metadata.get("comment", "").replace(copied, "", 1).strip(". ")
        metadata = {name: value for name, value in field.metadata.items() if name not in (COPIED, "comment")}
        if text := ". ".join(part for part in (now, other_text) if part):
            metadata["comment"] = text
        if now:
            metadata[COPIED] = now
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    shape = StructType(fields)
    copied, now = table.properties.get(COPIED, ""), comments.get(0, "")
    if copied == now and shape.json() == table.schema().json():
        return False
    _metadata_transaction(table, shape, table_comment=None if copied == now else now).commit()
    return True


def set_comments(table: PinnedTable, comments: Mapping[str, str]) -> None:
    """Set comments by column name, in one commit; "" removes a comment.

    It does not use SQL, in which a backslash of the source's comment would begin an escape sequence.
    """
    if table.logged is not None:
        public_path.comment_columns(table.logged, comments)
        return
    fields = []
    for field in table.schema().fields:
        text = comments.get(field.name, field.metadata.get("comment", ""))
        metadata = {name: value for name, value in field.metadata.items() if name != "comment"}
        new_metadata = {**metadata, "comment": text} if text else metadata
        fields.append(StructField(field.name, field.dataType, field.nullable, new_metadata))
    _metadata_transaction(table, StructType(fields)).commit()


def with_numbers(shape: StructType, schema: TableSchema) -> StructType:
    """The table's shape, with the source's column (SOURCE) in the metadata of each field that has a number."""
    numbers = {column.name: column.attnum for column in schema.columns if column.attnum}
    return StructType([_numbered(f, schema.relation_oid, numbers.get(f.name)) for f in shape.fields])


def _numbered(field: StructField, relation: int, number: int | None) -> StructField:
    metadata = {name: value for name, value in field.metadata.items() if name != SOURCE}
    if number is not None:
        metadata[SOURCE] = {"relation": relation, "attnum": number}
    return StructField(field.name, field.dataType, field.nullable, metadata)


def columns_property(shape: StructType, properties: Mapping[str, str] | None = None) -> dict[str, str]:
    """The property HAD of a table with these fields, including the numbers in its previous properties."""
    columns = [f.metadata[SOURCE] for f in shape.fields if SOURCE in f.metadata]
    relations = {column["relation"] for column in columns}
    if len(relations) != 1:
        return {}
    (relation,) = relations
    before = json.loads((properties or {}).get(HAD, "{}"))
    numbers = set(before["attnums"]) if before.get("relation") == relation else set()
    return {HAD: json.dumps({"relation": relation, "attnums": sorted(numbers | {c["attnum"] for c in columns})})}


def columns_had(table: PinnedTable, schema: TableSchema) -> set[str]:
    """The columns of this schema that the table has or once had."""
    before = json.loads(table.properties.get(HAD, "{}"))
    if before.get("relation") != schema.relation_oid:
        return set()
    return {column.name for column in schema.columns if column.attnum in before["attnums"]}


def source_numbers(table: PinnedTable, relation: int) -> dict[str, int]:
    """Field name -> number of the source's column, for the fields whose metadata name this source table."""
    columns = {f.name: f.metadata.get(SOURCE, {}) for f in table.schema().fields}
    return {name: int(column["attnum"]) for name, column in columns.items() if column.get("relation") == relation}


def column_numbers(table: PinnedTable, schema: TableSchema, called: Mapping[str, int]) -> dict[str, int]:
    """Field name -> number of the source's column, for all fields for which it is known."""
    now = {c.attnum: c.name for c in schema.columns if c.attnum}
    return numbers_of(table.schema().names, source_numbers(table, schema.relation_oid), called, now)


def target_naming(table: PinnedTable, schema: TableSchema, called: Mapping[str, int]) -> Naming:
    """The names that the table's columns shall have. Raises `renamed_columns.NamesAhead`."""
    now = {c.attnum: c.name for c in schema.columns if c.attnum and c.name not in schema.dropped}
    return naming(table.schema().names, source_numbers(table, schema.relation_oid), called, now)


def rename(spark: SparkSession, table: PinnedTable, to: Naming, relation: int, *, in_rows: bool) -> None:
    """Rename columns ("Column Mapping") and record their source columns, in one commit.

    No file is rewritten, except if rows contain column names too (`in_rows`).
    """
    names = to.names
    if table.logged is not None and not in_rows:
        public_path.rename_columns(table.logged, names)
        return
    if names and not table.is_mapped:
        quoted = f"delta.{spark_identifier(table.path)}"
        spark.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
        table = delta_tables.pin(spark, table.path)
    fields = [StructField(names.get(f.name, f.name), f.dataType, f.nullable, f.metadata) for f in table.schema().fields]
    shape = StructType([_numbered(f, relation, to.numbers.get(f.name)) for f in fields])
    transaction = _metadata_transaction(table, shape, names)
    if in_rows and names:
        newest = F.create_map(*[F.lit(name) for pair in names.items() for name in pair])
        holes = F.transform(ROW_HOLES, lambda name: F.coalesce(F.try_element_at(newest, name), name))
        rows = delta_tables.rows(table).withColumn(ROW_HOLES, holes)
        frame = rows.select(
            *[F.col(spark_identifier(f.name)).alias(names.get(f.name, f.name)) for f in table.schema().fields]
        )
        transaction.remove_all()
        transaction.write(frame)
    transaction.commit()


def _metadata_transaction(
    table: PinnedTable, shape: StructType, names: Mapping[str, str] | None = None, *, table_comment: str | None = None
) -> Transaction:
    """A transaction on the pinned version that gives the table this schema.

    It conflicts with any commit in between that adds or removes a file or changes the metadata.
    """
    transaction = Transaction(table.snapshot)
    transaction.read_all()
    metadata = table.snapshot.metadata
    metadata["schemaString"] = shape.json()
    properties = metadata.setdefault("configuration", {})
    if names and _STATISTICS in properties:
        new_names = {spark_identifier(old): spark_identifier(new) for old, new in names.items()}
        listed = _IDENTIFIER.findall(properties[_STATISTICS])
        properties[_STATISTICS] = ",".join(new_names.get(name, name) for name in listed)
    properties.update(columns_property(shape, properties))
    if table_comment is not None:
        metadata["description"] = table_comment or None
        properties[COPIED] = table_comment
    transaction.describe(metadata)
    return transaction


def with_defaults(history: DataFrame) -> DataFrame:
    """The rows of a history without key, with the default in rows that were written before the column was added."""
    columns = []
    for field in history.schema.fields:
        older = field.metadata.get(OLDER)
        column = F.col(spark_identifier(field.name))
        if older is not None:
            before = (F.col("_generation") < older["generation"]) | (
                (F.col("_generation") == older["generation"]) & (F.col("_commit_lsn") < older["commit_lsn"])
            )
            column = F.when(before & (F.col("_op") != "truncate"), _default(field, older["default"])).otherwise(column)
        columns.append(column.alias(field.name))
    return history.select(*columns)
