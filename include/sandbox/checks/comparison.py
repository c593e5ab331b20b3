"""A source table and its `current` -> the rows in which they differ, value by value: the judge of demo and tests.

The source's values are read as PostgreSQL's own text and brought to what the Delta column's type shall hold; Delta's
come through Spark. Nothing of Tidemark's codec is used: a judge that shares the code it judges finds nothing. Where the
target type cannot hold a value, NULL is expected, and for dates and timestamps the nearest end of the range.

Rows are paired by the source's primary key where it has one, else compared as a multiset. Examples hold values: they
are for the person at the terminal and for tests, not for logs.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact
from typing import Any

import psycopg
from psycopg import sql
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formats.layout import current_table
from tidemark.names import METADATA_COLUMNS, TableName, spark_identifier

Row = tuple[Any, ...]

# What the text of a value depends on; types.md fixes the same settings for the stream.
_SESSION = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, MDY'; SET IntervalStyle = 'iso_8601'; SET bytea_output = 'hex'; "
    "SET extra_float_digits = 1"
)
_FIRST_US = -62_135_596_800_000_000  # 0001-01-01
_LAST_US = 253_402_300_799_999_999  # 9999-12-31 23:59:59.999999
_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Difference:
    """One row; `columns` maps those that differ (where one side alone has the row: all) to (source, current)."""

    kind: str  # missing | extra | different
    key: Row
    columns: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        return f"{self.kind} {self.key!r}: " + ", ".join(f"{c} {s!r} <> {t!r}" for c, (s, t) in self.columns.items())


@dataclass(frozen=True, slots=True)
class Comparison:
    """`differences` counts the rows to insert, change or remove in `current`; `examples` are the first few."""

    table: str
    source_rows: int
    current_rows: int
    differences: int
    examples: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        return self.differences == 0


def compare(
    spark: SparkSession,
    *,
    source: str,
    lake: str,
    pipeline: str,
    table: str,
    leave_out: Collection[str] = (),
    masked: Collection[str] = (),
    most_examples: int = 5,
) -> Comparison:
    """Compare all columns of all rows; `source` is a libpq connection string, `table` an id ("schema.table").

    Columns in `leave_out` must be absent in `current`; those in `masked` must be there but are not compared. A column
    of `current` that says in its metadata which one of the source it is may be called otherwise there. A column that
    one side alone has is an AssertionError: no row could then be equal. A `current` that is not there has no rows.
    """
    current = _read_current(spark, f"{lake.rstrip('/')}/{current_table(pipeline, TableName.parse(table))}")
    return compare_rows(
        source=source,
        table=table,
        fields=None if current is None else current.schema.fields,
        rows=lambda fields: [] if current is None else _current_rows(current, fields),
        leave_out=leave_out,
        masked=masked,
        most_examples=most_examples,
    )


def compare_rows(
    *,
    source: str,
    table: str,
    fields: list[T.StructField] | None,
    rows: Callable[[list[T.StructField]], Iterable[Row]],
    leave_out: Collection[str] = (),
    masked: Collection[str] = (),
    publication: str | None = None,
    most_examples: int = 5,
) -> Comparison:
    """The same for rows of `current` that were read by other means; `fields` are its columns, None if there is none.
    `publication` is the pipeline's, where other publications have generated columns that it has not.

    `rows` is asked for the columns to compare. Times are numbers, microseconds or days since 1970; floats their `repr`;
    arrays tuples; maps sorted pairs.
    """
    name = TableName.parse(table)
    with psycopg.connect(source) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(_SESSION)
        at_source = _columns(connection, name, publication)
        primary_key = _primary_key(connection, name)
        called = _names_by_number(connection, name)
        compared = _fields(fields, [c for c in at_source if c not in leave_out], table, called)
        compared = [f for f in compared if _at_source(f, called) not in masked]
        names = [_at_source(f, called) for f in compared]
        named = [T.StructField(n, f.dataType) for n, f in zip(names, compared, strict=True)]
        source_rows = list(_source_rows(connection, name, named))
    current_rows = list(rows(compared))
    if primary_key and set(primary_key) <= set(names):
        differences = list(_keyed(names, [names.index(k) for k in primary_key], source_rows, current_rows))
    else:
        differences = list(_multiset(names, source_rows, current_rows))
    return Comparison(table, len(source_rows), len(current_rows), len(differences), tuple(differences[:most_examples]))


def _fields(
    fields_held: list[T.StructField] | None, expected: list[str], table: str, called: dict[tuple[int, int], str]
) -> list[T.StructField]:
    if fields_held is None:
        return [T.StructField(c, T.StringType()) for c in expected]
    fields = [f for f in fields_held if f.name not in METADATA_COLUMNS and not _is_dropped(f)]
    names = [_at_source(f, called) for f in fields]
    if sorted(names) != sorted(expected):
        raise AssertionError(f"columns of {table}: the source has {sorted(expected)}, current has {sorted(names)}")
    return fields


def _at_source(field: T.StructField, called: dict[tuple[int, int], str]) -> str:
    """What the source calls the column, by the number that its metadata has (docs/formats.md)."""
    column = field.metadata.get("tidemark.column", {})
    return called.get((column.get("relation", 0), column.get("attnum", 0)), field.name)


def _is_dropped(field: T.StructField) -> bool:
    """Whether the column's comment says that the source has it no more."""
    return str(field.metadata.get("comment", "")).startswith("Dropped at the source")


