"""A transaction whose commit lies below the slot's beginning and is not visible yet: the stream never has it, so no
chunk may be read before it is visible (join horizon). No Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support.hung_commit import SERVER_SETTINGS, HungCommit
from tests.support.pipeline import Pipeline
from tidemark.source.catalogue import transaction_visibility


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running(tmp_path_factory.mktemp("hanging"), 18, fsync="off", **SERVER_SETTINGS) as started:
        yield started


@pytest.fixture
def source(server: PostgresServer) -> str:
    return create_database(server, "source")


def waits_for(captured: Pipeline, transaction: int) -> bool:
    """Whether somebody waits for the transaction to end."""
    query = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid::text = '{transaction}'"
    return bool(captured.one(query))


def an_open_transaction(stack: ExitStack, captured: Pipeline) -> tuple[psycopg.Connection[Any], int]:
    connection = stack.enter_context(psycopg.connect(captured.source))
    row = connection.execute("SELECT pg_current_xact_id()::text::int").fetchone()
    assert row is not None
    return connection, row[0]


def test_a_chunk_waits_for_what_committed_below_the_slots_beginning(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.execute("CREATE TABLE t (n int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with ExitStack() as stack:
        # A slot begins in two steps, each of which waits for the transactions that it finds. One that begins between
        # them is waited for by neither, and what commits before the second one ends is below the slot's beginning.
        first, first_id = an_open_transaction(stack, captured)
        capturing = threading.Thread(target=captured.capture)
        capturing.start()
        wait_for("the slot waits for the first transaction", lambda: waits_for(captured, first_id))
        second, second_id = an_open_transaction(stack, captured)
        first.commit()
        wait_for("the slot waits for the second transaction", lambda: waits_for(captured, second_id))
        hung = HungCommit(captured.source, ["INSERT INTO t VALUES (2)"])
        second.commit()
        capturing.join()
    released: list[bool] = []

    def release() -> None:
        if not released:
            hung.release()
            released.append(True)

    def look(_: Any) -> list[str]:
        release()
        return ["the transaction that hung"]

    monkeypatch.setattr(transaction_visibility, "transactions_in_flight", look)
    (backfill,) = captured.plan(tables=["public.t"])
    captured.read()
    release()
    captured.execute("INSERT INTO t VALUES (3)")
    captured.drain()
    streamed = [row["n"] for row in captured.staged("public.t")]
    assert 2 not in streamed, "the stream has it: nothing was tried"
    assert sorted([row["n"] for row in captured.rows(backfill)] + streamed) == [1, 2, 3]
