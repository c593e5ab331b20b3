"""Reads the column names of relations, together with the snapshot in which they hold.

The names include every alteration by transactions that the snapshot includes, and by earlier ones: ALTER TABLE excludes
other writers of the table (ACCESS EXCLUSIVE). They include no later alteration. An LSN would be less exact, because a
commit reaches the stream before it is visible. Source: PostgreSQL documentation, 53.7 "pg_attribute", 9.28.5
"pg_current_snapshot".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from tidemark.formats.snapshot import Snapshot
from tidemark.names import TableName
from tidemark.postgres.postgres_session import one_row
from tidemark.schema.guards import Rows
from tidemark.source.catalogue.transaction_visibility import current_snapshot


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The names of relations and their columns in one snapshot. `tables` maps a relation's OID to its name and
    columns; dropped relations and columns are left out."""

    snapshot: Snapshot
    tables: dict[int, tuple[TableName, Rows]]


def read(conn: psycopg.Connection[Any], oids: Iterable[int]) -> ColumnNames:
    """Read the names of these relations in one snapshot. The connection must be in autocommit mode and outside of a
    transaction."""
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return read_within(conn, oids)


def read_within(conn: psycopg.Connection[Any], oids: Iterable[int]) -> ColumnNames:
    """Read the names of these relations inside the caller's REPEATABLE READ transaction."""
    snapshot = Snapshot.parse(current_snapshot(conn))
    tables: dict[int, tuple[TableName, dict[int, tuple[str, int]]]] = {}
    for oid, schema, table, attnum, name, xmin in conn.execute(
        """
        SELECT c.oid, n.nspname::text, c.relname::text, a.attnum, a.attname::text, a.xmin::text::bigint
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid, a.attnum
        """,
        (list(oids),),
    ):
        tables.setdefault(oid, (TableName(schema, table), {}))[1][attnum] = (name, xmin)
    return ColumnNames(snapshot, dict(tables))


def renamed_since(conn: psycopg.Connection[Any], oid: int) -> bool:
    """Whether the table or a column was renamed or dropped after this transaction's snapshot. A SELECT on the
    catalogue returns the names in the snapshot. pg_identify_object_as_address returns the present names, as a query
    uses them."""
    (renamed,) = one_row(
        conn,
        """
        SELECT coalesce(bool_or(now.object_names IS DISTINCT FROM ARRAY[n.nspname, c.relname, a.attname]::text[]), true)
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped,
               pg_identify_object_as_address('pg_class'::regclass, a.attrelid, a.attnum) now
         WHERE c.oid = %s
        """,
        (oid,),
    )
    return bool(renamed)