# --- pairing ---------------------------------------------------------------------------------------------------------


def _whole(kind: str, key: Row, names: list[str], row: Row) -> Difference:
    at_source = kind == "missing"
    return Difference(kind, key, {n: (v, None) if at_source else (None, v) for n, v in zip(names, row, strict=True)})


def _keyed(names: list[str], key: list[int], source: list[Row], current: list[Row]) -> Iterator[Difference]:
    def key_of(row: Row) -> Row:
        return tuple(row[i] for i in key)

    rows_by_key = {key_of(row): row for row in source}
    if len(rows_by_key) != len(source):
        raise AssertionError("two rows of the source have one key as Delta holds it")
    for row in current:
        at_source = rows_by_key.pop(key_of(row), None)
        if at_source is None:  # unknown at the source, or the second copy of its key
            yield _whole("extra", key_of(row), names, row)
        elif at_source != row:
            pairs = zip(names, at_source, row, strict=True)
            yield Difference("different", key_of(row), {n: (s, t) for n, s, t in pairs if s != t})
    for missing, row in rows_by_key.items():
        yield _whole("missing", missing, names, row)


def _multiset(names: list[str], source: list[Row], current: list[Row]) -> Iterator[Difference]:
    at_source, in_lake = Counter(source), Counter(current)
    for row in (at_source - in_lake).elements():
        yield _whole("missing", (), names, row)
    for row in (in_lake - at_source).elements():
        yield _whole("extra", (), names, row)


# --- the source's side: PostgreSQL's text -> the value that current shall hold ---------------------------------------


def _columns(connection: psycopg.Connection[Any], table: TableName, publication: str | None) -> list[str]:
    """The columns that the stream can carry: of the generated ones those that the publication has, or any.

    Before PostgreSQL 18 it carries none of them, although 15 lists them in pg_publication_tables.
    """
    rows = connection.execute(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(name)s::text))"
        " AND attnum > 0 AND NOT attisdropped AND (attgenerated = '' OR"
        " current_setting('server_version_num')::int >= 180000 AND EXISTS (SELECT FROM pg_publication_tables p"
        " WHERE p.schemaname = %(schema)s AND p.tablename = %(name)s AND attname = ANY (p.attnames)"
        " AND p.pubname = coalesce(%(publication)s, p.pubname))) ORDER BY attnum",
        {"schema": table.schema, "name": table.name, "publication": publication},
    ).fetchall()
    if not rows:
        raise AssertionError(f"the source has no table {table}")
    return [name for (name,) in rows]


def _names_by_number(connection: psycopg.Connection[Any], table: TableName) -> dict[tuple[int, int], str]:
    rows = connection.execute(
        "SELECT attrelid, attnum, attname FROM pg_attribute"
        " WHERE attrelid = to_regclass(format('%%I.%%I', %s::text, %s::text)) AND attnum > 0 AND NOT attisdropped",
        (table.schema, table.name),
    )
    return {(relation, attnum): name for relation, attnum, name in rows}


def _primary_key(connection: psycopg.Connection[Any], table: TableName) -> list[str]:
    rows = connection.execute(
        "SELECT a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
        "WHERE i.indisprimary AND i.indrelid = to_regclass(format('%%I.%%I', %s::text, %s::text)) ORDER BY k.place",
        (table.schema, table.name),
    ).fetchall()
    return [name for (name,) in rows]


def _source_rows(connection: psycopg.Connection[Any], table: TableName, fields: list[T.StructField]) -> Iterator[Row]:
    """The table's own rows: those of tables that inherit from it are theirs, those of partitions their root's."""
    row = connection.execute(
        "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(format('%%I.%%I', %s::text, %s::text))",
        (table.schema, table.name),
    ).fetchone()
    only = sql.SQL("" if row is not None and row[0] else "ONLY ")
    columns = sql.SQL(", ").join(sql.Identifier(f.name) for f in fields)
    query = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(
        columns, only, sql.Identifier(table.schema, table.name)
    )
    convert = [_reader(f.dataType) for f in fields]
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        for row in copy.rows():
            yield tuple(None if t is None else c(t) for c, t in zip(convert, row, strict=True))


