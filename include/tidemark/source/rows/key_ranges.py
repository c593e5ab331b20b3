"""Builds the statements that read a table in its key's order, chunk by chunk: key index -> SQL (R7, R9).

A key has the order of its index: by the operators of the index's operator classes, under its collations, each column
ascending or descending. All of this is read from the catalogue. PostgreSQL makes every comparison and this module none,
so a key of any type can be read in order. A position is the key as a list of PostgreSQL's texts, one per column. A
range is `(lower, upper]`; None is no bound. For a key (a, b, c), the rows after the position (x, y, z) are read in
steps:

    a = x AND b = y AND c > z     ORDER BY c
    a = x AND b > y               ORDER BY b, c
    a > x                         ORDER BY a, b, c

Each step is one statement, and so one stretch of the index; all run under one snapshot. The index scan stops at its
LIMIT. Rows beyond the range's upper bound are removed outside of the scan, so that a chunk never reads more rows than
its limit, however many rows share the leading columns. Source: PostgreSQL documentation, 7.5 "Sorting Rows", 11.10
"Operator Classes and Operator Families", 53.3 "pg_amop", 53.26 "pg_index".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.names import TableName
from tidemark.postgres.postgres_session import one_row
from tidemark.schema.postgres_types import ORDERED_AS, SENT_AS_TEXT
from tidemark.source.catalogue.catalog import CapturedTable

Key = tuple[str, ...]
# Everything that determines the order of a key, as JSON: per column its name, type, collation, the collation version
# that the server runs with, whether it descends, and its "<". Positions are valid in every equal KeyOrder.
KeyOrder = list[list[str | bool | None]]

# The number of pages that are sampled for the bounds of ranges.
_SAMPLED_PAGES: Final = 1000
# The number of rows on which a filter is tried.
_TRIED_ROWS: Final = 1000
_COMPARISONS: Final = ("<", "<=", "=", ">=", ">")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of a key index. `type` and `collation` are SQL.

    - `collation_version` is the version of the collation library that the server runs with, None if the provider has no
      versions.
    - `operators` maps "<", "<=", "=", ">=", ">" to the operator class's operators, by their strategy numbers.
    - `is_walked`: whether the key's index is ordered, so that it can be read in key order.
    """

    operators: dict[str, str]
    name: str
    type: str
    collation: str | None
    collation_version: str | None
    descending: bool
    nulls_first: bool
    is_walked: bool

    def compare(self, operator: str, text: str) -> sql.Composed:
        """The SQL `column operator text`, in the direction of the index: "<" means "comes before"."""
        return sql.SQL("{} {} {}").format(self.value, sql.SQL(self._directed(operator)), self.literal(text))

    def equal(self, left: str, right: str) -> sql.Composed:
        """The SQL that compares two texts."""
        return sql.SQL("{} {} {}").format(self.literal(left), sql.SQL(self.operators["="]), self.literal(right))

    @property
    def value(self) -> sql.Composed:
        return self._collated(sql.Identifier(self.name))

    @property
    def order(self) -> sql.Composed:
        return sql.SQL("{} USING {} NULLS {}").format(
            self.value, sql.SQL(self._directed("<")), sql.SQL("FIRST" if self.nulls_first else "LAST")
        )

    def literal(self, text: str) -> sql.Composed:
        return self._collated(sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(self.type)))

    def _collated(self, expression: sql.Composable) -> sql.Composed:
        if self.collation is None:
            return sql.Composed([expression])
        return sql.SQL("{} COLLATE {}").format(expression, sql.SQL(self.collation))

    def _directed(self, operator: str) -> str:
        if self.descending:
            operator = {"<": ">", "<=": ">=", "=": "=", ">=": "<=", ">": "<"}[operator]
        return self.operators[operator]


