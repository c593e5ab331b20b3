"""R3, R6: which tables wait by choice, until when, and that nobody is held back by it. No Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.ledger.conftest import open_at
from tests.support.manifests import manifest_of, path_of
from tests.support.pipeline import pipeline_config
from tests.support.runs import a_run, make_plan
from tidemark.capture import deferral
from tidemark.capture.merge_planning import PlanScope
from tidemark.config import Merge, PipelineConfig
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import merge_states, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import overview
from tidemark.ledger.staged import applied_positions, batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn

Book = Ledger
RETRY = ErrorRecord("Conflict", "RETRY", "a conflict")
BROKEN = ErrorRecord("TableBroken", "FIX_TARGET", "it is broken")
NAMES = ("s.a", "s.b")


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    return pipeline_config("shop", tmp_path, (), merge=Merge(every="10m", rows=25))


@pytest.fixture(autouse=True)
def level(config: PipelineConfig, book: Book, lease: Lease, generation: Generation) -> None:
    """Both tables were merged once, and wait from then on."""
    stage(book, lease, 100, 200, *NAMES)
    merged(book, 200, *NAMES)
    deferral.apply_deferral(book, config)


def stage(book: Book, lease: Lease, start: int, end: int, *names: str, **said: object) -> None:
    manifest = manifest_of(start, end, *names, attempt=str(start), **said)  # type: ignore[arg-type]
    batches.register(book, lease, manifest, path_of(manifest))


def merged(book: Book, end: int, *names: str, generation: int = 1) -> None:
    positions.rise(book, generation, {name: (Lsn(end), Lsn(end)) for name in names})
    merge_states.succeeded(book, dict.fromkeys(names))


def states(book: Book) -> list[str]:
    return [row.life.merge for row in tables.all_of(book)]


def planned(config: PipelineConfig, ledger: str, now: datetime, *, all_of_them: bool = False) -> list[str]:
    plan = make_plan(a_run(config, ledger=ledger, now=lambda: now), PlanScope(all_of_them=all_of_them))
    return [] if plan is None else [table.table for table in plan.tables]


def staged_at(book: Book) -> datetime:
    status = overview.read(book)
    assert status is not None
    return min(table.backlog.since for table in status.tables if table.backlog is not None)


def test_a_table_waits_until_the_clock_passes_a_multiple_of_every(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    stage(book, lease, 200, 300, "s.a")
    since = staged_at(book)
    due_at = config.merge.due_at(since)
    assert (due_at.minute % 10, due_at.second, due_at.microsecond) == (0, 0, 0)
    assert timedelta(0) < due_at - since <= timedelta(minutes=10)
    assert planned(config, ledger, due_at - timedelta(seconds=1)) == []
    assert planned(config, ledger, due_at) == ["s.a"]


def test_what_was_staged_while_the_clock_was_ahead_does_not_wait_for_that_moment(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    stage(book, lease, 200, 300, "s.a")
    assert planned(config, ledger, staged_at(book) - timedelta(days=365)) == ["s.a"]


def test_tables_that_wait_since_different_moments_come_due_together() -> None:
    merge = Merge(every="15m")
    at = datetime(2031, 5, 7, 8, 15, tzinfo=UTC)
    moments = [at, at + timedelta(minutes=7), at + timedelta(minutes=14, seconds=59.999999)]
    assert {merge.due_at(moment) for moment in moments} == {at + timedelta(minutes=15)}


def test_what_waits_counts_as_staged(config: PipelineConfig, book: Book, lease: Lease) -> None:
    assert states(book) == ["deferred", "deferred"]
    stage(book, lease, 200, 300, "s.a")
    stage(book, lease, 300, 400)
    assert applied_positions.confirmable(book) == Lsn(400)
    assert applied_positions.held_back_by(book) == {}


def test_so_many_changes_make_a_table_due_before_that(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    stage(book, lease, 200, 300, *NAMES)
    stage(book, lease, 300, 400, *NAMES)
    now = staged_at(book)
    assert planned(config, ledger, now) == [], "20 changes"
    stage(book, lease, 400, 500, "s.b")
    assert planned(config, ledger, now) == ["s.b"]


def test_rows_alone_leave_no_table_waiting_for_ever() -> None:
    at = datetime(2031, 5, 7, 8, 15, tzinfo=UTC)
    assert Merge(rows=25).due_at(at) == at.replace(hour=9, minute=0)


def test_chunks_make_a_table_due(config: PipelineConfig, ledger: str, book: Book, lease: Lease) -> None:
    stage(book, lease, 200, 300, *NAMES)
    book.execute("""UPDATE tidemark.batch_tables SET claims = '[{}]' WHERE "table" = 's.b' AND end_lsn = '0/12C'""")
    due = deferral.due_tables(book, config, staged_at(book))
    assert sorted(due.deferred) == ["s.a"]
    assert due.tables == {"s.b"}


def test_a_table_whose_last_merge_failed_is_tried_with_the_next_run(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    stage(book, lease, 200, 300, *NAMES)
    merge_states.failed(book, "s.a", RETRY, park_after=3)
    assert planned(config, ledger, staged_at(book)) == ["s.a"]


def test_what_a_generation_left_that_ended_waits_no_longer(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    stage(book, lease, 200, 300, "s.a")
    now = staged_at(book)
    assert planned(config, ledger, now) == []
    open_at(book, lease, 2, Lsn(1000), lake=config.lake)
    stage(book, lease, 1000, 1100, *NAMES, generation=2)
    assert planned(config, ledger, now) == ["s.a"]
    assert sorted(deferral.due_tables(book, config, now).deferred) == ["s.b"]


def test_a_person_merges_everything(config: PipelineConfig, ledger: str, book: Book, lease: Lease) -> None:
    stage(book, lease, 200, 300, *NAMES)
    merge_states.park(book, "s.b", BROKEN)
    assert planned(config, ledger, staged_at(book), all_of_them=True) == ["s.a"]


def test_what_is_new_or_was_unparked_is_merged_at_once_and_waits_from_then_on(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    merge_states.park(book, "s.b", BROKEN)
    stage(book, lease, 200, 300, *NAMES, "s.new")
    merge_states.unpark(book, "s.b")
    deferral.apply_deferral(book, config)
    assert states(book) == ["deferred", "merging", "merging"]
    assert planned(config, ledger, staged_at(book)) == ["s.b", "s.new"]
    assert applied_positions.confirmable(book) == Lsn(200)
    merged(book, 300, "s.b", "s.new")
    deferral.apply_deferral(book, config)
    assert states(book) == ["deferred"] * 3
    assert applied_positions.confirmable(book) == Lsn(300)


def test_a_file_that_defers_no_more_has_everything_merged_with_the_next_run(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    stage(book, lease, 200, 300, *NAMES)
    promptly = replace(config, merge=Merge())
    assert planned(promptly, ledger, staged_at(book)) == ["s.a", "s.b"]
    deferral.apply_deferral(book, promptly)
    assert states(book) == ["merging", "merging"]
    assert applied_positions.confirmable(book) == Lsn(200)


def test_a_parked_table_stays_parked_whatever_the_file_says(config: PipelineConfig, book: Book) -> None:
    merge_states.park(book, "s.a", BROKEN)
    for merge in (Merge(), config.merge):
        deferral.apply_deferral(book, replace(config, merge=merge))
        assert states(book)[0] == "parked"