def _reader(target: T.DataType) -> Callable[[str], Any]:
    """The function from PostgreSQL's text to what a column of type `target` shall hold, in the form of `_value`."""
    match target:
        case T.StringType():
            return str
        case T.BooleanType():
            return lambda text: text == "t"
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            return int
        case T.FloatType():
            return lambda text: _float(struct.unpack("f", struct.pack("f", float(text)))[0])
        case T.DoubleType():
            return lambda text: _float(float(text))
        case T.DecimalType():
            return lambda text: _decimal(text, target.precision, target.scale)
        case T.BinaryType():
            return lambda text: bytes.fromhex(text.removeprefix("\\x"))
        case T.DateType():
            return lambda text: _microseconds(f"{text} 00:00:00") // _DAY_US
        case T.TimestampType() | T.TimestampNTZType():
            return lambda text: _microseconds(text)
        case T.ArrayType():
            element = _reader(target.elementType)
            return lambda text: _array(text, element)
        case T.MapType():
            return _hstore
    raise AssertionError(f"no rule to compare a column of type {target.simpleString()}")


def _float(value: float) -> str:
    """Text, since NaN shall equal NaN and 0.0 shall not equal -0.0."""
    return repr(value)


def _decimal(text: str, precision: int, scale: int) -> Decimal | None:
    value = Decimal(text)
    if not value.is_finite() or (value and value.adjusted() >= precision - scale):
        return None
    try:
        return value.quantize(Decimal(1).scaleb(-scale), context=Context(prec=200_000, traps=[Inexact]))
    except Inexact:
        return None


def _microseconds(text: str) -> int:
    """Microseconds since 1970 (UTC) of PostgreSQL's ISO text, clamped to the years that Delta holds."""
    if text.startswith("-infinity") or " BC" in text:
        return _FIRST_US
    if text.startswith("infinity") or text.index("-") > 4:
        return _LAST_US
    moment = datetime.fromisoformat(text)
    passed = (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment) - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",]+)')
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def _array(text: str, element: Callable[[str], Any]) -> Row | None:
    """'{1,NULL}' or pgvector's '[1,2]' -> elements; None for another shape or lower bound, which Delta cannot hold."""
    if "=" in text.partition("{")[0] or text.startswith("{{"):
        return None
    matches = _ELEMENT.finditer(text[1:-1])
    return tuple(
        element(_ESCAPE.sub(r"\1", quoted)) if quoted is not None else None if bare.upper() == "NULL" else element(bare)
        for quoted, bare in (m.groups() for m in matches)
    )


def _hstore(text: str) -> tuple[tuple[str, str | None], ...]:
    pairs = (m.groups() for m in _PAIR.finditer(text))
    return tuple(sorted((_ESCAPE.sub(r"\1", k), None if v is None else _ESCAPE.sub(r"\1", v)) for k, v in pairs))


# --- Delta's side ----------------------------------------------------------------------------------------------------


def _read_current(spark: SparkSession, path: str) -> DataFrame | None:
    try:
        return spark.read.format("delta").load(path)
    except AnalysisException as error:
        if error.getCondition() in ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND"):
            return None
        raise


def _current_rows(current: DataFrame, fields: list[T.StructField]) -> Iterable[Row]:
    columns = [_plain(F.col(spark_identifier(f.name)), f.dataType) for f in fields]
    convert = [_value(f.dataType) for f in fields]
    for row in current.select(*columns).toLocalIterator():
        yield tuple(None if v is None else c(v) for c, v in zip(convert, row, strict=True))


def _plain(column: Column, kind: T.DataType) -> Column:
    """Times as numbers or text: as Python's own they would be shifted into the time zone of this machine."""
    match kind:
        case T.TimestampType():
            return F.unix_micros(column)
        case T.TimestampNTZType():
            return column.cast("string")
        case T.DateType():
            return F.unix_date(column)
        case T.ArrayType():
            return F.transform(column, lambda element: _plain(element, kind.elementType))
    return column


def _value(kind: T.DataType) -> Callable[[Any], Any]:
    match kind:
        case T.FloatType() | T.DoubleType():
            return _float
        case T.TimestampNTZType():
            return _microseconds
        case T.BinaryType():
            return bytes
        case T.ArrayType():
            element = _value(kind.elementType)
            return lambda values: tuple(None if v is None else element(v) for v in values)
        case T.MapType():
            return lambda pairs: tuple(sorted(pairs.items()))
    return lambda value: value