@dataclass(frozen=True, slots=True)
class TableToRead:
    """The captured part of a table, as SQL. `columns` are names and type OIDs. `conditions` are the publication's
    row filter and the backfill's row filter. `key` is empty if the table has none."""

    table: TableName
    partitioned: bool
    columns: tuple[tuple[str, int], ...]
    key: tuple[KeyColumn, ...]
    conditions: tuple[sql.Composable, ...]

    @property
    def name(self) -> sql.Composed:
        return sql.Composed([sql.Identifier(self.table.schema, self.table.name)])

    @property
    def relation(self) -> sql.Composed:
        """The FROM item: a partitioned table is read through its root, any other table with ONLY, because an
        inheritance child is a table of its own."""
        return self.name if self.partitioned else sql.SQL("ONLY {}").format(self.name)

    @property
    def is_walked(self) -> bool:
        """Whether the table has a key whose index can be read in key order. A key with WITHOUT OVERLAPS, from
        PostgreSQL 18 on, has a GiST index, which has no order: each chunk would sort the whole table."""
        return bool(self.key) and all(column.is_walked for column in self.key)

    @property
    def key_order(self) -> KeyOrder:
        return [
            [c.name, ORDERED_AS.get(c.type, c.type), c.collation, c.collation_version, c.descending, c.operators["<"]]
            for c in self.key
        ]


def table_to_read(
    conn: psycopg.Connection[Any], table: CapturedTable, condition: sql.Composable | None = None
) -> TableToRead:
    """Read from the catalogue what a chunk needs. The key's columns are those of `table.key`, in this order. Raises
    LookupError if the key has changed meanwhile.

    The publication's row filter is the text that PostgreSQL deparses from its expression. `condition` is the form's row
    filter, as `row_filter` writes it.
    """
    conditions: list[sql.Composable] = []
    if table.row_filter is not None:
        conditions.append(sql.SQL("({})").format(sql.SQL(table.row_filter)))
    if condition is not None:
        conditions.append(condition)
    key = _key_columns(conn, table) if table.key else ()
    return TableToRead(
        table=table.name,
        partitioned=table.kind == "p",
        columns=tuple((column.name, column.type_oid) for column in table.captured_columns),
        key=key,
        conditions=tuple(conditions),
    )


def _key_columns(conn: psycopg.Connection[Any], table: CapturedTable) -> tuple[KeyColumn, ...]:
    """The columns of the key's index: the index of the replica identity if that is an index, otherwise the primary
    key's.

    The strategies 1 to 5 of a B-tree are <, <=, =, >=, >. The types in a key with another kind of index are
    PostgreSQL's own, so their operators are in pg_catalog. Raises LookupError if the columns are not those of
    `table.key`.
    """
    rows = conn.execute(
        """
        SELECT CASE WHEN am.amname <> 'btree' THEN
                   ARRAY(SELECT format('OPERATOR(pg_catalog.%%s)', o) FROM unnest(%s::text[]) AS o)
               ELSE (SELECT array_agg(format('OPERATOR(%%I.%%s)', n.nspname, p.oprname) ORDER BY m.amopstrategy)
                  FROM pg_opclass c
                  JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoppurpose = 's'
                   AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
                   AND m.amopstrategy BETWEEN 1 AND 5
                  JOIN pg_operator p ON p.oid = m.amopopr JOIN pg_namespace n ON n.oid = p.oprnamespace
                 WHERE c.oid = k.class) END,
               a.attname::text, format_type(a.atttypid, -1),
               CASE WHEN k.collation_oid <> 0 THEN (
                   SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname) FROM pg_collation l
                   JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = k.collation_oid) END,
               CASE WHEN k.collation_oid <> 0 THEN pg_collation_actual_version(k.collation_oid) END,
               k.option & 1 = 1, k.option & 2 = 2,
               am.amname = 'btree'
          FROM pg_index i JOIN pg_class index ON index.oid = i.indexrelid JOIN pg_am am ON am.oid = index.relam
         CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[], i.indoption::int2[])
               WITH ORDINALITY AS k (attnum, class, collation_oid, option, n)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = %s AND i.indisvalid AND i.indimmediate AND k.n <= i.indnkeyatts
           AND CASE WHEN %s THEN i.indisreplident ELSE i.indisprimary END
         ORDER BY k.n
        """,
        (list(_COMPARISONS), table.relation_oid, table.identity == "index"),
    ).fetchall()
    columns = tuple(KeyColumn(dict(zip(_COMPARISONS, operators, strict=True)), *facts) for operators, *facts in rows)
    if tuple(column.name for column in columns) != table.key:
        raise LookupError(f"the key of {table.table} changed while its index was read")
    return columns


