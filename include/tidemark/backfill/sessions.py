"""Sessions at the source in which chunks are read: without time limits, under one snapshot, with nothing hidden.

A transaction begins with `CHUNK_SETTINGS`; none of them takes a snapshot, so that a lock can still come before it.
Source: PostgreSQL documentation, "SET TRANSACTION", 9.28.5 "Snapshot Synchronization Functions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark import postgres_session as source_sessions
from tidemark.config import PipelineConfig
from tidemark.lsn import Lsn

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
    conn = source_sessions.connect(
        conninfo, application_name=config.application_name, lock_timeout_s=config.bounds.lock_timeout_s
    )
    try:
        conn.execute(NO_TIMEOUTS)
    except BaseException:
        conn.close()
        raise
    return conn


def import_snapshot(conn: psycopg.Connection[Any], identifier: str) -> None:
    """Raises SnapshotUnfit where the session that exported it has ended."""
    try:
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(identifier)))
    except (
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UndefinedObject,
        psycopg.errors.ObjectNotInPrerequisiteState,  # it ended between the look at its file and at its transaction
    ) as gone:
        raise SnapshotUnfit("the session that exported the snapshot has ended") from gone
