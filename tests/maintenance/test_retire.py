"""One clean-up of a pipeline with a source of its own, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from tests.maintenance.world import Change, dump, load, world_of
from tests.support.backfills import chunk_of, open_backfill, record
from tests.support.pipeline import Pipeline
from tests.support.runs import a_run
from tidemark.capture.confirm import confirm
from tidemark.config import Maintenance
from tidemark.errors import LedgerBehindStaging, Move, ParkedKeepsStaging
from tidemark.formats import layout
from tidemark.formats.compaction_plan import CompactionResult, Kind, TableCompaction
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import merge_states, tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.reading import chunks
from tidemark.ledger.staged import batches, positions
from tidemark.lsn import Lsn
from tidemark.maintenance.compaction_runs import note
from tidemark.maintenance.staging_cleanup import Retired, retire
from tidemark.observe.status import read_status
from tidemark.observe.status_text import text
from tidemark.run import Run
from tidemark.staging import staged_folders

A, B = "public.a", "public.b"


@pytest.fixture
def shop(pipeline: Pipeline) -> Pipeline:
    """Two tables, and what is staged of them is eight days old, applied to `a` alone, and confirmed."""
    pipeline.config = replace(pipeline.config, maintenance=Maintenance(staging_days=7))
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    pipeline.begin()
    pipeline.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    pipeline.drain()
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        applied = pipeline.registered()[-1].end_lsn
        positions.rise(book, 1, {A: (applied, applied)})
        merge_states.park(book, B, ErrorRecord("TargetDiffers", Move.FIX_TARGET, "somebody changed it"))
        book.execute("UPDATE tidemark.batches SET registered_at = registered_at - interval '8 days'")
    confirm(run_for(pipeline))
    return pipeline


def run_for(pipeline: Pipeline) -> Run:
    return a_run(pipeline.config, source=pipeline.source, ledger=pipeline.ledger, holder="maintenance/1")


def kept(pipeline: Pipeline) -> list[str]:
    """What the lake has of the batches."""
    home = layout.generation_folder(pipeline.config.pipeline, 1)
    return [
        name
        for folder in pipeline.store.list(home)
        if "-" in folder
        for name in pipeline.store.list(f"{home}/{folder}")
    ]


def test_what_is_old_goes_and_a_parked_table_keeps_its_own(shop: Pipeline) -> None:
    retired = retire(run_for(shop))
    assert (retired.batches, sorted(retired.kept), retired.held_by) == (0, [B], "")
    assert kept(shop) == ["manifest.json", B, "transactions.parquet"]
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        applied = shop.registered()[-1].end_lsn
        positions.rise(book, 1, {B: (applied, applied)})
    retired = retire(run_for(shop))
    assert (retired.batches, sorted(retired.kept)) == (1, [])
    assert kept(shop) == []
    shown = text(read_status(shop.config, source=shop.source, ledger=shop.ledger))
    assert ": 1 batch removed from staging, 0 Delta tables compacted" in shown
    assert retire(run_for(shop)).batches == 0


def test_what_is_young_stays(shop: Pipeline) -> None:
    shop.config = replace(shop.config, maintenance=Maintenance(staging_days=9))
    assert retire(run_for(shop)).batches == 0
    assert kept(shop) == ["manifest.json", A, B, "transactions.parquet"]


def test_what_a_killed_replay_left_goes_in_its_time(shop: Pipeline) -> None:
    name = shop.config.pipeline
    old, young, theirs = "20250101T000000-ab", f"{datetime.now(UTC):%Y%m%dT%H%M%S}-ab", "notes"
    for folder in (old, young, theirs):
        shop.store.write_new(f"{layout.replays_root(name)}/{folder}/plan.json", b"{}")
    assert retire(run_for(shop)).plans == 1
    assert shop.store.list(layout.replays_root(name)) == sorted([young, theirs])


def test_an_idle_table_whose_current_is_gone_is_parked_and_a_busy_one_is_the_merges(shop: Pipeline) -> None:
    run, applied = run_for(shop), shop.registered()[-1].end_lsn
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        positions.rise(book, 1, {B: (applied, applied)})

    def noted(*kinds: Kind) -> str | None:
        """After a look that found these of both tables; why `a` is parked."""
        seen = [TableCompaction(table, kind, 1, 1, bytes=9) for table in (A, B) for kind in kinds]
        note(run, [A, B], [CompactionResult("p", tuple(seen))])
        with open_ledger(shop.ledger, shop.config.pipeline) as book:
            row, other = tables.one(book, A), tables.one(book, B)
        assert row is not None
        assert other is not None
        assert other.error is not None
        assert other.error.kind == "TargetDiffers", "it was parked before"
        return row.error.message if row.life.is_parked and row.error is not None else None

    assert noted() is None, "nobody has seen one yet"
    assert noted("history", "current") is None
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        book.execute("UPDATE tidemark.positions SET risen_at = clock_timestamp()")
    assert noted("history") is None, "a merge came in between, and looks itself"
    assert noted("history", "current") is None
    said = noted("history")
    assert said is not None
    assert said.startswith(f"The Delta table current of {A} is at no position")
    assert f"after {applied}" in said


def test_a_transaction_that_is_open_keeps_what_came_after_it(shop: Pipeline) -> None:
    with psycopg.connect(shop.source) as other:
        other.execute("SELECT pg_current_xact_id()")
        shop.execute("INSERT INTO a VALUES (2)")
        shop.drain()
        with open_ledger(shop.ledger, shop.config.pipeline) as book:
            applied = shop.registered()[-1].end_lsn
            positions.rise(book, 1, {A: (applied, applied)})
            book.execute("UPDATE tidemark.batches SET registered_at = registered_at - interval '8 days'")
        confirm(run_for(shop))
        retired = retire(run_for(shop))
        assert retired.held_by == "a transaction that began before is still open at the source"
        assert f"since {retired.held_by}" in text(read_status(shop.config, source=shop.source, ledger=shop.ledger))
    assert retire(run_for(shop)).held_by == ""


def test_what_parked_tables_keep_is_bounded(shop: Pipeline) -> None:
    shop.with_bounds(parked_bytes=1)
    with pytest.raises(ParkedKeepsStaging, match=B):
        retire(run_for(shop))
    assert kept(shop) == ["manifest.json", B, "transactions.parquet"], "everything else was removed"


def test_nothing_is_removed_by_a_ledger_that_is_older_than_the_last_clean_up(shop: Pipeline) -> None:
    retire(run_for(shop))
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        book.execute("UPDATE tidemark.generations SET retired_lsn = NULL")
        with pytest.raises(LedgerBehindStaging):
            retire(run_for(shop))
    shop.drain()  # which learns of it
    assert isinstance(retire(run_for(shop)), Retired)


@pytest.mark.parametrize("left", ["", ".generation.json.0123", "lost.parquet"])
@pytest.mark.parametrize("listed_together", [9, 0], ids=["below g10", "from g10 on"])
def test_a_generation_that_an_attempt_died_opening_does_not_stop_the_clean_up(
    listed_together: int, left: str, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot was in order when the next run came, so nobody opened it."""
    monkeypatch.setattr(staged_folders, "_LAST_OF_ONE_DIGIT", listed_together)
    begun = Path(shop.store.root) / layout.generation_folder(shop.config.pipeline, 2)
    begun.mkdir()
    if left:
        (begun / left).touch()
    shop.drain()
    assert isinstance(retire(run_for(shop)), Retired)


