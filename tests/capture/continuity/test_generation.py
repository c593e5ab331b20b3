"""Mechanics, "Generations": what each thing that can happen to a slot means for what is staged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import structs
from psycopg.conninfo import conninfo_to_dict

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support import own_slot
from tests.support.hand_staged import TABLE, HandStaged, hand_staged
from tests.support.pipeline import Pipeline
from tests.support.standby import standby_of
from tests.support.thorough import thorough
from tidemark.capture.continuity.generation import still_continues
from tidemark.errors import (
    ChangesGone,
    GenerationStale,
    SlotDatabaseDiffers,
    SlotInvalidated,
    SlotMissing,
    SlotOfAnother,
    SlotPluginDiffers,
    SlotSynced,
    SlotTwoPhase,
    SourceLeftBehind,
    SourceReplaced,
    TidemarkError,
)
from tidemark.formats import layout
from tidemark.formats.generation_file import GenerationFile
from tidemark.ledger.captured import backfill_marks, tables
from tidemark.ledger.connection import open_ledger
from tidemark.postgres import postgres_session as source_connection
from tidemark.source.wal import slot as slots


def needs_backfill(capture: HandStaged) -> list[tuple[str, str | None]]:
    with open_ledger(capture.ledger, capture.config.pipeline) as book:
        return [(t.table, t.backfill_kind) for t in tables.all_of(book) if t.life.needs_backfill]


# --- adoption and going on -------------------------------------------------------------------------------------------


def test_the_first_generation_begins_where_the_slot_stands(capture: HandStaged) -> None:
    generation = capture.settle()
    assert (generation.number, generation.start_lsn, generation.staged_lsn) == (
        1,
        capture.confirmed_lsn(),
        capture.confirmed_lsn(),
    )
    assert capture.settle() == generation


def test_a_generation_lies_in_the_lake_before_it_lies_in_the_ledger(capture: HandStaged) -> None:
    generation = capture.settle()
    written = GenerationFile.from_json(capture.store.read(layout.generation_file("shop", 1)).decode())
    assert (written.start_lsn, written.system_identifier) == (generation.start_lsn, generation.system_identifier)


def test_a_slot_behind_what_is_staged_goes_on(capture: HandStaged) -> None:
    capture.settle()
    staged = capture.stage(TABLE).end_lsn
    assert capture.confirmed_lsn() < staged
    assert capture.settle().staged_lsn == staged
    capture.advance(staged)
    assert capture.settle().number == 1


def test_a_slot_of_another_name_goes_on_if_it_can_send_what_is_not_staged(capture: HandStaged) -> None:
    capture.settle()
    slot = capture.config.slot
    capture.sql(f"SELECT pg_copy_logical_replication_slot('{slot}', '{slot}_copy')")
    capture.stage(TABLE)
    capture.config = replace(capture.config, slot=capture.config.slot + "_copy")
    own_slot.note(capture.config, capture.source, capture.ledger)
    assert (capture.settle().number, capture.generation().slot) == (1, capture.config.slot)


# --- gaps ------------------------------------------------------------------------------------------------------------


def drop_and_create(capture: HandStaged) -> None:
    capture.drop_slot()
    capture.create_slot()


@pytest.mark.parametrize("move", [HandStaged.advance, drop_and_create])
def test_a_slot_beyond_what_is_staged_is_a_gap_that_is_said_once(
    capture: HandStaged, move: Callable[[HandStaged], None]
) -> None:
    capture.settle()
    staged = capture.stage(TABLE).end_lsn
    capture.write()
    move(capture)
    with pytest.raises(ChangesGone, match=str(staged)) as raised:
        capture.settle()
    assert str(capture.confirmed_lsn()) in str(raised.value)
    assert needs_backfill(capture) == [(TABLE, backfill_marks.GAP)]
    generation = capture.settle()
    assert (generation.number, generation.staged_lsn) == (2, capture.confirmed_lsn())


def test_a_recreated_slot_is_a_gap_even_where_nothing_was_written_in_between(capture: HandStaged) -> None:
    """Creating a slot writes WAL itself, so it stands beyond what is staged: a gap until proven otherwise."""
    capture.settle()
    capture.stage(TABLE)
    drop_and_create(capture)
    with pytest.raises(ChangesGone):
        capture.settle()


def test_a_gap_whose_run_died_before_saying_so_is_said_by_the_next(capture: HandStaged) -> None:
    capture.settle()
    capture.stage(TABLE)
    drop_and_create(capture)
    with pytest.raises(ChangesGone):
        capture.settle()
    capture.ledger_query("UPDATE tidemark.generations SET error_raised_at = NULL WHERE number = 2")
    with pytest.raises(ChangesGone):
        capture.settle()
    assert capture.settle().number == 2


def test_a_death_between_the_lake_and_the_ledger_opens_the_generation_with_its_error_later(capture: HandStaged) -> None:
    capture.settle()
    capture.stage(TABLE)
    drop_and_create(capture)
    with pytest.raises(ChangesGone):
        capture.settle()
    capture.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_reason = NULL, backfill_kind = NULL"
    )
    capture.ledger_query("DELETE FROM tidemark.generations WHERE number = 2")
    with pytest.raises(ChangesGone):
        capture.settle()
    assert capture.generation().number == 2
    assert needs_backfill(capture) == [(TABLE, backfill_marks.GAP)]
    assert capture.settle().number == 2


def test_another_system_is_another_generation(capture: HandStaged) -> None:
    capture.settle()
    capture.stage(TABLE)
    capture.ledger_query("UPDATE tidemark.generations SET system_identifier = '7'")
    path = layout.generation_file(capture.config.pipeline, 1)
    opening = GenerationFile.from_json(capture.store.read(path).decode())
    capture.store.write_atomic(path, structs.replace(opening, system_identifier="7").to_json().encode())
    with pytest.raises(SourceReplaced, match="system identifier"):
        capture.settle()
    assert needs_backfill(capture) == [(TABLE, backfill_marks.GAP)]
    assert capture.settle().number == 2


def test_a_source_whose_wal_ends_below_what_is_staged_was_put_back(capture: HandStaged) -> None:
    capture.settle()
    capture.stage(TABLE)
    capture.ledger_query("UPDATE tidemark.generations SET staged_lsn = 'F000000/0'")
    with pytest.raises(SourceReplaced, match="older copy"):
        capture.settle()
    assert capture.settle().start_lsn == capture.confirmed_lsn()


def test_a_timeline_below_the_one_that_is_followed_is_refused_until_a_person_says_otherwise(
    capture: HandStaged,
) -> None:
    capture.settle()
    capture.stage(TABLE)
    capture.ledger_query("UPDATE tidemark.generations SET timeline = 7, history = '6 to 0/100, 7'")
    for _ in range(2):
        with pytest.raises(SourceLeftBehind, match=r"on timeline 1, and generation 1 has followed it to timeline 7"):
            capture.settle()
    assert needs_backfill(capture) == []
    with pytest.raises(SourceReplaced, match=r"timeline 1 instead of 7, and the slot .* is no failover slot"):
        capture.settle(accepts=True)
    assert needs_backfill(capture) == [(TABLE, backfill_marks.GAP)]
    assert capture.settle().number == 2


def test_a_failover_slot_needs_a_history_that_holds_what_is_staged(capture: HandStaged) -> None:
    capture.drop_slot()
    capture.create_slot(", failover => true")
    capture.settle()
    capture.stage(TABLE)
    capture.ledger_query("UPDATE tidemark.generations SET timeline = 7, history = NULL")
    with pytest.raises(SourceReplaced, match="left that one at an unknown position"):
        capture.settle(accepts=True)


# --- the stream is open ----------------------------------------------------------------------------------------------


def test_a_slot_that_moved_after_it_was_judged_is_seen_once_the_stream_is_open(capture: HandStaged) -> None:
    generation = capture.settle()
    with source_connection.connect(capture.source, application_name="a_test") as source:
        still_continues(source, generation)
        capture.write()
        drop_and_create(capture)
        with pytest.raises(GenerationStale, match="beyond"):
            still_continues(source, generation)
        with pytest.raises(GenerationStale, match="system identifier"):
            still_continues(source, replace(generation, system_identifier="7"))
        with pytest.raises(GenerationStale, match="timeline"):
            still_continues(source, replace(generation, timeline=7))


# --- slots that cannot be read ---------------------------------------------------------------------------------------


def test_a_missing_slot_is_an_error_of_its_own(capture: HandStaged) -> None:
    capture.drop_slot()
    with pytest.raises(SlotMissing, match=capture.config.slot):
        capture.settle()


def test_a_slot_of_another_plugin_is_an_error_of_its_own(capture: HandStaged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded server has one plugin, so what is expected is changed, not what the slot has."""
    monkeypatch.setattr(slots, "PLUGIN", "another_plugin")
    with pytest.raises(SlotPluginDiffers, match="pgoutput"):
        capture.settle()


