"""Reads and changes the publication.

    no publication ─ create_statement() ─► publication ◄─ add_statement(), drop_statement()

R9: only creating or changing the publication takes more than a SELECT's lock (SHARE UPDATE EXCLUSIVE on the tables),
with a `lock_timeout`. A replica identity is never changed. PostgreSQL refuses the application's UPDATE of a table that
is published without an identity, so such a table is not added only because a pattern matches it:
`SourceTable.breaks_updates`. Source: PostgreSQL documentation, "CREATE PUBLICATION", "ALTER PUBLICATION".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from tidemark.names import TableName
from tidemark.source.catalogue.table_locks import lock_bounded

OPERATIONS: Final = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True, slots=True)
class Member:
    """A table that was added to the publication by itself. `columns` and `row_filter` are None if everything is
    published."""

    table: TableName
    columns: tuple[str, ...] | None
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication. `direct` are the tables that were added by themselves. `covered` are all tables that a
    subscriber receives, with those of schemas and of FOR ALL TABLES."""

    name: str
    owner: str
    owned: bool
    all_tables: bool
    schemas: tuple[str, ...]
    operations: frozenset[str]
    via_root: bool
    generated_columns: bool
    direct: tuple[Member, ...]
    covered: frozenset[TableName]


def read(connection: psycopg.Connection[Any], name: str) -> Publication | None:
    """The present publication of this name, None if there is none."""
    generated = "p.pubgencols = 's'" if connection.info.server_version >= 180000 else "false"
    becomes = may_become(connection, "p.pubowner").as_string(None)
    row = connection.execute(
        f"SELECT p.oid, pg_get_userbyid(p.pubowner), pg_has_role(p.pubowner, 'USAGE') OR {becomes}, p.puballtables,"
        f" p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, {generated},"
        f" array(SELECT n.nspname::text FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid"
        f" WHERE s.pnpubid = p.oid ORDER BY 1)"
        f" FROM pg_publication p WHERE p.pubname = %s".encode(),
        (name,),
    ).fetchone()
    if row is None:
        return None
    oid, owner, owned, all_tables, *operations, via_root, generated_columns, schemas = row
    covered = connection.execute(_COVERED, {"publication": name}).fetchall()
    members = connection.execute(_MEMBERS, (oid,)).fetchall()
    return Publication(
        name=name,
        owner=owner,
        owned=owned,
        all_tables=all_tables,
        schemas=tuple(schemas),
        operations=frozenset(name for name, published in zip(OPERATIONS, operations, strict=True) if published),
        via_root=via_root,
        generated_columns=generated_columns,
        direct=tuple(
            Member(TableName(schema, table), None if columns is None else tuple(columns), row_filter)
            for schema, table, columns, row_filter in members
        ),
        covered=frozenset(TableName(schema, table) for schema, table in covered),
    )


# The tables of pg_publication_tables. That view cannot be used: it locks every table that it lists, so a session that
# holds one in ACCESS EXCLUSIVE MODE would delay the pipeline. Partitions are left out: none is captured by itself.
PUBLISHED: Final = """
    SELECT c.oid AS relation, n.nspname, c.relname, p.oid AS publication, p.puballtables, s.oid AS by_schema,
           r.oid AS by_name, r.prattrs, r.prqual
      FROM pg_publication p CROSS JOIN pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
      LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
     WHERE p.pubname = %(publication)s AND NOT c.relispartition AND c.relpersistence = 'p' AND c.oid >= 16384
       AND (c.relkind = 'r' OR c.relkind = 'p' AND p.pubviaroot)
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
       AND (p.puballtables OR r.oid IS NOT NULL OR s.oid IS NOT NULL)
"""
_COVERED: Final = f"SELECT nspname, relname FROM ({PUBLISHED}) published"

