"""Changes the columns of a Delta table as those of the source changed: one metadata commit each, without a position.

Each of Delta's own ALTER TABLE commands makes a commit of its own, and none fills the column that it adds. Here Delta's
transaction writes the final metadata together with the rows that belong to it. A driver that dies leaves the change
whole or not done, and one that lost a race reads again (`delta_tables.is_contested`). Source: Delta protocol, "Change
Metadata", "Schema Serialization Format".

Facts about a column's source are kept in its metadata in Delta's schema:

    SOURCE    the column at the source: the OID of its table, and its number
    OLDER     history only: which rows were written before the column was added; they hold NULL and mean the default
    FILL      current only, and only where `public_path` added the column: the default that older rows get, see `fill`
    ADDED     history only: the table's position when it got a column later; current, which gets it after history, has
              it once current is beyond that position
    SAID      the source's comment when it was last copied; also in the table's properties
    HAD       table properties only: the numbers of all columns that the table ever had, which survive a dropped field
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
SAID: Final = "tidemark.comment"
HAD: Final = "tidemark.columns"

_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_IDENTIFIER: Final = re.compile(r"`(?:[^`]|``)+`|[^,]+")


def older_rows(generation: int, position: Lsn | None, default: str) -> dict[str, Any]:
    """The metadata of a column of `history` whose rows up to `position`, that of the table when it got the column, mean
    `default`, PostgreSQL's text of it."""
    before = 0 if position is None else int(position)
    return {
        OLDER: {"generation": generation, "commit_lsn": before, "default": default},
        "comment": f"Added at the source with a default. A row of _generation < {generation}, or of _generation = "
        f"{generation} and _commit_lsn < {before}, has NULL here and means: {default}",
    }


def added_at(field: StructField, generation: int, position: Lsn | None) -> StructField:
    """The field of a `history` that gets it at `position`."""
    at = {ADDED: {"generation": generation, "commit_lsn": 0 if position is None else int(position)}}
    return StructField(field.name, field.dataType, field.nullable, {**field.metadata, **at})


def added_when(field: StructField) -> tuple[int, Lsn] | None:
    """Generation and position of the `history` that got the field; the lowest of one that it had from the beginning.
    None of a column that is not known to be Tidemark's."""
    if ADDED in field.metadata:
        return int(field.metadata[ADDED]["generation"]), Lsn(field.metadata[ADDED]["commit_lsn"])
    return (0, Lsn(0)) if SOURCE in field.metadata else None


def add(
    table: PinnedTable,
    fields: Sequence[StructField],
    values: Mapping[str, Column],
    rows: DataFrame | None = None,
) -> None:
    """One commit that adds the columns behind the others. With `rows`, those of the pinned version, it puts them in
    place of all that is there, with these values in the new columns. On `public_path` it has no such rows: see `fill`.
    See `delta_tables.make_room`."""
    shape = StructType([*table.schema().fields, *fields])
    if table.logged is not None:
        public_path.add_columns(table.logged, fields, had(shape, table.properties))
        return
    transaction = _changing(table, shape)
    if rows is not None:
        frame = rows.select(
            *[F.col(spark_identifier(f.name)) for f in table.schema().fields],
            *[values[f.name].cast(f.dataType).alias(f.name) for f in fields],
        )
        transaction.remove_all()
        transaction.write(frame)
    transaction.commit()


def to_fill(field: StructField, default: str) -> StructField:
    """The field of a `current` whose rows get the default of PostgreSQL's text in a commit of its own, see `fill`."""
    return StructField(field.name, field.dataType, field.nullable, {**field.metadata, FILL: default})


def fill(spark: SparkSession, table: PinnedTable) -> bool:
    """Give all rows the defaults that their columns' metadata name, where nobody has done so. That is a commit with a
    position of its own: it is made once, though a driver dies or another one does the same. True if there was one."""
    due = [f for f in table.schema().fields if FILL in f.metadata and table.position(_fill_id(f)) is None]
    for field in due:
        values = {field.name: _default(field, field.metadata[FILL])}
        public_path.update_once(spark, table.path, _fill_id(field), values)
    return bool(due)


