"""How the sessions that read one table without key end, when not all of them read to their end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sandbox.services.postgres import wait_for
from tests.support.pipeline import Pipeline
from tidemark.backfill import keyless_tables
from tidemark.errors import DatabaseUnreachable, SourceLocked
from tidemark.ledger.reading.backfills import Backfill
from tidemark.staging.chunk_writer import ChunkWriter


@pytest.fixture
def backfill(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Backfill:
    """Of a table of some fifteen stretches, which two sessions read."""
    monkeypatch.setattr(keyless_tables, "STRETCH_PAGES", 1)
    captured.execute(
        "CREATE TABLE t (n int, v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i, repeat('v', 100) FROM generate_series(1, 1000) AS i",
    )
    captured.capture()
    (planned,) = captured.plan(tables=["public.t"])
    return planned


@pytest.fixture
def told_to_end() -> Iterator[None]:
    """SIGUSR1 as Airflow's SIGTERM: its handler raises in the main thread."""

    def on_kill(*_: Any) -> None:
        raise SystemExit("told to end")

    before = signal.signal(signal.SIGUSR1, on_kill)
    yield
    signal.signal(signal.SIGUSR1, before)


def one_row_after(seconds: int) -> sql.Composed:
    return sql.SQL("SELECT 1, 'v'::text FROM pg_sleep({})").format(seconds)


def sleeping(captured: Pipeline) -> int:
    count: int = captured.one("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    return count


@pytest.mark.usefixtures("told_to_end")
def test_a_reader_that_is_told_to_end_waits_for_no_stretch(
    captured: Pipeline, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, began = [], []

    def slow(*stretch: Any) -> sql.Composed:
        queries.append(stretch)
        return one_row_after(30)

    def end_it() -> None:
        wait_for("both sessions read", lambda: sleeping(captured) == 2)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(keyless_tables.key_ranges, "stretch_query", slow)
    ending = threading.Thread(target=end_it)
    ending.start()
    with pytest.raises(SystemExit, match="told to end"):
        captured.read()
    ending.join()
    assert time.monotonic() - began[0] < 20
    assert (len(queries), sleeping(captured)) == (2, 0)
    monkeypatch.undo()
    assert captured.read().rows == 1000


@pytest.mark.usefixtures("told_to_end")
def test_the_files_of_sessions_that_had_ended_are_let_go(
    captured: Pipeline, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, abandon = ChunkWriter.finish, ChunkWriter.abandon
    abandoned: list[ChunkWriter] = []

    def told(writer: ChunkWriter) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return finish(writer)

    def note(writer: ChunkWriter) -> None:
        abandoned.append(writer)
        abandon(writer)

    monkeypatch.setattr(ChunkWriter, "finish", told)
    monkeypatch.setattr(ChunkWriter, "abandon", note)
    with pytest.raises(SystemExit):
        captured.read()
    assert len(set(map(id, abandoned))) == 3, "those of two sessions, and the chunk's own"
    assert captured.chunks(backfill) == []


def test_a_session_that_cannot_begin_ends_the_others(
    captured: Pipeline, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = keyless_tables.read_sessions.connect
    queries, began = [], []

    def refused(*arguments: Any) -> Any:
        if threading.current_thread().name == "chunk_1":
            wait_for("the other one reads", lambda: queries)
            began.append(time.monotonic())
            raise psycopg.OperationalError("connection failed: no more connections")
        return connect(*arguments)

    def slow(*stretch: Any) -> sql.Composed:
        queries.append(stretch)
        return one_row_after(30)

    monkeypatch.setattr(keyless_tables.read_sessions, "connect", refused)
    monkeypatch.setattr(keyless_tables.key_ranges, "stretch_query", slow)
    with pytest.raises(DatabaseUnreachable, match="no more connections"):
        captured.read()
    assert time.monotonic() - began[0] < 20
    assert len(queries) == 1


def test_an_alter_between_the_chunks_lock_and_a_sessions_ends_in_a_retry(
    captured: Pipeline, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session waits for the ALTER, the ALTER for the chunk, the chunk for the session: the bound ends it."""
    captured.with_bounds(lock_timeout_s=1)
    real, queued = keyless_tables._stretches, threading.Event()

    def alter() -> None:
        with psycopg.connect(captured.source, autocommit=True) as connection:
            connection.execute("ALTER TABLE t ADD more int")

    altering = threading.Thread(target=alter)

    def stretches(*arguments: Any) -> Any:
        stretches_now = list(real(*arguments))
        if not queued.is_set():
            altering.start()
            wait_for("the ALTER waits", lambda: captured.one("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            queued.set()
        return stretches_now

    monkeypatch.setattr(keyless_tables, "_stretches", stretches)
    with pytest.raises(SourceLocked):
        captured.read()
    altering.join()
    assert captured.read().rows == 1000