def test_a_ledger_from_between_two_clean_ups_learns_what_a_table_let_go_of(shop: Pipeline) -> None:
    retire(run_for(shop))
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        copy = dump(book)
        applied = shop.registered()[-1].end_lsn
        positions.rise(book, 1, {B: (applied, applied)})
        retire(run_for(shop))  # to the same end
        load(book, copy)
        with pytest.raises(LedgerBehindStaging, match="clean-up"):
            retire(run_for(shop))
        shop.drain()
        assert [touched.table for touched in batches.unapplied(book)] == []
    assert isinstance(retire(run_for(shop)), Retired)


def test_nothing_is_removed_before_what_a_dead_drain_left_is_registered(ledger_database: str, tmp_path: Path) -> None:
    world = world_of(ledger_database, str(tmp_path / "lake"), 1)
    world.open, world.next_xid = {1000}, 1001
    with world.ledger_connection() as book:
        backfill = open_backfill(book, A, snapshot=str(world.snapshot()))
        assert record(world.ledger, chunk_of(backfill, snapshot=backfill.snapshot), done=True)
        free = chunks.unclaimed(book)
    for chunk in free:
        for file in chunk.files:
            world.store.write_atomic(file.path, b"x" * file.bytes)
    world.open = set()
    world.committed = [Change(1000, world.wal + 4, A)]  # which the chunk did not see
    world.stage()
    with world.ledger_connection() as book:
        positions.rise(book, 1, {A: (Lsn(world.wal), Lsn(world.wal))})
    world.delta[A] = world.wal
    world.confirm()
    world.watermarks = [(chunk, world.wal + 4) for chunk in free]
    world.stage(dies=True)
    world.close_backfill()
    with world.ledger_connection() as book:  # younger than the cutoff, as what it read is
        book.execute("UPDATE tidemark.backfills SET ended_at = ended_at + interval '1 day'")
    with pytest.raises(LedgerBehindStaging, match="not registered"):
        world.clean()
    world.register_again()
    world.clean()
    world.merge()  # which looks for the change that the chunk lacks
