"""The role as which row filters run -> findings: that it is there, that it reads what is captured, and nothing else.

A condition that was checked may still fail on a value, take long, or be more than the check understood. So it runs as a
role that has nothing to give away: SELECT on the captured columns, and the right of the pipeline's role to become it.
A grant that is missing is a warning: captures and backfills of whole tables go on without it. Everything is asked of
functions of the catalogue that every role may call. Source: PostgreSQL documentation, 9.27.2 "Access Privilege Inquiry
Functions", "SET ROLE", "GRANT".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg

from tidemark.config import PipelineConfig
from tidemark.findings import Finding, listed
from tidemark.source.identifiers import qualified, quoted
from tidemark.source.publication import SourceTable

# Before 16 there was no right to become a role but as its member.
_SET_OPTION_SINCE: Final = 160000
_NAMED: Final = 5


def findings(conn: psycopg.Connection[Any], config: PipelineConfig, tables: Sequence[SourceTable]) -> Iterator[Finding]:
    """Nothing if the file names no such role."""
    role = config.filter_role
    if role is None:
        return
    of_version = conn.info.server_version >= _SET_OPTION_SINCE
    row = conn.execute(_ROLE, ("SET" if of_version else "MEMBER", role)).fetchone()
    if row is None:
        yield _error(f'The role for row filters, "{role}", does not exist', f"CREATE ROLE {quoted(role)} NOLOGIN")
        return
    own, current, may_become, bypasses, powers = row
    if own:
        yield _error(
            f'The role for row filters, "{role}", is the pipeline\'s own', "Name another one in source.filter_role"
        )
        return
    if not may_become:
        options = " WITH INHERIT FALSE, SET TRUE" if of_version else ""
        yield _warning(
            f'{current} may not become "{role}", the role for row filters',
            f"GRANT {quoted(role)} TO {quoted(current)}{options}",
        )
    if powers:
        yield _error(
            f'The role for row filters, "{role}", has {listed(powers)}, and so would a row filter',
            f"ALTER ROLE {quoted(role)} {' '.join('NO' + power for power in powers)}",
        )
    yield from _reads_enough(conn, role, tables, bypasses)
    yield from _may_more(conn, role, tables)


def _reads_enough(
    conn: psycopg.Connection[Any], role: str, tables: Sequence[SourceTable], bypasses: bool
) -> Iterator[Finding]:
    for table in tables:
        columns = [column.name for column in table.captured_columns]
        row = conn.execute(_READS, (columns, role, table.relation.oid)).fetchone()
        if row is None:  # dropped between two statements
            continue
        schema, missing, policies = row
        if not schema:
            yield _warning(
                f'The role for row filters, "{role}", may not look into schema {table.table.schema}',
                f"GRANT USAGE ON SCHEMA {quoted(table.table.schema)} TO {quoted(role)}",
            )
        if missing:
            names = ", ".join(quoted(name) for name in missing)
            yield _warning(
                f'The role for row filters, "{role}", may not read {listed(missing)} of {table.table}',
                f"GRANT SELECT ({names}) ON {qualified(table.table)} TO {quoted(role)}",
            )
        if policies and not bypasses:
            yield _warning(
                f'Row-level security of {table.table} would hide rows from "{role}", so a row filter on it is refused',
                f"ALTER ROLE {quoted(role)} BYPASSRLS",
            )


def _may_more(conn: psycopg.Connection[Any], role: str, tables: Sequence[SourceTable]) -> Iterator[Finding]:
    captured = {t.relation.oid: {column.name for column in t.captured_columns} for t in tables}
    changed, read = [], []
    for oid, name, changes, columns in conn.execute(_RIGHTS, (role,)):
        if changes:
            changed.append(name)
        elif set(columns) - captured.get(oid, set()):
            read.append(name)
    for names, may in ((changed, "change"), (read, "read what is not captured of")):
        if names:
            yield _warning(
                f'The role for row filters, "{role}", may {may} {_some(names)}',
                "REVOKE what it does not need: SELECT on the captured columns alone",
            )


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return listed(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _error(message: str, remedy: str) -> Finding:
    return Finding("error", "filter_role", message, remedy)


def _warning(message: str, remedy: str) -> Finding:
    return Finding("warning", "filter_role", message, remedy)


_ROLE: Final = """
    SELECT r.rolname = current_user, current_user::text, pg_has_role(current_user, r.oid, %s), r.rolbypassrls,
           array_remove(ARRAY[CASE WHEN r.rolsuper THEN 'SUPERUSER' END,
                              CASE WHEN r.rolreplication THEN 'REPLICATION' END,
                              CASE WHEN r.rolcreaterole THEN 'CREATEROLE' END,
                              CASE WHEN r.rolcreatedb THEN 'CREATEDB' END], NULL)
      FROM pg_roles r WHERE r.rolname = %s
"""
_READS: Final = """
    SELECT has_schema_privilege(role.oid, c.relnamespace, 'USAGE'),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (%s::name[])
                    AND NOT has_column_privilege(role.oid, c.oid, a.attnum, 'SELECT') ORDER BY a.attnum),
           c.relrowsecurity
      FROM pg_class c, (SELECT oid FROM pg_roles WHERE rolname = %s) AS role WHERE c.oid = %s
"""
# A captured root's partitions are other relations, which a row filter never names.
_RIGHTS: Final = """
    SELECT c.oid, n.nspname || '.' || c.relname,
           pg_has_role(role.oid, c.relowner, 'USAGE')
           OR has_any_column_privilege(role.oid, c.oid, 'INSERT, UPDATE')
           OR has_table_privilege(role.oid, c.oid, 'DELETE, TRUNCATE'),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                    AND has_column_privilege(role.oid, c.oid, a.attnum, 'SELECT'))
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
           (SELECT oid FROM pg_roles WHERE rolname = %s) AS role
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
       AND has_schema_privilege(role.oid, n.oid, 'USAGE')
       AND (has_any_column_privilege(role.oid, c.oid, 'SELECT, INSERT, UPDATE')
            OR has_table_privilege(role.oid, c.oid, 'DELETE, TRUNCATE'))
     ORDER BY 2
"""
