"""Turns a lock timeout on tables into an error that names the processes that hold the locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tidemark.errors import SourceLocked
from tidemark.wording import duration


@contextmanager
def lock_bounded(connection: psycopg.Connection[Any], seconds: float, subject: str) -> Iterator[None]:
    """Raises SourceLocked if a statement of the block exceeds its lock timeout. `seconds` and `subject`, the locked
    object, are for the message."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as timeout:
        raise SourceLocked(what=subject, waited=duration(seconds), blockers=_locks_on_tables(connection)) from timeout


def _locks_on_tables(connection: psycopg.Connection[Any]) -> str:
    rows = connection.execute(
        "SELECT DISTINCT l.pid, l.relation::regclass::text, l.mode FROM pg_locks l"
        " WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid() AND l.relation >= 16384"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',"
        " 'AccessExclusiveLock') ORDER BY 1, 2 LIMIT 5"
    ).fetchall()
    return "; ".join(f"process {pid} holds {mode} on {relation}" for pid, relation, mode in rows) or "nobody any more"
