"""Builds the statements that read a table in its key's order, piece by piece: key index -> SQL (R7, R9).

A key is ordered as its index orders it: by the operators of the index's operator classes, under its collations, each
column ascending or descending. All of that is read from the catalogue, and every comparison is made by PostgreSQL,
never here; so any key can be walked. A position is the key as a list of PostgreSQL's texts, one per column, and a range
is `(lower, upper]`; None is no bound. For a key (a, b, c), what lies behind the position (x, y, z) is read in steps:

    a = x AND b = y AND c > z     ORDER BY c
    a = x AND b > y               ORDER BY b, c
    a > x                         ORDER BY a, b, c

one statement each, all under one snapshot, so that each is one stretch of the index. An index scan stops at its LIMIT;
what lies behind the range's upper bound is cut off outside of it, so that a chunk never reads more rows than it was
asked for, however many share the leading columns. Source: PostgreSQL documentation, 7.5 "Sorting Rows", 11.10
"Operator Classes and Operator Families", 53.3 "pg_amop", 53.26 "pg_index".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.names import TableName
from tidemark.schema.postgres_types import ORDERED_AS, SENT_AS_TEXT
from tidemark.source.catalogue.catalog import CapturedTable

Key = tuple[str, ...]
# What decides the order of a key, as JSON has it: per column its name, type, collation, the version of that which the
# server runs with, whether it descends, and its "<". Of two equal ones, positions in one are positions in the other.
KeyOrder = list[list[str | bool | None]]

# How much of a table is looked at to find the bounds of ranges.
_SAMPLED_PAGES: Final = 1000
# On how many rows a filter is tried.
_TRIED_ROWS: Final = 1000
_COMPARISONS: Final = ("<", "<=", "=", ">=", ">")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of a key index. `type` and `collation` are SQL, `operators` maps "<", "<=", "=", ">=", ">" to the
    operator class's own operators, by their strategy numbers. `collation_version` is that of the library the server
    runs with, None if it tells none. `is_walked`: whether the key's index has an order to be read in."""

    name: str
    type: str
    collation: str | None
    collation_version: str | None
    descending: bool
    nulls_first: bool
    operators: dict[str, str]
    is_walked: bool = True

    def compare(self, operator: str, text: str) -> sql.Composed:
        """`column operator text`, in the direction of the index: "<" is "comes before"."""
        return sql.SQL("{} {} {}").format(self.value, sql.SQL(self._directed(operator)), self.literal(text))

    def compare_texts(self, operator: str, left: str, right: str) -> sql.Composed:
        """The same of two texts."""
        return sql.SQL("{} {} {}").format(self.literal(left), sql.SQL(self._directed(operator)), self.literal(right))

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
    """What of a table is captured, as SQL: `conditions` are the publication's row filter and the backfill's own. `key`
    is empty if the table has none."""

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
        """Through its root where it is partitioned, else alone: an inheritance child is a table of its own."""
        return self.name if self.partitioned else sql.SQL("ONLY {}").format(self.name)

    @property
    def is_walked(self) -> bool:
        """Whether there is a key whose index can be read piece by piece. One with WITHOUT OVERLAPS, from 18 on, has a
        GiST index, which has no order: each piece would sort the whole table."""
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
    """What holds of the table now. The key's columns are those of `table.key`, in their order.

    The publication's filter is the text that PostgreSQL makes of its own expression; `condition` is the form's, as
    `row_filter` writes it.
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
    """The key's index is that of the replica identity, under FULL and by default the primary key's. Strategies of a
    B-tree: 1 to 5 are <, <=, =, >=, >. The types that another index takes in a key are PostgreSQL's own."""
    rows = conn.execute(
        """
        SELECT a.attname::text, format_type(a.atttypid, -1),
               CASE WHEN k.collation_oid <> 0 THEN (
                   SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname) FROM pg_collation l
                   JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = k.collation_oid) END,
               CASE WHEN k.collation_oid <> 0 THEN pg_collation_actual_version(k.collation_oid) END,
               k.option & 1 = 1, k.option & 2 = 2,
               CASE WHEN am.amname <> 'btree' THEN
                   ARRAY(SELECT format('OPERATOR(pg_catalog.%%s)', o) FROM unnest(%s::text[]) AS o)
               ELSE (SELECT array_agg(format('OPERATOR(%%I.%%s)', n.nspname, p.oprname) ORDER BY m.amopstrategy)
                  FROM pg_opclass c
                  JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoppurpose = 's'
                   AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
                   AND m.amopstrategy BETWEEN 1 AND 5
                  JOIN pg_operator p ON p.oid = m.amopopr JOIN pg_namespace n ON n.oid = p.oprnamespace
                 WHERE c.oid = k.class) END,
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
    columns = tuple(
        KeyColumn(
            name=name,
            type=type_,
            collation=collation,
            collation_version=collation_version,
            descending=descending,
            nulls_first=nulls_first,
            operators=dict(zip(_COMPARISONS, operators, strict=True)),
            is_walked=is_walked,
        )
        for name, type_, collation, collation_version, descending, nulls_first, operators, is_walked in rows
    )
    if tuple(column.name for column in columns) != table.key:
        raise LookupError(f"the key of {table.table} changed while it was looked at")
    return columns


# --- reading ----------------------------------------------------------------------------------------------------------


def copied_columns(table: TableToRead) -> sql.Composed:
    """The captured columns as texts of their output functions, for COPY in binary form. `IS DISTINCT FROM NULL`, since
    a composite value of NULLs alone IS NULL and yet is a value."""
    return sql.SQL(", ").join(
        sql.Identifier(name)
        if type_oid in SENT_AS_TEXT
        else sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN pg_catalog.concat({0}) END").format(sql.Identifier(name))
        for name, type_oid in table.columns
    )


def steps_behind(table: TableToRead, position: Key | None) -> Iterator[int]:
    """How many leading key columns are equal to the position's, for each step through what lies behind it, in order."""
    yield from range(len(table.key) - 1, -1, -1) if position is not None else (0,)


def chunk_query(table: TableToRead, position: Key | None, upper: Key | None, *, equal: int, limit: int) -> sql.Composed:
    """One step's rows of `(position, upper]`, `limit` of them at most, in the key's order. Fewer rows mean that
    there are no more of them."""
    key = table.key
    order = sql.SQL(", ").join(column.order for column in key[equal:])
    conditions = list(table.conditions)
    if position is not None:
        conditions += [column.compare("=", text) for column, text in zip(key[:equal], position, strict=False)]
        conditions.append(key[equal].compare(">", position[equal]))
    if upper is not None:
        conditions.append(_may_be_within(key, position, upper, equal))
    rows = sql.SQL("SELECT {} FROM {}{} ORDER BY {} LIMIT {}").format(
        sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns),
        table.relation,
        _where(conditions),
        order,
        sql.Literal(limit),
    )
    if upper is None:
        return sql.SQL("SELECT {} FROM ({}) AS chunk ORDER BY {}").format(copied_columns(table), rows, order)
    return sql.SQL("SELECT {} FROM ({}) AS chunk WHERE {} ORDER BY {}").format(
        copied_columns(table), rows, _within(key, upper), order
    )


