"""Computes a table's join horizon, and waits for the older transactions, whose changes the stream may lack.

Source: PostgreSQL documentation, 9.27.8 "Transaction ID and Snapshot Information Functions".
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from tidemark.findings import listed
from tidemark.names import TableName
from tidemark.postgres.postgres_session import one_row
from tidemark.wait_log import Wait
from tidemark.wording import duration


def join_horizon(connection: psycopg.Connection[Any]) -> int:
    """The join horizon: every transaction with a lower id must have ended before a snapshot includes all changes
    that the stream lacks.

    It is the id of a transaction of its own, which begins after the join (of table, publication or slot) is visible.
    The xmax of a snapshot is no bound, since the transaction that began last may have an id at or above it. The
    connection must be in autocommit mode and outside of a transaction.
    """
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")
        return int(one_row(connection, "SELECT pg_current_xact_id()::text::bigint")[0])


def snapshot_xmin(connection: psycopg.Connection[Any]) -> int:
    """A 64-bit transaction id. Every transaction with a lower id has ended."""
    return int(one_row(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")[0])


def next_xid(connection: psycopg.Connection[Any]) -> int:
    """The next 64-bit transaction id at the source. 32-bit ids, as the stream's, are widened with it."""
    return int(one_row(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")[0])


def await_horizon(connection: psycopg.Connection[Any], horizon: int, seconds: float, event: str) -> list[str]:
    """Wait until the xmin of a new snapshot reaches the join horizon. Returns an empty list then, and a description
    of the blocking transactions if that takes more than `seconds`. `event` is what they are older than, for the log."""
    wait = Wait(seconds, every_s=0.05)
    while snapshot_xmin(connection) < horizon:
        blockers = transactions_in_flight(connection) or ["they have just ended"]
        reason = f"transactions that are older than {event}: {listed(blockers)}"
        if not wait.pause(lambda reason=reason: reason):  # type: ignore[misc]
            return blockers
    wait.log_end()
    return []


def current_snapshot(connection: psycopg.Connection[Any]) -> str:
    return str(one_row(connection, "SELECT pg_current_snapshot()::text")[0])


def is_empty_after_horizon(
    connection: psycopg.Connection[Any],
    table: TableName,
    horizon: int,
    *,
    partitioned: bool,
    lock_timeout_s: float,
    statement_timeout_s: float,
) -> bool | None:
    """Whether the table is empty in a snapshot whose xmin is at or above the join horizon. None if there is no such
    snapshot yet, or no table of this name any more.

    One statement returns xmin and emptiness, so both are of the same snapshot. RLS would hide rows; it raises instead.
    The locked relation is identified before it is read: a view in the table's place would run its owner's functions
    with the pipeline's rights.
    """
    query = sql.SQL(
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, NOT EXISTS (SELECT 1 FROM {} {})"
    ).format(sql.SQL("" if partitioned else "ONLY"), sql.Identifier(table.schema, table.name))
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL row_security = off")
        _set_timeout(connection, "lock_timeout", lock_timeout_s)
        _set_timeout(connection, "statement_timeout", statement_timeout_s)
        connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(table.schema, table.name))
        )
        locked = relation_of(connection, table)
        if locked is None or locked[1] != ("p" if partitioned else "r"):
            return None
        xmin, empty = one_row(connection, query)
    return bool(empty) if xmin >= horizon else None


def relation_of(connection: psycopg.Connection[Any], table: TableName) -> tuple[int, str] | None:
    """OID and kind of the relation that has this name; None if there is none. While the caller holds a lock on the
    name, it is the relation that a query of this name reads."""
    row = connection.execute(
        "SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (table.schema, table.name),
    ).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def _set_timeout(connection: psycopg.Connection[Any], setting: str, seconds: float) -> None:
    """Set a timeout for the transaction. A `SET LOCAL` with a value takes no snapshot, unlike the SELECT of
    set_config."""
    milliseconds = sql.Literal(f"{max(1, int(seconds * 1000))}ms")
    connection.execute(sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(setting), milliseconds))


def transactions_in_flight(connection: psycopg.Connection[Any]) -> list[str]:
    """Descriptions of up to five transactions with an id, oldest first, for messages.

    They come from pg_locks, which every role may read in full, unlike the columns of pg_stat_activity.
    """
    rows = connection.execute(
        "SELECT l.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start)::float8,"
        " (SELECT p.gid FROM pg_prepared_xacts p WHERE p.transaction = l.transactionid)"
        " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted"
        " AND l.pid IS DISTINCT FROM pg_backend_pid() ORDER BY age(l.transactionid) DESC LIMIT 5"
    ).fetchall()
    words = []
    for pid, application, age, gid in rows:
        if gid is not None:
            words.append(f"prepared transaction {gid!r}")
        else:
            words.append(
                f"process {pid}"
                + (f" ({application})" if application else "")
                + (f", open for {duration(age)}" if age is not None else "")
            )
    return words
