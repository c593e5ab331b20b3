"""Applies the numbered SQL files of this folder to the ledger's schema `tidemark`, each once and in order.

The table `migrations` has the applied numbers. A released file never changes; a change of the schema is a new file. The
code works only on its own version of the schema. `tidemark migrate`, or preflight if the ledger's role may, upgrades an
older ledger. A newer ledger is refused, and so is one from before 0.1.0, whose table of migrations has another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import psycopg

from tidemark.errors import (
    LedgerBeforeReleases,
    LedgerIsNewer,
    LedgerMigrationRefused,
    LedgerMigrationWaits,
    LedgerNotReady,
)
from tidemark.ledger.connection import connect
from tidemark.postgres.postgres_session import one_row

# Any constant: the key of the advisory lock under which two migrations at once follow each other.
_LOCK: Final = 0x7469_6465

# A migration may rewrite or index what years left; everything else in the ledger is over in seconds.
_STATEMENT_TIMEOUT_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Migration:
    """From which version to which the ledger's schema was brought, or would be; `before` is None without a schema."""

    before: int | None
    after: int

    @property
    def is_needed(self) -> bool:
        return self.before != self.after

    @property
    def origin(self) -> str:
        return "nothing" if self.before is None else f"version {self.before}"


def _scripts() -> list[tuple[int, str]]:
    scripts = [f for f in files(__package__).iterdir() if f.name.endswith(".sql")]
    return sorted((int(f.name.partition("_")[0]), f.read_text(encoding="utf-8")) for f in scripts)


def migrate(conninfo: str) -> Migration:
    """Bring the ledger's schema up to date. Safe to call at any time, by two at once.

    All of it or nothing: whoever reads the ledger meanwhile waits, or sees the version from before. Raises
    LedgerIsNewer and LedgerBeforeReleases, LedgerMigrationRefused where the role lacks a right, LedgerMigrationWaits
    for a lock or for longer than the database allows.
    """
    with connect(conninfo) as connection:
        wanted = pending(connection)
        if not wanted.is_needed:
            return wanted
        try:
            return _apply(connection)
        except psycopg.errors.InsufficientPrivilege as denied:
            raise LedgerMigrationRefused(
                role=connection.info.user,
                database=connection.info.dbname,
                before=wanted.origin,
                after=wanted.after,
                detail=denied.diag.message_primary,
            ) from denied
        except (
            # Tasks hold their locks for seconds, a pg_dump for as long as it runs.
            psycopg.errors.LockNotAvailable,
            psycopg.errors.QueryCanceled,
            psycopg.errors.DeadlockDetected,
        ) as waited:
            raise LedgerMigrationWaits(
                before=wanted.origin, after=wanted.after, detail=waited.diag.message_primary
            ) from waited


def _apply(connection: psycopg.Connection[Any]) -> Migration:
    with connection.transaction():
        connection.execute("SELECT set_config('statement_timeout', %s, true)", (f"{_STATEMENT_TIMEOUT_S}s",))
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        migration = pending(connection)
        if migration.before is None:
            # Only if it is not there: an owner may have made the schema for a role that can make none.
            if not _exists(connection, "to_regnamespace('tidemark')"):
                connection.execute("CREATE SCHEMA tidemark")
            connection.execute(
                "CREATE TABLE tidemark.migrations (number integer PRIMARY KEY, applied_at timestamptz NOT NULL "
                "DEFAULT clock_timestamp())"
            )
        for number, script in _scripts():
            if number > (migration.before or 0):
                connection.execute(script.encode())
                connection.execute("INSERT INTO tidemark.migrations (number) VALUES (%s)", (number,))
        return migration


def pending(connection: psycopg.Connection[Any]) -> Migration:
    """What `migrate` would do. Raises LedgerIsNewer and LedgerBeforeReleases."""
    newest = max((number for number, _ in _scripts()), default=0)
    applied = version(connection)
    if applied is not None and applied > newest:
        raise LedgerIsNewer(version=applied, known=newest)
    return Migration(applied, newest)


def require(connection: psycopg.Connection[Any]) -> None:
    """Raise LedgerNotReady, LedgerIsNewer or LedgerBeforeReleases unless the schema is at the version of this code."""
    needed = pending(connection)
    if needed.is_needed:
        state = "missing" if needed.before is None else f"at version {needed.before}"
        raise LedgerNotReady(state=state, expected=needed.after)


def _exists(connection: psycopg.Connection[Any], name: str) -> bool:
    return bool(one_row(connection, f"SELECT {name} IS NOT NULL".encode())[0])


def version(connection: psycopg.Connection[Any]) -> int | None:
    """The number of the last migration that was applied; None if there is no schema. Raises LedgerBeforeReleases."""
    if not _exists(connection, "to_regclass('tidemark.migrations')"):
        if _exists(connection, "to_regclass('tidemark.schema_migrations')"):
            raise LedgerBeforeReleases(database=connection.info.dbname)
        return None
    return int(one_row(connection, "SELECT coalesce(max(number), 0) FROM tidemark.migrations")[0])