# --- reading ----------------------------------------------------------------------------------------------------------


def copied_columns(table: TableToRead) -> sql.Composed:
    """The captured columns as texts of their output functions, for COPY in binary form. `IS DISTINCT FROM NULL`,
    because a composite value of NULLs alone IS NULL and yet is a value.

    ORDER BY prefers the name of an output to that of a column, and PostgreSQL would call these outputs "case". So they
    have a name that no column of the key has.
    """
    alias = "value"
    while any(column.name == alias for column in table.key):
        alias += "_"
    as_text = "CASE WHEN {0} IS DISTINCT FROM NULL THEN pg_catalog.concat({0}) END AS {1}"
    return sql.SQL(", ").join(
        sql.Identifier(name)
        if type_oid in SENT_AS_TEXT
        else sql.SQL(as_text).format(sql.Identifier(name), sql.Identifier(alias))
        for name, type_oid in table.columns
    )


def steps_after(table: TableToRead, position: Key | None) -> Iterator[int]:
    """The steps that read everything after the position, in order: for each, the number of leading key columns that
    are equal to the position's."""
    yield from range(len(table.key) - 1, -1, -1) if position is not None else (0,)


def chunk_query(table: TableToRead, position: Key | None, upper: Key | None, *, equal: int, limit: int) -> sql.Composed:
    """The rows of one step in `(position, upper]`, at most `limit`, in the key's order. If it returns fewer rows,
    the step has no more."""
    key = table.key
    order = order_by(key[equal:])
    conditions = list(table.conditions)
    if position is not None:
        conditions += [column.compare("=", text) for column, text in zip(key[:equal], position, strict=False)]
        conditions.append(key[equal].compare(">", position[equal]))
    if upper is not None:
        conditions.append(_may_be_within(key, position, upper, equal))
    rows = sql.SQL("SELECT {} FROM {}{} ORDER BY {} LIMIT {}").format(
        sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns),
        table.relation,
        where(conditions),
        order,
        sql.Literal(limit),
    )
    if upper is None:
        return sql.SQL("SELECT {} FROM ({}) AS chunk ORDER BY {}").format(copied_columns(table), rows, order)
    return sql.SQL("SELECT {} FROM ({}) AS chunk WHERE {} ORDER BY {}").format(
        copied_columns(table), rows, _within(key, upper), order
    )


def _within(key: Sequence[KeyColumn], upper: Key) -> sql.Composed:
    """The condition that the key is at or before the position `upper`."""
    column, text = key[0], upper[0]
    if len(key) == 1:
        return column.compare("<=", text)
    return sql.SQL("({} OR ({} AND {}))").format(
        column.compare("<", text), column.compare("=", text), _within(key[1:], upper[1:])
    )


def _may_be_within(key: Sequence[KeyColumn], position: Key | None, upper: Key, equal: int) -> sql.Composed:
    """A bound on the step's first column alone, which ends the index scan: rows beyond it are beyond `upper`. It
    applies only if the step's equal columns are equal to those of `upper`, which PostgreSQL evaluates while it
    plans. If they come before those of `upper`, the whole step is within it."""
    bound = key[equal].compare("<=", upper[equal])
    if equal == 0 or position is None:
        return bound
    same = sql.SQL(" AND ").join(
        column.equal(left, right) for column, left, right in zip(key[:equal], position, upper, strict=False)
    )
    return sql.SQL("(NOT ({}) OR {})").format(same, bound)


def keys_query(table: TableToRead, keys: Sequence[Key]) -> sql.Composed:
    """The rows with one of the keys, in any order. A key that is given twice returns its row once."""
    any_key = sql.SQL(" OR ").join(
        sql.SQL("({})").format(
            sql.SQL(" AND ").join(column.compare("=", text) for column, text in zip(table.key, key, strict=True))
        )
        for key in keys
    )
    return sql.SQL("SELECT {} FROM {}{}").format(
        copied_columns(table), table.relation, where([*table.conditions, sql.SQL("({})").format(any_key)])
    )


