"""The source crashes with `synchronous_commit = off`: what was seen of it is durable before anybody keeps it (R7).

A commit is visible before its record is on disk, and a crash forgets it: its rows are gone, its transaction ids are
given out again. So a chunk or a snapshot that saw it, and that is kept, would be evidence of what never happened.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support.pipeline import Pipeline
from tidemark.backfill import range_reading
from tidemark.lsn import Lsn
from tidemark.source.wal.wal_messages import make_durable


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "source", 18, fsync="off", synchronous_commit="off", autovacuum="off") as started:
        yield started


@pytest.fixture
def source(server: PostgresServer) -> str:
    return create_database(server, "source")


@pytest.fixture
def captured(captured: Pipeline) -> Pipeline:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'from before')")
    captured.capture()
    return captured


@pytest.fixture
def nothing_is_written(captured: Pipeline) -> Iterator[None]:
    """The WAL writer stands still, so that what was committed is in memory alone until somebody waits for it."""
    pid = captured.one("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(pid, signal.SIGSTOP)
    yield
    with suppress(ProcessLookupError):  # it died in the crash
        os.kill(pid, signal.SIGCONT)


def lies_in_memory_alone(captured: Pipeline) -> bool:
    return bool(captured.one("SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()"))


def crash(server: PostgresServer) -> None:
    """All of its processes die at once, and it recovers from what was written."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    for pid in [postmaster, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    (server.data / "postmaster.pid").unlink()
    server.start()


def test_a_commit_that_a_chunk_saw_outlives_a_crash(
    captured: Pipeline, server: PostgresServer, nothing_is_written: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader dies just after it recorded the chunk, so that nothing of its own makes the WAL durable."""
    (backfill,) = captured.plan(tables=["public.t"])
    real = range_reading._RangeReader._record

    def record_and_die(*arguments: object, **options: object) -> bool:
        assert real(*arguments, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    def read_and_die() -> None:
        with pytest.raises(KeyboardInterrupt):
            captured.read()

    monkeypatch.setattr(range_reading._RangeReader, "_record", record_and_die)
    with psycopg.connect(captured.source) as writer:
        writer.execute("LOCK TABLE t")  # the reader waits for it, behind its low watermark
        reading = threading.Thread(target=read_and_die)
        reading.start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        wait_for("the reader waits", lambda: captured.query(waits))
        writer.execute("INSERT INTO t VALUES (2, 'seen by the chunk')")
    reading.join()
    read = {row["id"] for row in captured.rows(backfill)}
    assert read == {1, 2}
    crash(server)
    with psycopg.connect(captured.source) as after:
        assert {key for (key,) in after.execute("SELECT id FROM t")} == read


def test_what_a_backfills_snapshot_saw_is_durable_before_it_is_opened(
    captured: Pipeline, nothing_is_written: None
) -> None:
    captured.execute("INSERT INTO t VALUES (2, 'seen by the snapshot')")
    committed_lsn = Lsn.parse(captured.one("SELECT pg_current_wal_insert_lsn()::text"))
    assert lies_in_memory_alone(captured)
    (backfill,) = captured.plan(tables=["public.t"])
    assert backfill.snapshot_lsn is not None
    assert backfill.snapshot_lsn >= committed_lsn
    assert Lsn.parse(captured.one("SELECT pg_current_wal_flush_lsn()::text")) >= committed_lsn


def test_what_a_table_was_seen_empty_by_is_durable_before_it_counts(
    captured: Pipeline, nothing_is_written: None
) -> None:
    assert captured.table_row("public.t").life.needs_backfill
    captured.execute("DELETE FROM t")
    assert lies_in_memory_alone(captured)
    captured.capture()
    assert not captured.table_row("public.t").life.needs_backfill
    assert not lies_in_memory_alone(captured)


def test_what_a_join_was_judged_by_is_durable_before_it_counts(captured: Pipeline, nothing_is_written: None) -> None:
    captured.execute("CREATE TABLE u (id int PRIMARY KEY)")
    captured.capture()
    assert captured.table_row("public.u").join_horizon is not None
    assert not lies_in_memory_alone(captured)


def test_where_all_is_durable_nothing_is_written(captured: Pipeline) -> None:
    with psycopg.connect(captured.source, autocommit=True) as session:
        make_durable(session)
        inserted_lsn = captured.one("SELECT pg_current_wal_insert_lsn()::text")
        make_durable(session)
        assert captured.one("SELECT pg_current_wal_insert_lsn()::text") == inserted_lsn
