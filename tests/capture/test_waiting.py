"""Each reason for which a run has something to do, and the one state in which it has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database, drop_database
from tests.support.hand_staged import TABLE, HandStaged, hand_staged
from tidemark.capture import waiting
from tidemark.capture.confirm import confirm
from tidemark.capture.waiting import Waiting, changes_waiting
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import merge_states
from tidemark.ledger.connection import open_ledger


def look(capture: HandStaged) -> Waiting:
    return changes_waiting(capture.config, source=capture.source, ledger=capture.ledger)


@pytest.fixture
def idle(capture: HandStaged) -> HandStaged:
    """Everything staged, applied and confirmed, with a heartbeat of just now."""
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    capture.advance(batch.end_lsn)
    capture.ledger_query("UPDATE tidemark.generations SET heartbeat_at = clock_timestamp()")
    return capture


def test_an_idle_pipeline_has_nothing_to_do(idle: HandStaged) -> None:
    assert look(idle).waiting is False


def test_what_an_idle_server_writes_for_itself_is_not_work(idle: HandStaged) -> None:
    idle.sql("CHECKPOINT")
    idle.sql("SELECT pg_log_standby_snapshot()")
    assert idle.flush_lsn() > idle.generation().staged_lsn
    assert look(idle).waiting is False


def test_our_own_heartbeat_and_a_busy_neighbour_are_not_work(idle: HandStaged) -> None:
    idle.sql("SELECT pg_logical_emit_message(true, 'tidemark', 'a heartbeat')")
    idle.sql("CREATE TABLE public.neighbour (n int)")
    idle.sql("INSERT INTO public.neighbour VALUES (1)")
    assert look(idle).waiting is False


def test_one_change_is_work_and_looking_does_not_consume_it(idle: HandStaged) -> None:
    idle.write()
    before = idle.confirmed_lsn()
    assert "changed" in look(idle).reason
    assert look(idle).waiting
    assert idle.confirmed_lsn() == before


def test_a_column_that_was_added_is_work_and_other_tables_columns_are_not(idle: HandStaged) -> None:
    """ADD COLUMN is in no change; with a default it is one of every row."""
    ((oid, file),) = idle.sql("SELECT oid, pg_relation_filenode(oid) FROM pg_class WHERE oid = 'public.item'::regclass")
    look_had = (
        f"jsonb_build_object('relation_oid', {oid}, 'last_attnum', 2, 'relfilenode', {file}, 'partitions', '[]'::jsonb)"
    )
    idle.ledger_query(f"UPDATE tidemark.tables SET captured = true, fingerprint = {look_had}")
    idle.sql("CREATE TABLE public.neighbour (n int)")
    idle.sql("ALTER TABLE public.neighbour ADD COLUMN state text DEFAULT 'open'")
    assert look(idle).waiting is False
    idle.sql("ALTER TABLE public.item ADD COLUMN state text DEFAULT 'open'")
    assert look(idle).reason == "public.item has columns that no run saw"
    assert look(idle).waiting


def test_much_wal_is_work_without_reading_it(idle: HandStaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PEEK_BYTES", 10)
    idle.sql("SELECT pg_logical_emit_message(true, 'tidemark', 'a heartbeat')")
    assert "bytes of WAL" in look(idle).reason


def test_before_the_first_drain_there_is_work(capture: HandStaged) -> None:
    assert look(capture).waiting


def test_a_first_run_is_not_explained_by_an_old_heartbeat(capture: HandStaged) -> None:
    capture.settle()
    assert look(capture).reason == "nothing was staged yet: this is the first run"


def test_an_unapplied_batch_is_work_unless_its_table_is_parked(idle: HandStaged) -> None:
    batch = idle.stage(TABLE)
    idle.ledger_query("UPDATE tidemark.generations SET heartbeat_at = clock_timestamp()")
    assert TABLE in look(idle).reason
    with open_ledger(idle.ledger, idle.config.pipeline) as book:
        merge_states.park(book, TABLE, ErrorRecord("TableBroken", "FIX_TARGET", "it is broken"))
    assert "confirmed up to" in look(idle).reason
    idle.advance(batch.end_lsn)
    assert look(idle).waiting is False


def test_an_old_heartbeat_is_work(idle: HandStaged) -> None:
    idle.ledger_query("UPDATE tidemark.generations SET heartbeat_at = heartbeat_at - interval '901 s'")
    assert "heartbeat" in look(idle).reason


def test_a_heartbeat_of_a_clock_that_was_ahead_is_work(idle: HandStaged) -> None:
    idle.ledger_query("UPDATE tidemark.generations SET heartbeat_at = heartbeat_at + interval '1 year'")
    assert "heartbeat" in look(idle).reason


def test_a_slot_that_went_wrong_is_work_for_the_drain_to_say(idle: HandStaged) -> None:
    idle.drop_slot()
    assert "does not exist" in look(idle).reason


def test_a_slot_that_stands_beyond_what_is_staged_is_work(idle: HandStaged) -> None:
    idle.write()
    idle.advance()
    assert "beyond" in look(idle).reason


def test_on_postgresql_16_settling_looking_and_confirming_work_alike(
    postgres16: PostgresServer, tmp_path: Path
) -> None:
    """Its pg_replication_slots lacks `failover`, `synced`, `invalidation_reason`, `inactive_since`."""
    source, ledger = create_database(postgres16, "source"), create_database(postgres16, "ledger")
    try:
        capture = hand_staged(source, ledger, tmp_path / "lake")
        capture.settle()
        batch = capture.stage(TABLE)
        capture.apply(TABLE, batch.end_lsn)
        capture.ledger_query("UPDATE tidemark.generations SET heartbeat_at = clock_timestamp()")
        assert "confirmed up to" in look(capture).reason
        assert confirm(capture.task()).after == batch.end_lsn
        assert look(capture).waiting is False
        capture.write()
        assert "changed" in look(capture).reason
    finally:
        drop_database(postgres16, source)
        drop_database(postgres16, ledger)
