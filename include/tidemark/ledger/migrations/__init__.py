"""Numbered SQL files of this folder -> the ledger's schema `tidemark`, each applied once, in order, in one transaction.

`schema_migrations` holds the numbers that were applied. An applied file never changes; a
change of the schema is a new file.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import psycopg

from tidemark.errors import LedgerNotReady
from tidemark.ledger.connection import connect

# Any constant: the key of the advisory lock under which two migrations at once follow each other.
_LOCK = 0x7469_6465


def _scripts() -> list[tuple[int, str]]:
    scripts = [f for f in files(__package__).iterdir() if f.name.endswith(".sql")]
    return sorted((int(f.name.partition("_")[0]), f.read_text(encoding="utf-8")) for f in scripts)


def migrate(conninfo: str) -> int:
    """Bring the ledger's schema up to date and return its version. Safe to call at any time, by two at once."""
    with connect(conninfo) as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if version(connection) is None:
            connection.execute("CREATE SCHEMA IF NOT EXISTS tidemark")
            connection.execute(
                "CREATE TABLE tidemark.schema_migrations (number integer PRIMARY KEY, applied_at timestamptz NOT NULL "
                "DEFAULT clock_timestamp())"
            )
        applied = version(connection) or 0
        for number, script in _scripts():
            if number > applied:
                connection.execute(script.encode())
                connection.execute("INSERT INTO tidemark.schema_migrations (number) VALUES (%s)", (number,))
                applied = number
        return applied


def require(connection: psycopg.Connection[Any]) -> None:
    """Raise `LedgerNotReady` unless the schema is at the version of this code."""
    expected = _scripts()[-1][0]
    applied = version(connection)
    if applied != expected:
        raise LedgerNotReady(state="missing" if applied is None else f"at version {applied}", expected=expected)


def version(connection: psycopg.Connection[Any]) -> int | None:
    """The number of the last migration that was applied; None if there is no schema."""
    row = connection.execute("SELECT to_regclass('tidemark.schema_migrations') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = connection.execute("SELECT coalesce(max(number), 0) FROM tidemark.schema_migrations").fetchone()
    return None if row is None else int(row[0])