def _within(key: Sequence[KeyColumn], upper: Key) -> sql.Composed:
    """The key is at or before the position."""
    column, text = key[0], upper[0]
    if len(key) == 1:
        return column.compare("<=", text)
    return sql.SQL("({} OR ({} AND {}))").format(
        column.compare("<", text), column.compare("=", text), _within(key[1:], upper[1:])
    )


def _may_be_within(key: Sequence[KeyColumn], position: Key | None, upper: Key, equal: int) -> sql.Composed:
    """A bound on the step's first column alone, which ends an index scan: what is beyond it is beyond `upper`. It holds
    if the step's equal columns are those of `upper` too, which PostgreSQL decides while it plans; if they come before
    them, the whole step is within."""
    bound = key[equal].compare("<=", upper[equal])
    if equal == 0 or position is None:
        return bound
    same = sql.SQL(" AND ").join(
        column.compare_texts("=", left, right)
        for column, left, right in zip(key[:equal], position, upper, strict=False)
    )
    return sql.SQL("(NOT ({}) OR {})").format(same, bound)


def keys_query(table: TableToRead, keys: Sequence[Key]) -> sql.Composed:
    """The rows with one of the keys, in any order; a key that is given twice is found once."""
    any_key = sql.SQL(" OR ").join(
        sql.SQL("({})").format(
            sql.SQL(" AND ").join(column.compare("=", text) for column, text in zip(table.key, key, strict=True))
        )
        for key in keys
    )
    return sql.SQL("SELECT {} FROM {}{}").format(
        copied_columns(table), table.relation, _where([*table.conditions, sql.SQL("({})").format(any_key)])
    )


def all_rows_query(table: TableToRead) -> sql.Composed:
    """All rows, in any order."""
    return sql.SQL("SELECT {} FROM {}{}").format(copied_columns(table), table.relation, _where(table.conditions))


def _where(conditions: Sequence[sql.Composable]) -> sql.Composable:
    if not conditions:
        return sql.SQL("")
    return sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions))


# --- planning ---------------------------------------------------------------------------------------------------------


def estimated_rows(conn: psycopg.Connection[Any], table: TableToRead) -> int:
    """How many rows the planner expects to be read; costs no look at the table. Of one that was never analysed the
    planner expects ten pages at least."""
    if not _pages(conn, table):
        return 0
    query = sql.SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM {}{}").format(table.relation, _where(table.conditions))
    row = conn.execute(query).fetchone()
    assert row is not None
    plan = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    return int(plan[0]["Plan"]["Plan Rows"])