def all_rows_query(table: TableToRead) -> sql.Composed:
    """All rows, in any order."""
    return sql.SQL("SELECT {} FROM {}{}").format(copied_columns(table), table.relation, where(table.conditions))


def where(conditions: Sequence[sql.Composable]) -> sql.Composable:
    """The WHERE clause, empty without any condition."""
    if not conditions:
        return sql.SQL("")
    return sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions))


def order_by(key: Sequence[KeyColumn]) -> sql.Composed:
    """The list of an ORDER BY clause, in the order of the key's index."""
    return sql.SQL(", ").join(column.order for column in key)


# --- planning ---------------------------------------------------------------------------------------------------------


def estimated_rows(conn: psycopg.Connection[Any], table: TableToRead) -> int:
    """The number of rows that the planner expects. The table is not read. For a table that was never analysed, the
    planner expects at least ten pages."""
    if not _pages(conn, table):
        return 0
    query = sql.SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM {}{}").format(table.relation, where(table.conditions))
    (plan,) = one_row(conn, query)
    return int(plan[0]["Plan"]["Plan Rows"])


def _pages(conn: psycopg.Connection[Any], table: TableToRead) -> int:
    """The number of pages of the table, or of all leaves of a partitioned table."""
    rows = conn.execute(
        """
        SELECT sum(pg_relation_size(relid)) / current_setting('block_size')::int
          FROM pg_partition_tree(to_regclass(%s)) WHERE isleaf
        UNION ALL SELECT pg_relation_size(to_regclass(%s)) / current_setting('block_size')::int
        """,
        (table.name.as_string(None), table.name.as_string(None)),
    ).fetchall()
    return max(int(count or 0) for (count,) in rows)


def sampled_bounds(conn: psycopg.Connection[Any], table: TableToRead, pieces: int) -> list[Key]:
    """Up to `pieces - 1` keys, ascending in the key's order, that cut the table into pieces of about equal size.
    They come from the rows of a sample of pages. The sizes may differ, but any bounds are correct."""
    if pieces < 2:
        return []
    pages = _pages(conn, table)
    percent = min(100.0, 100.0 * _SAMPLED_PAGES / max(pages, 1))
    names = [sql.Identifier(f"k{i}") for i in range(len(table.key))]
    query = sql.SQL(
        "SELECT {texts} FROM (SELECT {columns}, row_number() OVER (ORDER BY {order}) AS n, count(*) OVER () AS total"
        " FROM {relation} TABLESAMPLE SYSTEM ({percent}) REPEATABLE (1){where}) AS sampled"
        " WHERE n IN (SELECT total * piece / {pieces} FROM generate_series(1, {pieces} - 1) AS piece) ORDER BY n"
    ).format(
        texts=sql.SQL(", ").join(sql.SQL("pg_catalog.concat({})").format(name) for name in names),
        columns=sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(sql.Identifier(column.name), name)
            for column, name in zip(table.key, names, strict=True)
        ),
        order=order_by(table.key),
        relation=table.relation,
        percent=sql.Literal(percent),
        where=where(table.conditions),
        pieces=sql.Literal(pieces),
    )
    return [tuple(key) for key in conn.execute(query).fetchall()]


def try_conditions(conn: psycopg.Connection[Any], table: TableToRead) -> None:
    """Evaluate the conditions on some rows. Raises psycopg's errors, because a filter may fail on a value."""
    conn.execute(
        sql.SQL("SELECT count(*) FROM (SELECT {} FROM {} LIMIT {}) AS tried{}").format(
            sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns),
            table.relation,
            sql.Literal(_TRIED_ROWS),
            where(table.conditions),
        )
    )