def test_a_physical_slot_is_an_error_of_its_own(capture: HandStaged) -> None:
    capture.drop_slot()
    capture.sql(f"SELECT pg_create_physical_replication_slot('{capture.config.slot}')")
    try:
        with pytest.raises(SlotOfAnother, match="physical"):
            capture.settle()
    finally:
        capture.drop_slot()


def test_a_slot_of_another_database_is_an_error_of_its_own(
    capture: HandStaged, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    elsewhere = hand_staged(new_database("elsewhere"), capture.ledger, tmp_path / "lake2")
    capture.config = replace(capture.config, slot=elsewhere.config.slot)
    with pytest.raises(SlotDatabaseDiffers, match="elsewhere"):
        capture.settle()


def test_a_two_phase_slot_is_an_error_of_its_own(capture: HandStaged) -> None:
    capture.drop_slot()
    capture.create_slot(", twophase => true")
    with pytest.raises(SlotTwoPhase, match="two_phase"):
        capture.settle()


def test_an_error_of_the_slot_opens_no_generation(capture: HandStaged) -> None:
    capture.drop_slot()
    with pytest.raises(TidemarkError):
        capture.settle()
    assert capture.ledger_query("SELECT 1 FROM tidemark.generations") == []


# --- servers of their own --------------------------------------------------------------------------------------------


def capture_on(server: PostgresServer, folder: Path) -> HandStaged:
    return hand_staged(create_database(server, "source"), create_database(server, "ledger"), folder / "lake")


def test_an_invalidated_slot_says_that_changes_are_gone_and_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path / "source", 18, fsync="off", max_slot_wal_keep_size="1MB", wal_keep_size="0") as server:
        capture = capture_on(server, tmp_path)
        capture.settle()
        for _ in range(4):
            capture.sql("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1000000))")
            capture.sql("SELECT pg_switch_wal()")
        capture.sql("CHECKPOINT")
        with pytest.raises(SlotInvalidated, match=r"wal_status=lost.*pg_drop_replication_slot"):
            capture.settle()
        drop_and_create(capture)
        with pytest.raises(ChangesGone):
            capture.settle()
        assert capture.settle().number == 2


