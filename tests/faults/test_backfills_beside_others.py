"""Backfills that believe themselves alone: beside captures, each other, readers that everybody believes dead, and a
ledger or a slot that is another one in the middle."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.faults.rows_from_before import ROWS, Old, old_tables
from tests.faults.test_source_and_ledger_move import copied_ledger
from tests.support import judge
from tests.support.capture import Environment, go_on
from tests.support.thorough import thorough
from tidemark.capture.drain import drain
from tidemark.errors import BackfillClosed, BackfillIsOpen, BackfillNotApplied, ChangesGone, RetryError

__all__ = ["copied_ledger"]


@pytest.mark.thorough
def test_a_low_watermark_without_a_high_one_claims_nothing(shop: Environment) -> None:
    old = old_tables(shop)
    shop.begin_backfill(*old.tables, chunk_rows=3)
    run_id = shop.report.run_id
    shop.plan()
    shop.crash("read.after_files")
    old.change()
    shop.let_leases_end()
    shop.run()
    shop.begin_run(run_id)
    assert old.chunks() == []
    with pytest.raises(BackfillNotApplied):
        shop.reported()
    shop.read()
    shop.end_backfill()
    old.are_in_sync()


@pytest.mark.thorough
def test_a_chunk_is_claimed_by_the_run_that_its_high_watermark_arrives_in(shop: Environment) -> None:
    """The reader dies before it; two drains write one each, and only the second of them registers, batch by batch."""
    old = old_tables(shop)
    shop.begin_backfill(*old.tables, chunk_rows=ROWS)
    run_id = shop.report.run_id
    shop.plan()
    shop.crash("read.after_chunk")
    old.change()
    shop.begin_run()
    shop.crash("drain.before_register")
    old.change()
    shop.let_leases_end()
    shop.with_bounds(batch_rows=1)
    try:
        while _first_chunk_waits(old, run_id):
            shop.begin_run()
            _one_batch(shop)
            shop.merge()
            shop.confirm()
    finally:
        shop.with_bounds(batch_rows=1_000_000)
    shop.begin_run(run_id)
    shop.read()
    shop.end_backfill()
    old.are_in_sync()


def _one_batch(shop: Environment) -> None:
    drain(shop.task("drain", shop.report.run_id), run_s=0)


def _first_chunk_waits(old: Old, run_id: str) -> bool:
    old.shop.begin_run(run_id)
    return old.chunks()[0].claimed_lsn is None


@pytest.mark.thorough
def test_two_backfills_and_a_capture_at_once_apply_everything_once(shop: Environment) -> None:
    first, second = old_tables(shop), old_tables(shop)
    runs = []
    for old in (first, second):
        run = copy.copy(shop)
        run.begin_backfill(*old.tables, chunk_rows=2)
        run.plan()
        runs.append(run)
    shop.begin_run()
    readers = [run.start("read") for run in runs]
    for _ in range(3):
        first.change()
        second.change()
    for reader in readers:
        output, _ = reader.communicate(timeout=300)
        assert reader.returncode == 0, output[-2000:]
    drains = [run.start("drain") for run in (*runs, shop)]
    for process in drains:
        process.communicate(timeout=300)
    for old, run in zip((first, second), runs, strict=True):
        _retried(run.drain)
        _retried(run.merge)
        _retried(run.confirm)
        old.shop = run
        assert {table.table for table in run.reported().tables} == set(old.tables)
    for old in (first, second):
        old.are_in_sync()


def _retried(stage: Callable[[], object]) -> None:
    """As a task that Airflow tries again."""
    for _ in range(3):
        try:
            stage()
            return
        except RetryError as retry:
            last_error = retry
    raise last_error


@pytest.mark.thorough
def test_a_second_backfill_of_a_table_goes_on_with_the_open_one_or_is_refused(shop: Environment) -> None:
    old = old_tables(shop)
    shop.begin_backfill(*old.tables, chunk_rows=3)
    before = {b.backfill for b in shop.plan()}
    shop.crash("read.after_high")
    read = old.chunks()
    shop.let_leases_end()
    old.change()
    shop.begin_backfill(old.item, row_filter="id > 3")
    with pytest.raises(BackfillIsOpen, match="row filter"):
        shop.plan()
    shop.begin_backfill(*old.tables)
    assert {b.backfill for b in shop.plan()} == before
    shop.read()
    shop.end_backfill()
    assert {(c.chunk, c.attempt) for c in read} <= {(c.chunk, c.attempt) for c in old.chunks()}
    old.are_in_sync()


@pytest.mark.thorough
def test_a_backfill_that_replaces_another_takes_nothing_of_it(shop: Environment) -> None:
    """Of the first one a chunk is claimed, one is recorded, and one is on its way in a reader that does not know."""
    old = old_tables(shop)
    shop.begin_backfill(*old.tables, chunk_rows=3)
    replaced = shop.report.run_id
    shop.plan()
    shop.crash("read.after_high")
    shop.begin_run()
    shop.run()
    shop.begin_run(replaced)
    shop.crash("read.after_chunk")
    zombie = shop.halt("read", "read.before_chunk")
    old.change()
    shop.let_leases_end()
    shop.begin_backfill(*old.tables, chunk_rows=5, replace=True)
    run_id = shop.report.run_id
    shop.plan()
    go_on(zombie)
    shop.read()
    shop.end_backfill()
    old.are_in_sync()
    shop.begin_run(replaced)
    assert [c.claimed_lsn is not None for c in old.chunks()].count(True) == 1
    with pytest.raises(BackfillClosed, match=f"replaced by run {run_id}"):
        shop.reported()


@pytest.mark.parametrize("at", thorough("read.before_chunk", "read.after_low", "read.after_chunk"))
def test_a_reader_that_outlives_its_lease_changes_nothing(at: str, shop: Environment) -> None:
    old = old_tables(shop)
    shop.begin_backfill(*old.tables, chunk_rows=4)
    shop.plan()
    zombie = shop.halt("read", at)
    old.change()
    shop.let_leases_end()
    shop.begin_backfill(*old.tables, chunk_rows=4)  # another run: another holder
    shop.plan()
    shop.read()
    old.change()
    read = {(c.chunk, c.attempt) for c in old.chunks()}
    go_on(zombie)
    assert {(c.chunk, c.attempt) for c in old.chunks()} == read, "the reader that was believed dead recorded a chunk"
    old.change()
    shop.end_backfill()
    old.are_in_sync()


@pytest.mark.thorough
@pytest.mark.parametrize("copied", ["after_a_chunk", "before_plan", "after_plan", "after_reading", "after_drain"])
def test_a_ledger_restored_from_an_older_copy_loses_no_chunk(
    copied: str, new_shop: Callable[[str], Environment], copied_ledger: Callable[[Environment], str]
) -> None:
    """What was staged comes back from its manifests, claims included; what was recorded since is read again."""
    shop = new_shop("restored")
    old = old_tables(shop)
    older = copied_ledger(shop)
    shop.begin_backfill(*old.tables, chunk_rows=5)
    run_id = shop.report.run_id
    for stage in ("plan", "a_chunk", "reading", "drain"):
        if stage == "a_chunk":
            shop.crash("read.after_high")
            shop.begin_run()
            shop.drain()
            shop.begin_run(run_id)
        else:
            getattr(shop, {"reading": "read"}.get(stage, stage))()
        old.change()
        if copied == f"after_{stage}":
            older = copied_ledger(shop)
    shop.drain()
    shop.merge()
    shop.confirm()
    old.change()
    shop.run()
    shop.ledger = older
    shop.let_leases_end()
    shop.run()
    shop.begin_backfill(*old.tables, chunk_rows=5, run_id=run_id)
    shop.plan()
    old.change()
    shop.read()
    shop.end_backfill()
    old.are_in_sync()


@pytest.mark.thorough
def test_a_new_generation_in_the_middle_closes_the_backfill(new_shop: Callable[[str], Environment]) -> None:
    """Its chunks are compared with transaction ids of the old one alone: none of them is claimed any more."""
    shop = new_shop("again")
    old = old_tables(shop)
    shop.begin_backfill(*old.tables, chunk_rows=3)
    run_id = shop.report.run_id
    shop.plan()
    shop.crash("read.after_chunk")
    shop.let_leases_end()
    zombie = shop.halt("read", "read.before_chunk")
    shop.drop_slot()
    shop.execute(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")
    old.change()
    shop.begin_run()
    with pytest.raises(ChangesGone):
        shop.run()
    go_on(zombie)
    shop.let_leases_end()
    shop.run()
    shop.begin_run(run_id)
    assert [b.state for b in old.backfills()] == ["closed", "closed"]
    assert all(c.claimed_lsn is None for c in old.chunks())
    shop.begin_backfill(chunk_rows=3)  # what is wanted: every table, since changes are gone
    shop.plan()
    old.change()
    shop.read()
    shop.end_backfill()
    old.are_in_sync()
    assert judge.wrongs(shop) == []
