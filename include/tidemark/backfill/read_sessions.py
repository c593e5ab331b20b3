"""Opens the sessions that read chunks: without time limits and with row security off. Defines their settings.

A transaction begins with `CHUNK_SETTINGS`. None of them takes a snapshot, so the table can be locked before the
snapshot is taken. Source: PostgreSQL documentation, "SET TRANSACTION", 9.28.5 "Snapshot Synchronization Functions".
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

# A role or database may have time limits for statements. A chunk is bounded by its rows instead.
NO_TIMEOUTS: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout', "
    "'idle_in_transaction_session_timeout', 'idle_session_timeout')"
)

# With row_security off, a row-level security policy raises an error instead of hiding rows.
CHUNK_SETTINGS: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "SET LOCAL row_security = off",
    "SET LOCAL jit = off",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)

# The settings that the text of a value, the meaning of a statement or its rights depend on.
_TEXT_DEPENDS_ON: Final = (
    *postgres_session.SESSION_SETTINGS,
    *("lc_monetary", "lc_numeric", "lc_time", "xmlbinary", "xmloption", "quote_all_identifiers"),
    *("standard_conforming_strings", "array_nulls", "default_text_search_config"),
    *("role", "session_authorization", "row_security", "transaction_isolation", "transaction_read_only"),
    *("statement_timeout", "lock_timeout"),
)

# The time limit of a statement while a row filter is tried.
TRY_FILTER_S: Final = 60

# The planner must scan the key's index in order, and never sort the table. The costs are PostgreSQL's defaults: with
# the lower ones of many servers, the planner would not expect that reading by pages pays.
INDEX_ALONE: Final = (
    "SET LOCAL enable_seqscan = off",
    "SET LOCAL enable_sort = off",
    "SET LOCAL enable_incremental_sort = off",
    "SET LOCAL enable_indexscan = on",
    "SET LOCAL enable_indexonlyscan = on",
    "SET LOCAL enable_bitmapscan = on",
    "SET LOCAL seq_page_cost = 1",
    "SET LOCAL random_page_cost = 4",
)

# For the rows of a chunk that is read by pages, behind INDEX_ALONE: they are sorted. The memory is for the bitmap and
# the sort; a larger setting of the server stays. With too little for the bitmap, PostgreSQL checks all rows of a page,
# in twice the time.
BY_PAGES: Final = (
    "SET LOCAL enable_indexscan = off",
    "SET LOCAL enable_sort = on",
    "SELECT pg_catalog.set_config('work_mem', '64MB', true)"
    " WHERE pg_catalog.pg_size_bytes(pg_catalog.current_setting('work_mem')) < pg_catalog.pg_size_bytes('64MB')",
)


class SnapshotUnfit(Exception):
    """The imported snapshot is gone, or the table was changed after it. Internal: the range continues in chunk mode."""


@dataclass(frozen=True, slots=True)
class ImportedSnapshot:
    """A snapshot that another session exports: its identifier, and the LSN of the database state that it contains."""

    identifier: str
    consistent_point: Lsn


def connect(conninfo: str, config: PipelineConfig) -> psycopg.Connection[Any]:
    """Open a reader's session. Use it as a context manager, which closes it."""
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
    """The names of the settings that changed, or that are not Tidemark's: rows read between the two readings are
    invalid. Values are left out, because a function may have put anything into them."""
    return [
        name
        for name, value in after.items()
        if value != before.get(name) or value != postgres_session.SESSION_SETTINGS.get(name, value)
    ]


@contextmanager
def filtered(conn: psycopg.Connection[Any], table: TableName, seconds: int) -> Iterator[None]:
    """Limit statements with a row filter to `seconds` each, until the end of the transaction.

    Raises ReadRefused or RowFilterInvalid. PostgreSQL's error texts are replaced, because they may quote a value.
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
    """Run the transaction under the snapshot. Raises SnapshotUnfit if the session that exported it has ended."""
    try:
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(identifier)))
    except (
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UndefinedObject,
        psycopg.errors.ObjectNotInPrerequisiteState,  # the session ended while its snapshot was read
    ) as gone:
        raise SnapshotUnfit("the session that exported the snapshot has ended") from gone