_MEMBERS: Final = """
    SELECT n.nspname, c.relname,
           CASE WHEN r.prattrs IS NOT NULL THEN array(
                SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[]) ORDER BY a.attnum) END,
           pg_get_expr(r.prqual, r.prrelid)
      FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE r.prpubid = %s ORDER BY 1, 2
"""


# --- changing ---------------------------------------------------------------------------------------------------------


def create_statement(name: str, tables: Sequence[TableName], *, server_version: int) -> sql.Composed:
    """CREATE PUBLICATION with everything that Tidemark relies on; without tables it is empty.

    Stored generated columns are published (PostgreSQL 18 on): without them, the application's UPDATE of a table under
    REPLICA IDENTITY FULL fails.
    """
    options = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
    if server_version >= 180000:
        options += ", publish_generated_columns = stored"
    for_tables = sql.SQL("FOR TABLE {} ").format(_table_list(tables)) if tables else sql.SQL("")
    return sql.SQL("CREATE PUBLICATION {} {}WITH ({})").format(sql.Identifier(name), for_tables, sql.SQL(options))


def add_statement(name: str, tables: Sequence[TableName]) -> sql.Composed:
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _table_list(tables))


def drop_statement(name: str, tables: Sequence[TableName]) -> sql.Composed:
    return sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(name), _table_list(tables))


def change(
    connection: psycopg.Connection[Any],
    statements: Sequence[sql.Composed],
    *,
    lock_timeout_s: float,
    role: str | None = None,
) -> None:
    """Run statements on the publication in one transaction, as `role` if one is given: the session has the rights
    of the tables' owner for these statements only. Raises SourceLocked if a table's lock cannot be taken in time."""
    with lock_bounded(connection, lock_timeout_s, "the publication's tables"), connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(lock_timeout_s * 1000)}ms",))
        if role is not None:
            connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
        for statement in statements:
            connection.execute(statement)


def acting_role(
    connection: psycopg.Connection[Any], name: str, tables: Sequence[TableName], *, create: bool
) -> str | None:
    """The role to become for a statement on the publication and these tables, never a superuser.

    None if this session's role has the rights of their owners. None also if no role that it may become has all of these
    rights: then PostgreSQL's error names the missing one. To add a table, one role must own publication and table, or
    inherit from their owners. To create a publication, it also needs CREATE on the database.
    """
    statement = sql.SQL(_ACTING_ROLE).format(may_become=may_become(connection, "r.oid"))
    row = connection.execute(
        statement,
        {
            "name": name,
            "schemas": [table.schema for table in tables],
            "tables": [table.name for table in tables],
            "create": create,
        },
    ).fetchone()
    return None if row is None or row[1] else str(row[0])


def may_become(connection: psycopg.Connection[Any], role: LiteralString) -> sql.Composed:
    """The SQL condition that this session's role may SET ROLE to the role whose OID is the SQL `role`. Before 16
    every member may."""
    right = "SET" if connection.info.server_version >= 160000 else "MEMBER"
    return sql.SQL("pg_has_role({}, {})").format(sql.SQL(role), sql.Literal(right))


_ACTING_ROLE: Final[LiteralString] = """
    SELECT r.rolname::text, r.rolname = current_user FROM pg_roles r
     WHERE (r.rolname = current_user OR NOT r.rolsuper AND {may_become})
       AND (NOT %(create)s OR has_database_privilege(r.oid, current_database(), 'CREATE'))
       AND NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = %(name)s
                          AND NOT pg_has_role(r.oid, p.pubowner, 'USAGE'))
       AND NOT EXISTS (SELECT FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS t (schema, name)
                         JOIN pg_namespace n ON n.nspname = t.schema
                         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
                        WHERE NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
     ORDER BY r.rolname <> current_user, r.rolname
     LIMIT 1
"""


def _table_list(tables: Sequence[TableName]) -> sql.Composed:
    # ONLY: the inheritance children of a plain table are tables of their own, which are published by their own names.
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(t.schema, t.name)) for t in tables)
