from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sandbox.services.postgres import PostgresServer
from tests.ledger.conftest import open_at
from tests.support.migrations import NEWER, newer_version
from tests.support.remedies import Told
from tidemark.errors import LedgerIsNewer, LedgerMigrationRefused, LedgerMigrationWaits, LedgerNotReady
from tidemark.ledger import connection, leases
from tidemark.ledger.connection import connect, open_ledger
from tidemark.ledger.migrations import Migration, migrate, require, version
from tidemark.ledger.staged import generations
from tidemark.lsn import Lsn

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_second_migration_changes_nothing(empty_ledger_database: str) -> None:
    first = migrate(empty_ledger_database)
    assert (first.before, first.origin, first.is_needed) == (None, "nothing", True)
    with connect(empty_ledger_database) as book:
        before = book.execute("SELECT number, applied_at FROM tidemark.migrations").fetchall()
        assert migrate(empty_ledger_database) == Migration(first.after, first.after)
        assert book.execute("SELECT number, applied_at FROM tidemark.migrations").fetchall() == before
        require(book)


def test_an_older_ledger_with_rows_becomes_what_a_new_one_is(empty_ledger_database: str) -> None:
    query = """SELECT table_name, column_name, data_type, column_default FROM information_schema.columns
                WHERE table_schema = 'tidemark' ORDER BY table_name, ordinal_position"""
    older = migrate(empty_ledger_database).after
    with connect(empty_ledger_database) as book, newer_version():
        book.execute("INSERT INTO tidemark.pipelines (pipeline) VALUES ('shop')")
        book.execute("INSERT INTO tidemark.tables (pipeline, \"table\") VALUES ('shop', 's.a')")
        assert migrate(empty_ledger_database) == Migration(older, NEWER)
        require(book)
        migrated = book.execute(query).fetchall()
        assert book.execute("SELECT pipeline FROM tidemark.made_up").fetchall() == [("shop",)]
        assert book.execute("SELECT pipeline, made_up FROM tidemark.tables").fetchall() == [("shop", "from before")]

        book.execute("DROP SCHEMA tidemark CASCADE")
        assert migrate(empty_ledger_database) == Migration(None, NEWER)
        assert book.execute(query).fetchall() == migrated


def test_a_migration_that_fails_leaves_the_older_version(empty_ledger_database: str) -> None:
    older = migrate(empty_ledger_database).after
    with connect(empty_ledger_database) as book:
        with newer_version("CREATE TABLE tidemark.made_up (); SELECT 1 / 0"), pytest.raises(psycopg.DataError):
            migrate(empty_ledger_database)
        assert version(book) == older
        assert book.execute("SELECT to_regclass('tidemark.made_up')").fetchone() == (None,)
        require(book)


def test_two_migrations_at_once_apply_every_file_once(empty_ledger_database: str) -> None:
    failures: list[Exception] = []

    def run() -> None:
        try:
            migrate(empty_ledger_database)
        except Exception as failed:
            failures.append(failed)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with connect(empty_ledger_database) as book:
        require(book)


def test_a_missing_schema_is_named_with_its_remedy(empty_ledger_database: str) -> None:
    with connect(empty_ledger_database) as book, pytest.raises(LedgerNotReady, match="preflight"):
        require(book)


def test_an_older_schema_is_named_with_its_remedy(empty_ledger_database: str) -> None:
    older = migrate(empty_ledger_database).after
    with (
        newer_version(),
        connect(empty_ledger_database) as book,
        pytest.raises(LedgerNotReady, match=rf"at version {older}, .* migrate"),
    ):
        require(book)


def test_a_newer_schema_is_refused_and_left_as_it_is(empty_ledger_database: str) -> None:
    newest = migrate(empty_ledger_database).after
    with connect(empty_ledger_database) as book:
        book.execute("INSERT INTO tidemark.migrations (number) VALUES (999)")
        said = f"at version 999, and this version of Tidemark reads it up to {newest}: a newer"
        with pytest.raises(LedgerIsNewer, match=said):
            require(book)
        with pytest.raises(LedgerIsNewer, match=said):
            migrate(empty_ledger_database)
        assert version(book) == 999


@pytest.mark.walks("LedgerMigrationWaits")
def test_a_migration_that_waits_for_a_lock_changes_nothing_and_says_so(
    empty_ledger_database: str, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    older = migrate(empty_ledger_database).after
    with newer_version():
        with psycopg.connect(empty_ledger_database) as dump:
            dump.execute("SELECT * FROM tidemark.tables")
            monkeypatch.setattr(connection, "LOCK_TIMEOUT_S", 1)
            said = (f"from version {older} to version {NEWER}", "lock timeout", "once that has ended")
            with told(LedgerMigrationWaits, *said):
                migrate(empty_ledger_database)
        with connect(empty_ledger_database) as book:
            assert version(book) == older
        assert migrate(empty_ledger_database) == Migration(older, NEWER)


class TestARoleThatDoesNotOwnTheSchema:
    """With the statements of docs/operations.md, Least privilege."""

    @pytest.fixture
    def roles(self, postgres: PostgresServer, empty_ledger_database: str) -> Iterator[tuple[str, str]]:
        names = {name: f"{name}_{os.getpid()}" for name in ("tidemark_owner", "tidemark_ledger")}
        text = (REPOSITORY / "docs" / "operations.md").read_text().partition("### A ledger that preflight may not")[2]
        statements = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)[0]
        for name, unique in names.items():
            statements = statements.replace(name, unique)
        with psycopg.connect(empty_ledger_database, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {names['tidemark_ledger']} LOGIN PASSWORD '{postgres.password}'".encode())
            admin.execute(statements.encode())
            admin.execute(f"ALTER ROLE {names['tidemark_owner']} PASSWORD '{postgres.password}'".encode())
            yield tuple(make_conninfo(empty_ledger_database, user=name) for name in names.values())  # type: ignore[misc]
            for name in names.values():
                admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())

    @pytest.mark.walks("LedgerMigrationRefused")
    def test_says_who_can_migrate_and_works_once_that_was_done(self, roles: tuple[str, str], told: Told) -> None:
        owner, tasks = roles
        with told(LedgerMigrationRefused, "permission denied", "Let the schema's owner do it: `tidemark migrate"):
            migrate(tasks)
        newest = migrate(owner).after
        assert migrate(tasks) == Migration(newest, newest)
        with open_ledger(tasks, "shop") as ledger:
            require(ledger.connection)
            with leases.hold(tasks, "shop", leases.SLOT, "drain/1") as lease:
                opened = open_at(ledger, lease, 1, Lsn(100))
                assert generations.current(ledger) == opened
