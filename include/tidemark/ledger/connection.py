"""Connections to the ledger: libpq conninfo -> autocommit connection that speaks `Lsn`.

Every function of this package takes such a connection. Writes open their own transaction (`with
connection.transaction()`) and nest, so a caller that wants several of them to be one thing
opens a transaction around them.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format

from tidemark import postgres_session
from tidemark.lsn import Lsn

PG_LSN_OID: Final = 3220
LOCK_TIMEOUT_S: Final = 30
STATEMENT_TIMEOUT_S: Final = 120


class _LsnDumper(Dumper):
    oid = PG_LSN_OID

    def dump(self, obj: Lsn) -> Buffer:
        return str(obj).encode()


class _LsnLoader(Loader):
    format = Format.TEXT

    def load(self, data: Buffer) -> Lsn:
        return Lsn.parse(bytes(data).decode())


def speak_lsn(connection: psycopg.Connection[Any]) -> None:
    """Let `pg_lsn` and `Lsn` stand for each other on this connection."""
    connection.adapters.register_dumper(Lsn, _LsnDumper)
    connection.adapters.register_loader(PG_LSN_OID, _LsnLoader)


def connect(conninfo: str, application_name: str = "tidemark_ledger") -> psycopg.Connection[Any]:
    """Open a ledger connection: autocommit, UTC, bounded waits. Use it as a context manager, which closes it."""
    connection = postgres_session.connect(
        conninfo,
        application_name=application_name,
        database="ledger",
        lock_timeout_s=LOCK_TIMEOUT_S,
        statement_timeout_s=STATEMENT_TIMEOUT_S,
    )
    speak_lsn(connection)
    return connection