def test_a_crash_of_the_source_moves_the_slot_back_and_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "source", 18) as server:
        capture = capture_on(server, tmp_path)
        capture.settle()
        capture.sql("CHECKPOINT")
        capture.advance(capture.stage(TABLE).end_lsn)
        staged = capture.stage(TABLE).end_lsn
        capture.advance(staged)
        server.restart("immediate")
        assert capture.confirmed_lsn() < staged
        assert (capture.settle().number, capture.settle().staged_lsn) == (1, staged)


@pytest.mark.parametrize("confirms", [True, *thorough(False)])
def test_an_older_copy_of_the_disk_that_was_written_on_is_known_by_the_heartbeat_it_lacks(
    confirms: bool, tmp_path: Path, new_pipeline: Callable[..., Pipeline]
) -> None:
    """Same system, same timeline, and WAL beyond everything staged: nothing else tells it from the source."""
    with running(tmp_path / "source", 18, fsync="off") as server:
        pipeline = new_pipeline(create_database(server, "source"))
        pipeline.execute("CREATE TABLE public.item (id int PRIMARY KEY)")
        pipeline.capture()
        pipeline.drain()
        pipeline.advance(pipeline.staged_lsn())
        pipeline.close()
        server.stop()
        copy = tmp_path / "copy"
        shutil.copytree(server.data, copy)
        server.start()
        pipeline.drain()  # the server was started, and is the same: nothing is said
        pipeline.execute("INSERT INTO public.item VALUES (1)")
        pipeline.drain()
        if confirms:
            pipeline.advance(pipeline.staged_lsn())
        staged = pipeline.staged_lsn()
        pipeline.close()
        server.stop()
        owner = server.data.stat()
        shutil.rmtree(server.data)
        shutil.copytree(copy, server.data)
        for path in [server.data, *server.data.rglob("*")]:
            os.chown(path, owner.st_uid, owner.st_gid)
        server.data.chmod(0o700)
        server.start()
        pipeline.execute("INSERT INTO public.item VALUES (2)")
        while pipeline.flush_lsn() <= staged:
            pipeline.sql("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 100000), true)")
        with pytest.raises(SourceReplaced, match="does not have the heartbeat that was staged up to"):
            pipeline.drain()
        assert pipeline.table_row("public.item").backfill_kind == backfill_marks.GAP
        pipeline.drain()


