"""Opens the sessions that read chunks: without time limits, under one snapshot, without row security.

A transaction begins with `CHUNK_SETTINGS`; none of them takes a snapshot, so that a lock can still come before it.
Source: PostgreSQL documentation, "SET TRANSACTION", 9.28.5 "Snapshot Synchronization Functions".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.config import PipelineConfig
from tidemark.errors import ReadRefused, RowFilterInvalid
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.postgres import postgres_session
from tidemark.source.rows import row_filter

# A role or database may bound its statements; a chunk is bounded by its rows.
NO_TIMEOUTS: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout', "
    "'idle_in_transaction_session_timeout', 'idle_session_timeout')"
)

# A policy raises instead of hiding rows.
CHUNK_SETTINGS: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "SET LOCAL row_security = off",
    "SET LOCAL jit = off",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)

# What the text of a value, the meaning of a statement or its rights depend on.
_TEXT_DEPENDS_ON: Final = (
    *postgres_session.SESSION_SETTINGS,
    *("lc_monetary", "lc_numeric", "lc_time", "xmlbinary", "xmloption", "quote_all_identifiers"),
    *("standard_conforming_strings", "array_nulls", "default_text_search_config"),
    *("role", "session_authorization", "row_security", "transaction_isolation", "transaction_read_only"),
    *("statement_timeout", "lock_timeout"),
)

# How long a statement may take while a row filter is tried.
TRY_FILTER_S: Final = 60

# A stretch of the key's index is walked, the table never sorted.
INDEX_ALONE: Final = (
    "SET LOCAL enable_seqscan = off",
    "SET LOCAL enable_bitmapscan = off",
    "SET LOCAL enable_sort = off",
    "SET LOCAL enable_incremental_sort = off",
)


class SnapshotUnfit(Exception):
    """The imported snapshot is gone, or older than what the table is now. Internal: the range goes on in chunk mode."""


@dataclass(frozen=True, slots=True)
class ImportedSnapshot:
    """A snapshot that another session exports: its identifier, and the LSN as of which it is the database."""

    identifier: str
    consistent_point: Lsn


def connect(conninfo: str, config: PipelineConfig) -> psycopg.Connection[Any]:
    """A reader's session. Use it as a context manager, which closes it."""
    conn = postgres_session.connect(
        conninfo, application_name=config.application_name, lock_timeout_s=config.bounds.lock_timeout_s
    )
    try:
        conn.execute(NO_TIMEOUTS)
    except BaseException:
        conn.close()
        raise
    return conn


def settings(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """The present values of the settings that the session's text output depends on."""
    return dict(
        conn.execute(
            "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", (list(_TEXT_DEPENDS_ON),)
        ).fetchall()
    )


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The settings that make rows read in between invalid: those that changed, and those that are not Tidemark's. Only
    names, because a function may have put anything into a value."""
    return [
        name
        for name, value in after.items()
        if value != before.get(name) or value != postgres_session.SESSION_SETTINGS.get(name, value)
    ]


@contextmanager
def filtered(conn: psycopg.Connection[Any], table: TableName, seconds: int) -> Iterator[None]:
    """Statements with a row filter take `seconds` at most, until the transaction's end.

    Raises ReadRefused or RowFilterInvalid with sentences of its own: PostgreSQL's may quote a value.
    """
    conn.execute("SELECT set_config('statement_timeout', %s, true)", (f"{seconds}s",))
    try:
        yield
    except psycopg.errors.InsufficientPrivilege:
        detail = "the role may not read all that is captured, or row-level security would hide rows from it"
        raise ReadRefused(table=table, detail=detail) from None
    except psycopg.Error as failed:
        own = isinstance(failed, psycopg.errors.OutOfMemory | psycopg.errors.QueryCanceled)
        if not (own or postgres_session.is_of_the_statement(failed)):
            raise
        raise RowFilterInvalid(table=table, detail=row_filter.why_it_failed(failed)) from None


def import_snapshot(conn: psycopg.Connection[Any], identifier: str) -> None:
    """Raises SnapshotUnfit if the session that exported it has ended."""
    try:
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(identifier)))
    except (
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UndefinedObject,
        psycopg.errors.ObjectNotInPrerequisiteState,  # it ended between the look at its file and at its transaction
    ) as gone:
        raise SnapshotUnfit("the session that exported the snapshot has ended") from gone
