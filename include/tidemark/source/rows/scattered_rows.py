"""Builds the statements that read the next rows of a key page by page, where they lie all over the table.

    end_query     the last key of the chunk    in the index alone
    rows_query    the rows up to it            by a bitmap, each page of the table once; then sorted

In the key's order, an index scan reads a page for each such row, as with a random uuid as key, or with a tenant and a
number. PostgreSQL's planner decides: it knows how the rows lie, and how much of the index can be read without the
table. Source: PostgreSQL documentation, 9.25.5 "Row Constructor Comparison", 11.5 "Combining Multiple Indexes", 11.9
"Index-Only Scans"; docs/decisions/2026-11-28-scattered-rows-are-read-by-pages.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from tidemark.postgres.postgres_session import one_row
from tidemark.source.rows.key_ranges import OWN_LESS, Key, KeyColumn, TableToRead, copied_columns, order_by, where


def is_possible(table: TableToRead, position: Key | None, upper: Key | None) -> bool:
    """Whether one condition on the index says which keys are in `(position, upper]`. Without any bound an index helps
    with the order only.

    Several columns are compared as a row, with one operator for all, so they must have PostgreSQL's own "<" and ascend.
    The table must have no conditions, because they need its rows.
    """
    is_bounded = position is not None or upper is not None
    is_plain = all(column.operators["<"] == OWN_LESS and not column.descending for column in table.key)
    return is_bounded and not table.conditions and (is_plain or len(table.key) == 1)


def is_cheaper(conn: psycopg.Connection[Any], table: TableToRead, position: Key | None, upper: Key | None) -> bool:
    """Whether PostgreSQL expects the keys in `(position, upper]` and their rows in any order to cost less than their
    rows in order. False where temporary files are limited, because the sort of a chunk could exceed the limit."""
    (limit,) = one_row(conn, "SELECT current_setting('temp_file_limit')")
    if limit != "-1":
        return False
    keys, rows = _keys_in_order(table, position, upper), _rows(table, position, upper)
    in_order = sql.SQL("{} ORDER BY {}").format(rows, order_by(table.key))
    return _expected_cost(conn, keys) + _expected_cost(conn, rows) < _expected_cost(conn, in_order)


def end_query(table: TableToRead, position: Key | None, upper: Key | None, limit: int) -> sql.Composed:
    """The key number `limit` in `(position, upper]`, as texts; no row if there are fewer."""
    texts = sql.SQL(", ").join(sql.SQL("pg_catalog.concat({})").format(sql.Identifier(c.name)) for c in table.key)
    return sql.SQL("SELECT {} FROM ({} LIMIT 1 OFFSET {}) AS last").format(
        texts, _keys_in_order(table, position, upper), sql.Literal(limit - 1)
    )


def rows_query(table: TableToRead, position: Key | None, upper: Key | None) -> sql.Composed:
    """The rows in `(position, upper]`, in the key's order. Stored values are sorted, and become texts behind the sort:
    OFFSET keeps PostgreSQL from doing both at once."""
    order = order_by(table.key)
    rows = sql.SQL("{} ORDER BY {} OFFSET 0").format(_rows(table, position, upper), order)
    return sql.SQL("SELECT {} FROM ({}) AS chunk ORDER BY {}").format(copied_columns(table), rows, order)


def _rows(table: TableToRead, position: Key | None, upper: Key | None) -> sql.Composed:
    return _select(table, (name for name, _ in table.columns), position, upper)


def _keys_in_order(table: TableToRead, position: Key | None, upper: Key | None) -> sql.Composed:
    keys = _select(table, (column.name for column in table.key), position, upper)
    return sql.SQL("{} ORDER BY {}").format(keys, order_by(table.key))


def _select(table: TableToRead, names: Iterable[str], position: Key | None, upper: Key | None) -> sql.Composed:
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in names)
    return sql.SQL("SELECT {} FROM {}{}").format(columns, table.relation, where(_bounds(table.key, position, upper)))


def _bounds(key: Sequence[KeyColumn], position: Key | None, upper: Key | None) -> list[sql.Composable]:
    return [_compare(key, operator, texts) for operator, texts in ((">", position), ("<=", upper)) if texts is not None]


def _compare(key: Sequence[KeyColumn], operator: str, texts: Key) -> sql.Composed:
    if len(key) == 1:
        return key[0].compare(operator, texts[0])
    return sql.SQL("ROW({}) {} ROW({})").format(
        sql.SQL(", ").join(column.value for column in key),
        sql.SQL(key[0].operators[operator]),
        sql.SQL(", ").join(column.literal(text) for column, text in zip(key, texts, strict=True)),
    )


def _expected_cost(conn: psycopg.Connection[Any], query: sql.Composed) -> float:
    """What the planner expects, in its own unit. The query is not run."""
    (plan,) = one_row(conn, sql.SQL("EXPLAIN (FORMAT JSON) {}").format(query))
    return float(plan[0]["Plan"]["Total Cost"])