def _fill_id(field: StructField) -> str:
    """A column of the source is added once in the life of a Delta table."""
    source = field.metadata.get(SOURCE, {"attnum": field.name})
    return f"tidemark:fill:{source.get('relation', '')}:{source['attnum']}"


def _default(field: StructField, text: str) -> Column:
    target = field.dataType.simpleString()
    return missing_value(TableColumn(field.name, target, 0, -1, target, missing=text))


def widen(spark: SparkSession, table: PinnedTable, fields: Sequence[StructField]) -> None:
    """Give the columns these types, which are wider ("Type Widening"): no file is written anew, and a reader must know
    the feature. A commit for each, and one that turns it on: half of it is no harm, the next merge does the rest."""
    delta_tables.enable_features(spark, table, fields)
    quoted = f"delta.{spark_identifier(table.path)}"
    spark.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for field in fields:
        spark.sql(
            f"ALTER TABLE {quoted} ALTER COLUMN {spark_identifier(field.name)} TYPE {field.dataType.simpleString()}"
        )


def comment(table: PinnedTable, relation: int, comments: Mapping[int, str], first: str) -> bool:
    """Give table and columns the source's comments, in one commit; False where they have them. What else a comment
    says stays: `first` before the source's, all else behind it. A comment of the table that somebody else wrote there
    is left alone, unless the source has one."""
    numbers = told(table, relation)
    fields = []
    for field in table.schema().fields:
        was, now = field.metadata.get(SAID, ""), comments.get(numbers.get(field.name, 0), "")
        if field.name not in numbers or was == now or field.metadata.get("comment", "").startswith(first):
            fields.append(field)  # of a dropped column the source says nothing any more
            continue
        others = field.metadata.get("comment", "").replace(was, "", 1).strip(". ")
        metadata = {name: value for name, value in field.metadata.items() if name not in (SAID, "comment")}
        if text := ". ".join(part for part in (now, others) if part):
            metadata["comment"] = text
        if now:
            metadata[SAID] = now
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    shape = StructType(fields)
    was, now = table.properties.get(SAID, ""), comments.get(0, "")
    if was == now and shape.json() == table.schema().json():
        return False
    _changing(table, shape, table_comment=None if was == now else now).commit()
    return True


def annotate(table: PinnedTable, comments: Mapping[str, str]) -> None:
    """Give columns these comments, by the columns' names, in one commit; "" takes one away. Without SQL, in whose texts
    a source's backslash would be half of something else."""
    if table.logged is not None:
        public_path.comment_columns(table.logged, comments)
        return
    fields = []
    for field in table.schema().fields:
        text = comments.get(field.name, field.metadata.get("comment", ""))
        metadata = {name: value for name, value in field.metadata.items() if name != "comment"}
        said = {**metadata, "comment": text} if text else metadata
        fields.append(StructField(field.name, field.dataType, field.nullable, said))
    _changing(table, StructType(fields)).commit()


def with_numbers(shape: StructType, schema: TableSchema) -> StructType:
    """The table's shape, whose fields say which columns of the source they are, as far as that is certain."""
    numbers = {column.name: column.attnum for column in schema.columns if column.attnum}
    return StructType([_numbered(f, schema.relation_oid, numbers.get(f.name)) for f in shape.fields])


def _numbered(field: StructField, relation: int, number: int | None) -> StructField:
    metadata = {name: value for name, value in field.metadata.items() if name != SOURCE}
    if number is not None:
        metadata[SOURCE] = {"relation": relation, "attnum": number}
    return StructField(field.name, field.dataType, field.nullable, metadata)


