"""R3: what confirm does to the slot, and what it never does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pytest

from sandbox.services.postgres import wait_for
from tests.support.hand_staged import TABLE, HandStaged
from tidemark.capture import confirm as confirm_module
from tidemark.capture.confirm import ConfirmResult, confirm, confirm_up_to_staged
from tidemark.errors import ConfirmFailed, GenerationMissing, GenerationStale, LeaseTaken, SlotBusy
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import leases
from tidemark.ledger.captured import merge_states
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.leases import SLOT
from tidemark.postgres.postgres_session import with_settings

OTHER = "public.other"


def run(capture: HandStaged, busy_wait_s: float = 10.0) -> ConfirmResult:
    return confirm(capture.task("confirm"), busy_wait_s=busy_wait_s)


def test_everything_applied_confirms_what_is_staged(capture: HandStaged) -> None:
    capture.settle()
    before = capture.confirmed_lsn()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    assert run(capture) == ConfirmResult(before=before, after=batch.end_lsn, staged=batch.end_lsn, held_back_by=())
    assert capture.confirmed_lsn() == capture.generation().confirmed_lsn == batch.end_lsn


def test_nothing_applied_confirms_nothing_and_says_what_holds_it(capture: HandStaged) -> None:
    """Whatever the tasks' states say: a merge marked as successful by hand has applied nothing."""
    capture.settle()
    before = capture.confirmed_lsn()
    capture.stage(TABLE)
    result = run(capture)
    assert (result.after, result.held_back_by) == (before, (TABLE,))
    assert capture.confirmed_lsn() == before


def test_a_slot_that_the_file_names_since_is_not_moved_to_where_another_one_was_staged(capture: HandStaged) -> None:
    """It may be somebody else's; whose it is, the next drain asks."""
    staged_from = capture.config.slot
    capture.settle()
    capture.config = replace(capture.config, slot=staged_from + "_other")
    capture.sql(f"SELECT pg_create_logical_replication_slot('{capture.config.slot}', 'pgoutput')")
    stood = capture.confirmed_lsn()
    capture.apply(TABLE, capture.stage(TABLE).end_lsn)
    with pytest.raises(GenerationStale, match=staged_from):
        run(capture)
    assert capture.confirmed_lsn() == stood


def test_a_table_holds_the_slot_just_before_its_next_batch(capture: HandStaged) -> None:
    capture.settle()
    first, second = capture.stage(TABLE), capture.stage(OTHER)
    capture.apply(TABLE, first.end_lsn)
    assert run(capture).after == second.start_lsn == capture.confirmed_lsn()


def test_a_parked_table_does_not_hold_the_slot(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    with open_ledger(capture.ledger, capture.config.pipeline) as book:
        merge_states.park(book, TABLE, ErrorRecord("TableBroken", "FIX_TARGET", "it is broken"))
    assert run(capture).after == batch.end_lsn


def test_a_slot_at_or_beyond_the_position_is_left_where_it_is(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    capture.write()
    capture.advance()
    beyond = capture.confirmed_lsn()
    assert run(capture).after == beyond == capture.confirmed_lsn()
    # What the drain's status replies carry stays at or below staged.
    assert capture.generation().confirmed_lsn is None


def test_a_second_confirmation_changes_nothing(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    run(capture)
    assert run(capture).before == run(capture).after == batch.end_lsn


def test_the_valve_confirms_what_is_staged_although_nothing_is_applied(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    with leases.hold(capture.ledger, "shop", SLOT, "drain/1") as lease:
        result = confirm_up_to_staged(capture.task(), lease=lease)
    assert result.after == capture.confirmed_lsn() == batch.end_lsn
    assert run(capture).after == batch.end_lsn


def test_a_slot_that_retains_much_may_take_longer_to_move(capture: HandStaged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a transaction that was open for a day, all WAL of that day is read for it, from its beginning."""
    monkeypatch.setattr(confirm_module, "ADVANCE_TIMEOUT_S", 0.01)
    capture.settle()
    capture.sql("CREATE TABLE much AS SELECT repeat('x', 1000) FROM generate_series(1, 80000)")
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    assert run(capture).after == batch.end_lsn


def test_a_slot_of_another_life_of_the_source_is_not_moved(capture: HandStaged) -> None:
    """A position of one server means nothing on another; moving its slot there would lose changes."""
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    before = capture.confirmed_lsn()
    capture.ledger_query("UPDATE tidemark.generations SET system_identifier = '7'")
    with pytest.raises(GenerationStale, match="system identifier"):
        run(capture)
    assert capture.confirmed_lsn() == before


def test_before_the_first_drain_there_is_nothing_to_confirm(capture: HandStaged) -> None:
    with pytest.raises(GenerationMissing):
        run(capture)


def test_while_a_drain_works_confirm_is_refused(capture: HandStaged) -> None:
    capture.settle()
    with leases.hold(capture.ledger, "shop", SLOT, "drain/1"), pytest.raises(LeaseTaken, match="drain/1"):
        run(capture)


def test_a_slot_that_does_not_move_although_nothing_holds_it_is_an_error(
    capture: HandStaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    monkeypatch.setattr("tidemark.capture.confirm._advance", lambda *_: None)
    with pytest.raises(ConfirmFailed, match=str(batch.end_lsn)):
        run(capture)
    assert capture.generation().confirmed_lsn is None


@contextmanager
def reading(capture: HandStaged, application_name: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A walsender of that name that holds the slot."""
    with closing(
        psycopg.connect(with_settings(capture.source, application_name, replication="database"), autocommit=True)
    ) as walsender:
        command = (
            f'START_REPLICATION SLOT "{capture.config.slot}" LOGICAL 0/0 '
            "(proto_version '1', publication_names '\"Item''s\"')"
        )
        walsender.pgconn.exec_(command.encode())
        yield walsender


def test_a_slot_that_is_active_for_a_moment_longer_is_waited_for(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    results: list[ConfirmResult] = []
    with reading(capture, "somebody") as walsender:
        confirming = threading.Thread(target=lambda: results.append(run(capture, busy_wait_s=60)))
        confirming.start()
        wait_for(
            "confirm found the slot active",
            lambda: capture.sql(
                f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{capture.config.application_name}' "
                "AND query LIKE '%JOIN pg_stat_activity%' AND state = 'idle' AND pid <> pg_backend_pid()"
            ),
        )
        assert capture.confirmed_lsn() < batch.end_lsn
        walsender.close()
        confirming.join()
    assert [result.after for result in results] == [batch.end_lsn]


def test_another_reader_of_the_slot_is_named_and_left_alone(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    with reading(capture, "somebody_else") as walsender:
        with pytest.raises(SlotBusy, match="somebody_else"):
            run(capture, busy_wait_s=0.3)
        pid = walsender.info.backend_pid
        assert capture.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")


def test_the_walsender_of_a_dead_attempt_is_ended(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    capture.apply(TABLE, batch.end_lsn)
    with reading(capture, capture.config.application_name):
        assert run(capture, busy_wait_s=2).after == batch.end_lsn
