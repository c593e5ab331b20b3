"""An outage is told of the database that is away, whichever sessions are open beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tidemark.errors import DatabaseUnreachable
from tidemark.postgres.postgres_session import connect, outages

Connection = psycopg.Connection[Any]
Work = Callable[[Connection, Callable[[], object]], None]


def _ask(session: Connection, end: Callable[[], object]) -> None:
    end()
    session.execute("SELECT 1")


def _ask_twice(session: Connection, end: Callable[[], object]) -> None:
    end()
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    session.execute("SELECT 1")


def _open_a_transaction(session: Connection, end: Callable[[], object]) -> None:
    end()
    with session.transaction():
        pass


def _commit(session: Connection, end: Callable[[], object]) -> None:
    with session.transaction():
        session.execute("SELECT 1")
        end()


@pytest.mark.parametrize("database", ["source", "ledger"])
@pytest.mark.parametrize("work", [_ask, _ask_twice, _open_a_transaction, _commit])
def test_an_outage_names_the_database_whose_session_ended(source: str, database: str, work: Work) -> None:
    with (
        connect(source, application_name="healthy", database="ledger" if database == "source" else "source") as healthy,
        connect(source, application_name="ended", database=database) as session,
    ):
        pid = session.info.backend_pid
        with pytest.raises(DatabaseUnreachable) as raised, outages():
            work(session, lambda: healthy.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,)))
        assert raised.value.facts["database"] == database


def test_a_statement_that_a_healthy_ledger_ends_is_the_ledgers(source: str) -> None:
    ledger = connect(source, application_name="ledger", database="ledger", statement_timeout_s=0.05)
    with ledger, pytest.raises(DatabaseUnreachable) as raised, outages():
        ledger.execute("SELECT pg_sleep(60)")
    assert raised.value.facts["database"] == "ledger"