def had(shape: StructType, properties: Mapping[str, str] | None = None) -> dict[str, str]:
    """The property of a table with these fields, which had those properties before."""
    said = [f.metadata[SOURCE] for f in shape.fields if SOURCE in f.metadata]
    relations = {column["relation"] for column in said}
    if len(relations) != 1:
        return {}
    (relation,) = relations
    before = json.loads((properties or {}).get(HAD, "{}"))
    numbers = set(before["attnums"]) if before.get("relation") == relation else set()
    return {HAD: json.dumps({"relation": relation, "attnums": sorted(numbers | {c["attnum"] for c in said})})}


def had_before(table: PinnedTable, schema: TableSchema) -> set[str]:
    """The columns of this shape that the table got once, whether or not it has them now."""
    before = json.loads(table.properties.get(HAD, "{}"))
    if before.get("relation") != schema.relation_oid:
        return set()
    return {column.name for column in schema.columns if column.attnum in before["attnums"]}


def told(table: PinnedTable, relation: int) -> dict[str, int]:
    """What the table's fields say which columns of the source's table they are."""
    said = {f.name: f.metadata.get(SOURCE, {}) for f in table.schema().fields}
    return {name: int(column["attnum"]) for name, column in said.items() if column.get("relation") == relation}


def numbered(table: PinnedTable, schema: TableSchema, called: Mapping[str, int]) -> dict[str, int]:
    """Which column of the source each field of the table is, as far as it is known."""
    now = {c.attnum: c.name for c in schema.columns if c.attnum}
    return numbers_of(table.schema().names, told(table, schema.relation_oid), called, now)


def named(table: PinnedTable, schema: TableSchema, called: Mapping[str, int]) -> Naming:
    """How the table's columns are to be called. Raises `naming.Ahead`."""
    now = {c.attnum: c.name for c in schema.columns if c.attnum and c.name not in schema.dropped}
    return naming(table.schema().names, told(table, schema.relation_oid), called, now)


def rename(spark: SparkSession, table: PinnedTable, to: Naming, relation: int, *, in_rows: bool) -> None:
    """One commit that gives columns other names ("Column Mapping"): no file is written anew, unless names stand
    `in_rows` too. It also says which column of the source each is."""
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
    transaction = _changing(table, shape, names)
    if in_rows and names:
        newest = F.create_map(*[F.lit(name) for pair in names.items() for name in pair])
        holes = F.transform(ROW_HOLES, lambda name: F.coalesce(F.try_element_at(newest, name), name))
        rows = delta_tables.rows(spark, table).withColumn(ROW_HOLES, holes)
        frame = rows.select(
            *[F.col(spark_identifier(f.name)).alias(names.get(f.name, f.name)) for f in table.schema().fields]
        )
        transaction.remove_all()
        transaction.write(frame)
    transaction.commit()


def _changing(
    table: PinnedTable, shape: StructType, names: Mapping[str, str] | None = None, *, table_comment: str | None = None
) -> Transaction:
    """A transaction on the pinned version that gives the table this schema, and which any commit in between that adds
    or removes a file, or changes the metadata, makes fail."""
    transaction = Transaction(table.snapshot)
    transaction.read_all()
    metadata = table.snapshot.metadata
    metadata["schemaString"] = shape.json()
    properties = metadata.setdefault("configuration", {})
    if names and _STATISTICS in properties:
        others = {spark_identifier(old): spark_identifier(new) for old, new in names.items()}
        listed = _IDENTIFIER.findall(properties[_STATISTICS])
        properties[_STATISTICS] = ",".join(others.get(name, name) for name in listed)
    properties.update(had(shape, properties))
    if table_comment is not None:
        metadata["description"] = table_comment or None
        properties[SAID] = table_comment
    transaction.describe(metadata)
    return transaction


def with_defaults(history: DataFrame) -> DataFrame:
    """The `history` of a table without key with the default where a row from before the column was added means it."""
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