def _pages(conn: psycopg.Connection[Any], table: TableToRead) -> int:
    """The pages of the table, or of a root's leaves."""
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
    """Up to `pieces - 1` keys, ascending in the key's order, that cut the table into pieces of about equal size. Found
    among the rows of some pages; the bounds need not be good, any are correct."""
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
        order=sql.SQL(", ").join(column.order for column in table.key),
        relation=table.relation,
        percent=sql.Literal(percent),
        where=_where(table.conditions),
        pieces=sql.Literal(pieces),
    )
    return [tuple(key) for key in conn.execute(query).fetchall()]


def try_conditions(conn: psycopg.Connection[Any], table: TableToRead) -> None:
    """Evaluate the conditions on some rows. Raises psycopg's errors: a filter may fail on a value that it meets."""
    conn.execute(
        sql.SQL("SELECT count(*) FROM (SELECT {} FROM {} LIMIT {}) AS tried{}").format(
            sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns),
            table.relation,
            sql.Literal(_TRIED_ROWS),
            _where(table.conditions),
        )
    )


def canonical_keys(conn: psycopg.Connection[Any], key: Sequence[KeyColumn], keys: Sequence[Key]) -> list[Key]:
    """Keys as anybody may write them -> as PostgreSQL writes them, each once, in the order given. Raises psycopg's
    DataError if one is no value of its columns."""
    texts = sql.SQL(", ").join(sql.SQL("pg_catalog.concat({})").format(sql.Identifier(c.name)) for c in _places(key))
    query = sql.SQL("SELECT {} FROM {} ORDER BY number").format(texts, _given(key, keys))
    return list(dict.fromkeys(tuple(texts) for texts in conn.execute(query).fetchall()))


def alike(conn: psycopg.Connection[Any], key: Sequence[KeyColumn], keys: Sequence[Key]) -> list[list[Key]]:
    """Keys as PostgreSQL writes them -> those together that are equal to it, and so find the same row, as 'Foo' and
    'foo' of citext, or 1.0 and 1.00 of numeric. At least one key."""
    query = sql.SQL("SELECT number, dense_rank() OVER (ORDER BY {}) AS place FROM {} ORDER BY place, number").format(
        sql.SQL(", ").join(column.order for column in _places(key)), _given(key, keys)
    )
    in_order = conn.execute(query).fetchall()
    return [[keys[number] for number, _ in equal] for _, equal in groupby(in_order, key=lambda row: row[1])]


def _given(key: Sequence[KeyColumn], keys: Sequence[Key]) -> sql.Composed:
    """The keys as a table of their numbers, from 0, and their values, under the names of `_places`."""
    rows = sql.SQL(", ").join(
        sql.SQL("({}, {})").format(
            sql.Literal(number), sql.SQL(", ").join(c.literal(text) for c, text in zip(key, texts, strict=True))
        )
        for number, texts in enumerate(keys)
    )
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in _places(key))
    return sql.SQL("(VALUES {}) AS given (number, {})").format(rows, names)


def _places(key: Sequence[KeyColumn]) -> list[KeyColumn]:
    """The key's columns under names of their places."""
    return [replace(column, name=f"k{place}") for place, column in enumerate(key)]


# --- order ------------------------------------------------------------------------------------------------------------

# PostgreSQL's type and the Delta type that holds it, where Spark orders the stored values as PostgreSQL's own operators
# order the type's.
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
_OWN_LESS: Final = "OPERATOR(pg_catalog.<)"


def is_ordered_as_stored(conn: psycopg.Connection[Any], key: Sequence[KeyColumn], stored: Mapping[str, str]) -> bool:
    """Whether the order of the key is that of its stored values, column by column, as Spark has it. `stored` maps a
    column to its Delta type."""
    return all(
        not column.descending
        and column.operators["<"] == _OWN_LESS
        and (
            (column.type, stored.get(column.name)) in _ORDERED_ALIKE
            or (column.type == "numeric" and stored.get(column.name, "").startswith("decimal("))
            or (column.type in _TEXTS and stored.get(column.name) == "string" and _is_by_bytes(conn, column))
        )
        for column in key
    )


def _is_by_bytes(conn: psycopg.Connection[Any], column: KeyColumn) -> bool:
    """Whether texts are ordered by their bytes in UTF-8."""
    row = conn.execute(
        """
        SELECT coalesce(bool_or(CASE l.collprovider
                                     WHEN 'c' THEN l.collcollate IN ('C', 'POSIX')
                                     WHEN 'd' THEN d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX')
                                END), false)
               AND getdatabaseencoding() = 'UTF8'
          FROM pg_collation l, pg_database d WHERE l.oid = to_regcollation(%s) AND d.datname = current_database()
        """,
        (column.collation,),
    ).fetchone()
    return row is not None and bool(row[0])
