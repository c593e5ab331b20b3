"""Opens sessions at the ledger: libpq conninfo -> autocommit connection with `Lsn`, and one pipeline's `Ledger`.

Every function of this package takes a `Ledger` first, and reads and writes only the rows of its pipeline. Migrations
take the connection. Writes open a transaction (`with ledger.transaction()`), which nests: a caller opens one around
several writes to make them atomic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import Params, QueryNoTemplate
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.rows import RowFactory

from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session

PG_LSN_OID: Final = 3220
LOCK_TIMEOUT_S: Final = 30
STATEMENT_TIMEOUT_S: Final = 120

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ledger:
    """One pipeline's part of the ledger over one session. All users of a `Ledger` share its transaction. It belongs
    to one thread, as its connection does."""

    connection: psycopg.Connection[Any]
    pipeline: str

    def execute(self, query: QueryNoTemplate, values: Params | None = None) -> psycopg.Cursor[Any]:
        """Run a statement of this package. Named values include the pipeline's name."""
        if isinstance(values, Mapping):
            values = {"pipeline": self.pipeline, **values}
        return self.connection.execute(query, values)

    def row(self, query: QueryNoTemplate, values: Params | None = None) -> Any:
        """The row of a query that returns exactly one."""
        row = self.execute(query, values).fetchone()
        assert row is not None
        return row

    def value(self, query: QueryNoTemplate, values: Params | None = None) -> Any | None:
        """The first column of the first row; None without a row."""
        row = self.execute(query, values).fetchone()
        return None if row is None else row[0]

    def records(self, form: RowFactory[T], query: QueryNoTemplate, values: Params | None = None) -> list[T]:
        """The rows of a query in this form of psycopg's, as `class_row(…)`."""
        with self.connection.cursor(row_factory=form) as cursor:
            return cursor.execute(query, values).fetchall()

    def holds(self, query: QueryNoTemplate, values: Params | None = None) -> bool:
        """Whether there is a row, and its first column is neither NULL nor false."""
        return bool(self.value(query, values))

    def wrote_one(self, query: QueryNoTemplate, values: Params | None = None) -> bool:
        """Whether the statement, a compare-and-set, changed its row."""
        return self.execute(query, values).rowcount == 1

    def insert(self, into: str, /, *, or_nothing: bool = False, **row: Any) -> bool:
        """Insert a row of the pipeline, given by column names. With `or_nothing` an existing row stays, and the
        result is False."""
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
        """The session's transaction: the block is applied as a whole, or not at all."""
        return self.connection.transaction()


def fields_of(record: object, names: str) -> dict[str, Any]:
    """These fields of a record, as values of columns with their names."""
    return {name: getattr(record, name) for name in names.split()}


class _LsnDumper(Dumper):
    oid = PG_LSN_OID

    def dump(self, obj: Lsn) -> Buffer:
        return str(obj).encode()


class _LsnLoader(Loader):
    format = Format.TEXT

    def load(self, data: Buffer) -> Lsn:
        return Lsn.parse(bytes(data).decode())


def speak_lsn(connection: psycopg.Connection[Any]) -> None:
    """Convert between `pg_lsn` and `Lsn` on this connection."""
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
    """The pipeline's `Ledger` over a new session, which ends with the block. Raises what `connect` raises."""
    with connect(conninfo, application_name) as connection:
        yield Ledger(connection, pipeline)