def canonical_keys(conn: psycopg.Connection[Any], key: Sequence[KeyColumn], keys: Sequence[Key]) -> list[Key]:
    """The keys in PostgreSQL's output form, each once, in the given order. Raises psycopg's DataError if a text is
    no value of its column's type."""
    texts = sql.SQL(", ").join(
        sql.SQL("pg_catalog.concat({})").format(sql.Identifier(c.name)) for c in _numbered_columns(key)
    )
    query = sql.SQL("SELECT {} FROM {} ORDER BY number").format(texts, _keys_as_rows(key, keys))
    return list(dict.fromkeys(tuple(texts) for texts in conn.execute(query).fetchall()))


def equal_keys(conn: psycopg.Connection[Any], key: Sequence[KeyColumn], keys: Sequence[Key]) -> list[list[Key]]:
    """Groups of keys that are equal for PostgreSQL, and so identify the same row, such as 'Foo' and 'foo' of
    citext, or 1.0 and 1.00 of numeric. The keys are in PostgreSQL's output form; there must be at least one."""
    query = sql.SQL("SELECT number, dense_rank() OVER (ORDER BY {}) AS place FROM {} ORDER BY place, number").format(
        order_by(_numbered_columns(key)), _keys_as_rows(key, keys)
    )
    in_order = conn.execute(query).fetchall()
    return [[keys[number] for number, _ in equal] for _, equal in groupby(in_order, key=lambda row: row[1])]


def _keys_as_rows(key: Sequence[KeyColumn], keys: Sequence[Key]) -> sql.Composed:
    """A VALUES list of the keys: their numbers, from 0, and their values, named as in `_numbered_columns`."""
    rows = sql.SQL(", ").join(
        sql.SQL("({}, {})").format(
            sql.Literal(number), sql.SQL(", ").join(c.literal(text) for c, text in zip(key, texts, strict=True))
        )
        for number, texts in enumerate(keys)
    )
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in _numbered_columns(key))
    return sql.SQL("(VALUES {}) AS given (number, {})").format(rows, names)


def _numbered_columns(key: Sequence[KeyColumn]) -> list[KeyColumn]:
    """The key's columns, renamed to k0, k1 and so on."""
    return [replace(column, name=f"k{place}") for place, column in enumerate(key)]


# --- order ------------------------------------------------------------------------------------------------------------

# Pairs of a PostgreSQL type and its Delta type for which Spark orders the stored values as PostgreSQL's own operators
# order the type.
_ORDERED_ALIKE: Final = frozenset(
    {
        ("smallint", "smallint"),
        ("integer", "int"),
        ("bigint", "bigint"),
        ("oid", "bigint"),
        ("date", "date"),
        ("timestamp without time zone", "timestamp_ntz"),
        ("timestamp with time zone", "timestamp"),
        ("uuid", "string"),
    }
)
_TEXTS: Final = ("text", "character varying")
OWN_LESS: Final = "OPERATOR(pg_catalog.<)"


def is_ordered_as_stored(conn: psycopg.Connection[Any], key: Sequence[KeyColumn], stored: Mapping[str, str]) -> bool:
    """Whether Spark orders the stored values of every key column as the key's index orders the key. `stored` maps a
    column to its Delta type."""
    return all(
        not column.descending
        and column.operators["<"] == OWN_LESS
        and (
            (column.type, stored.get(column.name)) in _ORDERED_ALIKE
            or (column.type == "numeric" and stored.get(column.name, "").startswith("decimal("))
            or (column.type in _TEXTS and stored.get(column.name) == "string" and _is_by_bytes(conn, column))
        )
        for column in key
    )


def _is_by_bytes(conn: psycopg.Connection[Any], column: KeyColumn) -> bool:
    """Whether the column's collation orders texts by their bytes in UTF-8."""
    (by_bytes,) = one_row(
        conn,
        """
        SELECT coalesce(bool_or(CASE l.collprovider
                                     WHEN 'c' THEN l.collcollate IN ('C', 'POSIX')
                                     WHEN 'd' THEN d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX')
                                END), false)
               AND getdatabaseencoding() = 'UTF8'
          FROM pg_collation l, pg_database d WHERE l.oid = to_regcollation(%s) AND d.datname = current_database()
        """,
        (column.collation,),
    )
    return bool(by_bytes)
