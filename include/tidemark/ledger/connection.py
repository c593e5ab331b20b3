"""Opens sessions at the ledger: libpq conninfo -> autocommit connection with `Lsn`, and one pipeline's `Ledger`.

Every function of this package takes a `Ledger` first, and reads and writes only the rows of its pipeline. Migrations
take the connection. Writes open a transaction (`with ledger.transaction()`), which nests: a caller opens one around
several writes to make them atomic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.abc import Params, QueryNoTemplate
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format

from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session

PG_LSN_OID: Final = 3220
LOCK_TIMEOUT_S: Final = 30
STATEMENT_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Ledger:
    """One pipeline's part of the ledger over one session. Whoever holds it shares its transaction: a `Ledger` belongs
    to one thread, like its connection."""

    connection: psycopg.Connection[Any]
    pipeline: str

    def execute(self, query: QueryNoTemplate, values: Params | None = None) -> psycopg.Cursor[Any]:
        """The session's `execute`; statements on the ledger's tables stand in this package alone. Values by name have
        the pipeline's too."""
        if isinstance(values, Mapping):
            values = {"pipeline": self.pipeline, **values}
        return self.connection.execute(query, values)

    def row(self, query: QueryNoTemplate, values: Params | None = None) -> Any:
        """The only row of a query that has one."""
        row = self.execute(query, values).fetchone()
        assert row is not None
        return row

    def value(self, query: QueryNoTemplate, values: Params | None = None) -> Any | None:
        """The first column of the first row; None without a row."""
        row = self.execute(query, values).fetchone()
        return None if row is None else row[0]

    def holds(self, query: QueryNoTemplate, values: Params | None = None) -> bool:
        """Whether there is a row, and its first column is neither NULL nor false."""
        return bool(self.value(query, values))

    def wrote_one(self, query: QueryNoTemplate, values: Params | None = None) -> bool:
        """Whether the statement, a compare-and-set, found its row."""
        return self.execute(query, values).rowcount == 1

    def insert(self, into: str, /, *, or_nothing: bool = False, **row: Any) -> bool:
        """Insert a row of the pipeline, by the names of its columns. With `or_nothing` a row that is there already
        stays, and this returns False."""
        row = {"pipeline": self.pipeline, **row}
        statement = sql.SQL("INSERT INTO tidemark.{} ({}) VALUES ({})").format(
            sql.Identifier(into),
            sql.SQL(", ").join(map(sql.Identifier, row)),
            sql.SQL(", ").join(map(sql.Placeholder, row)),
        )
        if or_nothing:
            statement += sql.SQL(" ON CONFLICT DO NOTHING")
        return self.execute(statement, row).rowcount == 1

    def transaction(self) -> AbstractContextManager[psycopg.Transaction]:
        """The session's `transaction`: what is done in the block is one thing, or nothing of it is done."""
        return self.connection.transaction()


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
    settings = {
        "lock_timeout": f"{LOCK_TIMEOUT_S}s",
        "statement_timeout": f"{STATEMENT_TIMEOUT_S}s",
        # Compiling takes longer than any statement here; tables without statistics look large enough for it.
        "jit": "off",
    }
    connection = postgres_session.open_session(conninfo, "ledger", application_name=application_name, settings=settings)
    speak_lsn(connection)
    return connection


@contextmanager
def open_ledger(conninfo: str, pipeline: str, application_name: str = "tidemark_ledger") -> Iterator[Ledger]:
    """The pipeline's `Ledger` over a session of its own, which ends with the block. Raises what `connect` does."""
    with connect(conninfo, application_name) as connection:
        yield Ledger(connection, pipeline)
