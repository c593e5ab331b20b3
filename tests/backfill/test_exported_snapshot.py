"""Mode exported_snapshot: a reader under one snapshot, and what happens when it, or the exporting session, dies."""

from __future__ import annotations

import logging

import psycopg
import pytest

from sandbox.services.postgres import wait_for
from tests.support.failpoint_names import OF_A_BACKFILL
from tests.support.pipeline import Pipeline
from tests.support.roles import login
from tidemark.backfill import exported_snapshot as exported
from tidemark.backfill.exported_snapshot import exported_snapshot
from tidemark.backfill.range_reading import ReadResult
from tidemark.backfill.read_sessions import ImportedSnapshot
from tidemark.errors import SnapshotExportBlocked
from tidemark.ledger import leases
from tidemark.lsn import Lsn
from tidemark.run import Run


def a_table(captured: Pipeline, rows: int = 1000) -> None:
    captured.execute(
        "CREATE TABLE t (n int PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT i, 'v' FROM generate_series(1, {rows}) AS i",
        "ANALYZE t",
    )
    captured.capture()


def test_all_ranges_are_read_under_one_snapshot(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot", chunk_rows=100)
    read = exported.read_chunks

    def later(run: Run, *, imported: ImportedSnapshot) -> ReadResult:
        captured.execute("UPDATE t SET v = 'changed'", "DELETE FROM t WHERE n > 500")
        return read(run, imported=imported)

    monkeypatch.setattr(exported, "read_chunks", later)
    result = captured.read_exported()
    assert result.rows == 1000
    assert sorted(row["n"] for row in captured.rows(backfill)) == list(range(1, 1001))
    assert {row["v"] for row in captured.rows(backfill)} == {"v"}
    points = {chunk.consistent_point for chunk in captured.chunks(backfill)}
    assert len(points) == 1
    (point,) = points
    assert isinstance(point, Lsn)
    wait_for(
        "the slot went with its session",
        lambda: captured.one("SELECT count(*) FROM pg_replication_slots WHERE temporary") == 0,
    )
    assert all(r.done for r in captured.ranges(backfill))
    assert captured.read_exported() == ReadResult()


def test_a_backfill_of_another_mode_is_left_to_the_other_readers(captured: Pipeline) -> None:
    a_table(captured)
    captured.plan(tables=["public.t"])
    assert captured.read_exported() == ReadResult()
    assert captured.read().rows == 1000


@pytest.mark.some(2)
@pytest.mark.parametrize("failpoint", [name for name in OF_A_BACKFILL if name.startswith("read.")])
def test_the_try_after_a_killed_one_reads_the_rest(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot", chunk_rows=100)

    def dies(name: str) -> None:
        if name == failpoint:
            raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("tidemark.backfill.range_reading.reach", dies)
        with pytest.raises(KeyboardInterrupt):
            captured.read_exported()
    captured.read_exported()
    assert sorted(row["n"] for row in captured.rows(backfill)) == list(range(1, 1001))
    assert all(chunk.consistent_point is not None for chunk in captured.chunks(backfill))


def test_a_try_takes_over_what_a_killed_one_holds(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot")
    (key_range,) = captured.ranges(backfill)
    holder = captured.task("read", captured.run_id).holder
    killed = leases.hold(captured.ledger, captured.config.pipeline, key_range.lease, holder, lease_s=600)
    killed.__enter__()
    assert captured.read_exported().rows == 1000
    assert sorted(row["n"] for row in captured.rows(backfill)) == list(range(1, 1001))
    killed.__exit__(None, None, None)


def test_what_another_task_holds_is_left_alone(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot")
    (key_range,) = captured.ranges(backfill)
    with leases.hold(
        captured.ledger, captured.config.pipeline, key_range.lease, f"backfill/{captured.run_id}/reader/1"
    ):
        assert captured.read_exported() == ReadResult()


def test_the_death_of_the_session_costs_no_chunk(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot", chunk_rows=100)
    with exported_snapshot(captured.config, captured.source) as imported:

        def reach(name: str) -> None:
            if name == "read.after_high":
                captured.execute(
                    "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE temporary"
                )

        monkeypatch.setattr("tidemark.backfill.range_reading.reach", reach)
        with caplog.at_level(logging.WARNING):
            captured.read(imported=imported)
    assert "the session that exported the snapshot has ended" in caplog.text
    assert sorted(row["n"] for row in captured.rows(backfill)) == list(range(1, 1001))
    chunks = captured.chunks(backfill)
    assert [chunk.consistent_point is None for chunk in chunks] == [False] + [True] * (len(chunks) - 1)


@pytest.mark.parametrize("statement", ["ALTER TABLE t ALTER n TYPE bigint", "VACUUM FULL t", "TRUNCATE t"])
def test_a_table_that_was_rewritten_since_is_not_read_under_the_snapshot(captured: Pipeline, statement: str) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot")
    with exported_snapshot(captured.config, captured.source) as imported:
        captured.execute(statement)
        captured.read(imported=imported)
    (chunk,) = captured.chunks(backfill)
    assert chunk.consistent_point is None
    assert chunk.rows == (0 if "TRUNCATE" in statement else 1000)


def test_an_exporter_that_ends_while_its_snapshot_is_imported_leaves_the_rest_to_chunk_mode(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot")
    with psycopg.connect(captured.source) as exporter:
        row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        # Its file outlives it, as it seems to a session that has read it just before.
        copy = f"cp pg_snapshots/{row[0]} pg_snapshots/0000FFFF-0000FFFF-1"
        captured.execute(f"COPY (SELECT) TO PROGRAM 'cat > /dev/null; {copy}'")
    ended_snapshot = ImportedSnapshot("0000FFFF-0000FFFF-1", Lsn(1))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState), captured.connection.transaction():
        captured.execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", f"SET TRANSACTION SNAPSHOT '{ended_snapshot.identifier}'"
        )
    captured.read(imported=ended_snapshot)
    assert [chunk.consistent_point for chunk in captured.chunks(backfill)] == [None]
    assert len(captured.rows(backfill)) == 1000


def test_under_the_snapshot_the_key_keeps_the_order_that_it_had(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot", chunk_rows=100)
    with psycopg.connect(captured.source) as exporter:
        row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        captured.execute("CREATE UNIQUE INDEX down ON t (n DESC)", "ALTER TABLE t REPLICA IDENTITY USING INDEX down")
        captured.read(imported=ImportedSnapshot(row[0], Lsn(1)))
    assert [row["n"] for row in captured.rows(backfill)] == list(range(1, 1001))
    assert captured.again(backfill).state == "open"


def test_an_old_transaction_is_named_when_no_snapshot_can_be_exported(
    captured: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    a_table(captured)
    captured.plan(tables=["public.t"], mode="exported_snapshot")
    captured.with_bounds(join_wait_s=2)
    with psycopg.connect(captured.source, application_name="the writer") as writer:
        writer.execute("INSERT INTO t VALUES (0)")
        with pytest.raises(SnapshotExportBlocked, match="the writer") as blocked:
            captured.read_exported()
    assert "within 2 s, since transactions were open" in str(blocked.value)
    assert "max_replication_slots" not in str(blocked.value)
    assert "Waiting for the end of open transactions: process" in caplog.text
    assert captured.one("SELECT count(*) FROM pg_replication_slots WHERE temporary") == 0


def test_what_a_reader_may_not_read_ends_the_backfill(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.t"], mode="exported_snapshot")
    role = f"limited_{captured.config.pipeline}"
    captured.execute(login(role, captured.source, "REPLICATION"))
    whole, captured.source = captured.source, captured.source.replace("user=postgres", f"user={role}")
    try:
        captured.read_exported()
    finally:
        captured.source = whole
        captured.execute(f"DROP ROLE {role}")
    assert "permission denied" in (captured.again(backfill).state_reason or "")


def test_a_role_that_may_only_read_and_replicate_is_enough(captured: Pipeline) -> None:
    a_table(captured)
    role = f"limited_{captured.config.pipeline}"
    captured.execute(login(role, captured.source, "REPLICATION"), f"GRANT SELECT ON t TO {role}")
    whole, captured.source = captured.source, captured.source.replace("user=postgres", f"user={role}")
    try:
        captured.plan(tables=["public.t"], mode="exported_snapshot", chunk_rows=100, row_filter="n <= 500")
        assert captured.read_exported().rows == 500
        captured.plan(tables=["public.t"], chunk_rows=100, replace=True)
        assert captured.read().rows == 1000
    finally:
        captured.source = whole
        captured.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
