"""Opens the session at the slot's server: the source itself, or its standby beside a session at the primary.

    session at the primary ──► everything that is written (publication, heartbeats, watermarks), catalogue and chunks
             └── beside ─────► the slot: made, read, confirmed; and the stream

A standby from PostgreSQL 16 on decodes the WAL that it replays, so the source's primary is spared that. Its lag does no
harm: a run ends at its heartbeat, which arrives after its replay. A standby with WAL outside the primary's history
would do harm (R8), so its timeline is checked before its stream counts (`generation.still_continues`). The connection
names both servers and prefers a standby (`target_session_attrs`); each server reports its role. A promoted standby
still has the slot and is the primary; then one session serves both. Source: PostgreSQL documentation, 47.2.3
"Replication Slots", 34.1.1.3 "Specifying Multiple Hosts".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq

from tidemark.errors import DatabaseUnreachable
from tidemark.postgres.postgres_session import Session, one_row, open_session, to_the_same_server


def at_slot(connection: psycopg.Connection[Any], slot: str | None = None) -> psycopg.Connection[Any]:
    """The session on the slot's server: the given one, or the one beside it on the standby. Raises
    DatabaseUnreachable if no standby answers and the primary has no slot of this name."""
    if not isinstance(connection, Session) or not connection.servers:
        return connection
    if connection.beside is None or connection.beside.closed:
        name = connection.info.get_parameters().get("application_name", "tidemark")
        try:
            connection.beside = open_session(
                connection.servers, "source", application_name=name, target_session_attrs="standby"
            )
        except DatabaseUnreachable as away:
            there = connection.execute(
                "SELECT 1 FROM pg_replication_slots s WHERE slot_name = %s AND to_jsonb(s) ->> 'synced' "
                "IS DISTINCT FROM 'true'",
                (slot,),
            ).fetchone()
            if there is None:
                raise DatabaseUnreachable(
                    database="source",
                    detail=f"no standby answers, and the slot is to be on one ({away.facts['detail']})",
                ) from away
            return connection  # it was promoted
    return connection.beside


def is_beside(connection: psycopg.Connection[Any], slot: str) -> bool:
    """Whether the slot is on another server than the one that is written to."""
    return at_slot(connection, slot) is not connection


def replayed_timeline(standby: psycopg.Connection[Any]) -> int | None:
    """The timeline that the standby replays, read over a walsender: its control file lags behind."""
    with open_session(to_the_same_server(standby, replication="database"), "source") as walsender:
        result = walsender.pgconn.exec_(b"IDENTIFY_SYSTEM")
        if result.status != pq.ExecStatus.TUPLES_OK:
            return None
        return int(result.get_value(0, 1) or b"0")


def system_identifier(connection: psycopg.Connection[Any]) -> str:
    return str(one_row(connection, "SELECT system_identifier::text FROM pg_control_system()")[0])


@contextmanager
def logging_snapshots(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """While the block creates a slot on the standby, ask the primary to log its running transactions if the role
    may. The standby waits for that record, which the primary writes by itself only from time to time."""
    done = threading.Event()

    def log_them() -> None:
        try:
            with open_session(to_the_same_server(connection), "source") as session:
                while not done.wait(1.0):
                    session.execute("SELECT pg_log_standby_snapshot()")
        except (psycopg.Error, DatabaseUnreachable):
            return  # it may not, or is away: then it takes as long as it takes

    asking = threading.Thread(target=log_them, name="tidemark logs snapshots", daemon=True)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join()
