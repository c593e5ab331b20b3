from __future__ import annotations

import threading

import pytest

from tidemark.errors import LedgerNotReady
from tidemark.ledger import migrations
from tidemark.ledger.connection import connect
from tidemark.ledger.migrations import migrate, require


def test_a_second_migration_changes_nothing(empty_ledger_database: str) -> None:
    version = migrate(empty_ledger_database)
    with connect(empty_ledger_database) as book:
        before = book.execute("SELECT number, applied_at FROM tidemark.schema_migrations").fetchall()
        assert migrate(empty_ledger_database) == version
        assert book.execute("SELECT number, applied_at FROM tidemark.schema_migrations").fetchall() == before
        require(book)


def test_a_ledger_of_every_older_version_becomes_what_a_new_one_is(
    empty_ledger_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = """SELECT table_name, column_name, data_type, column_default FROM information_schema.columns
                WHERE table_schema = 'tidemark' ORDER BY table_name, ordinal_position"""
    scripts = migrations._scripts()
    schemas = []
    for version in range(len(scripts)):
        with monkeypatch.context() as older:
            older.setattr(migrations, "_scripts", lambda version=version: scripts[:version])
            migrate(empty_ledger_database)
        assert migrate(empty_ledger_database) == scripts[-1][0]
        with connect(empty_ledger_database) as book:
            require(book)
            schemas.append(book.execute(query).fetchall())
            book.execute("DROP SCHEMA tidemark CASCADE")
    assert all(columns == schemas[0] for columns in schemas)
    assert ("positions", "begun_lsn") in {column[:2] for column in schemas[0]}


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


def test_a_schema_from_another_version_of_the_code_is_refused(empty_ledger_database: str) -> None:
    migrate(empty_ledger_database)
    with connect(empty_ledger_database) as book:
        book.execute("INSERT INTO tidemark.schema_migrations (number) VALUES (999)")
        with pytest.raises(LedgerNotReady, match="999"):
            require(book)
