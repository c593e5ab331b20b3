"""How far a pipeline is behind its source, from records alone."""

from __future__ import annotations

from datetime import timedelta

from tests.unit.capture.test_health import CONFIG, NOW, a_ledger, a_slot, a_table, ago
from tidemark.ledger.observations.overview import PipelineStatus
from tidemark.ledger.observations.runs import Figures
from tidemark.lsn import Lsn
from tidemark.observe.run_verdict import figures_of
from tidemark.observe.status import Status


def figures(ledger: PipelineStatus, *, source_ahead: int = 10**9) -> Figures:
    """With WAL above what is staged, which other databases wrote."""
    slot = a_slot(restart_lsn=Lsn(9), confirmed_lsn=Lsn(9), retained_bytes=source_ahead)
    status = Status(CONFIG, ledger, slot, None, {}, NOW)
    return figures_of(status, status.health)


def test_without_a_change_that_waits_there_is_no_lag_whatever_other_databases_write() -> None:
    idle = figures(a_ledger(a_table("s.a"), heartbeat_at=ago(minutes=4)))
    assert (idle.lag_s, idle.lag_bytes) == (0.0, 0)
    assert idle.source_lsn == Lsn(9 + 10**9)


def test_the_lag_is_the_age_of_the_oldest_change_that_is_not_in_delta() -> None:
    waits = a_table("s.a", waiting_batches=2, waiting_since=ago(minutes=3), waiting_oldest_change_at=ago(minutes=9))
    younger = a_table("s.b", waiting_batches=1, waiting_since=ago(minutes=1), waiting_oldest_change_at=ago(minutes=2))
    behind = figures(a_ledger(younger, waits, a_table("s.c"), confirmable_lsn=Lsn(4)))
    assert (behind.lag_s, behind.lag_bytes) == (540.0, 5)


def test_rows_that_a_backfill_read_are_no_changes() -> None:
    read = a_table("s.a", waiting_batches=1, waiting_since=ago(minutes=3), waiting_has_chunks=True)
    assert figures(a_ledger(read)).lag_s == 0.0


def test_a_parked_table_has_its_own_finding_and_no_part_in_the_lag() -> None:
    parked = a_table("s.a", merge="parked", waiting_batches=1, waiting_oldest_change_at=ago(days=3))
    assert figures(a_ledger(parked)).lag_s == 0.0


def test_what_was_not_looked_at_for_long_counts_as_behind() -> None:
    """Changes may wait in WAL that nobody has read."""
    silent = timedelta(minutes=11)
    unread = figures(a_ledger(a_table("s.a"), heartbeat_at=NOW - silent), source_ahead=700)
    assert (unread.lag_s, unread.lag_bytes) == (silent.total_seconds(), 700)