def test_a_promoted_standby_keeps_the_generation_of_a_failover_slot(tmp_path: Path) -> None:
    with running(tmp_path / "primary", 18, fsync="off") as primary:
        capture = capture_on(primary, tmp_path)
        database, ledger = (str(conninfo_to_dict(c)["dbname"]) for c in (capture.source, capture.ledger))
        capture.drop_slot()
        capture.create_slot(", failover => true")
        capture.settle()
        with standby_of(primary, tmp_path / "standby", database) as standby:
            with psycopg.connect(standby.conninfo(database), autocommit=True) as connection:
                wait_for("the slot was carried over", lambda: carried_over(capture, connection))
                with pytest.raises(SlotSynced):
                    slots.usable(connection, capture.config.slot)
            staged = capture.stage(TABLE).end_lsn
            wait_for("the standby replayed all", lambda: standby.replayed(str(capture.flush_lsn())))
            primary.stop("immediate")
            standby.promote()
            capture.source, capture.ledger = standby.conninfo(database), standby.conninfo(ledger)
            capture.ledger_query("DELETE FROM tidemark.leases")
            generation = capture.settle()
            assert (generation.number, generation.timeline, generation.staged_lsn) == (1, 2, staged)

            # What the old primary wrote above the point where the new timeline began is in no history any more.
            capture.write()
            capture.ledger_query("UPDATE tidemark.generations SET timeline = 1, staged_lsn = %s", capture.flush_lsn())
            with pytest.raises(SourceReplaced, match="timeline 2 instead of 1, which left that one at"):
                capture.settle()
            assert capture.settle().number == 2


def carried_over(capture: HandStaged, connection: psycopg.Connection[Any]) -> bool:
    """A slot is carried over once the primary's moved on to what the standby still holds."""
    capture.sql("SELECT pg_log_standby_snapshot()")
    capture.advance(capture.stage(TABLE).end_lsn)
    row = connection.execute(
        "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary", (capture.config.slot,)
    ).fetchone()
    return row is not None
