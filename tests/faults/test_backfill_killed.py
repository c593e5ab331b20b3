"""SIGKILL at every step of a backfill, in a process of its own: the task's retry, or the next runs, finish it.

`make test` has one backfill whose plan and reader are killed at each name in turn; `make faults` also two for every
name alone."""

from __future__ import annotations

import pytest

from tests.faults.rows_from_before import ROWS, Old, old_tables
from tests.support import failpoint_names
from tests.support.capture import Environment

STAGES = ("plan", "read", "drain", "merge", "confirm")


def test_a_plan_and_a_reader_killed_at_every_step_in_turn_are_finished_by_the_last_retry(shop: Environment) -> None:
    old = old_tables(shop)
    shop.begin_backfill(*old.tables, chunk_rows=2)
    for name in failpoint_names.OF_A_BACKFILL:
        if name == "read.after_low":
            shop.plan()
        shop.crash(name)
        old.change()
    shop.read()
    shop.end_backfill()
    _finished(old)


@pytest.mark.thorough
@pytest.mark.parametrize("name", failpoint_names.NAMES)
def test_a_backfill_killed_here_is_finished_by_its_retry(name: str, shop: Environment) -> None:
    old = old_tables(shop)
    recorded = _killed(old, name)
    old.change()
    for stage in STAGES[STAGES.index(_stage(name)) :]:
        getattr(shop, stage)()
    _finished(old)
    assert recorded <= {(c.chunk, c.attempt) for c in old.chunks()}, "what was read before is not what was merged"


@pytest.mark.thorough
@pytest.mark.parametrize("name", failpoint_names.NAMES)
def test_a_backfill_killed_here_is_finished_after_a_capture_run(name: str, shop: Environment) -> None:
    old = old_tables(shop)
    _killed(old, name)
    run_id = shop.report.run_id
    old.change()
    shop.let_leases_end()
    shop.run()
    old.change()
    shop.begin_run(run_id)
    for stage in STAGES:
        getattr(shop, stage)()
    _finished(old)


def _stage(failpoint: str) -> str:
    return failpoint.partition(".")[0]


def _killed(old: Old, name: str) -> set[tuple[str, str]]:
    """A run of the backfill DAG, killed at the failpoint, in the middle of its chunks where it is the reader that dies;
    the chunks that were recorded until then."""
    shop, stage = old.shop, _stage(name)
    shop.begin_backfill(*old.tables, chunk_rows=2)
    for before in STAGES[: STAGES.index(stage)]:
        getattr(shop, before)()
        old.change()
    if stage == "read":
        shop.crash("read.after_high")
        old.change()
    shop.crash(name)
    return {(chunk.chunk, chunk.attempt) for chunk in old.chunks()}


def _finished(old: Old) -> None:
    """The report counts every row that was read once, and the tables are right."""
    shop = old.shop
    reported = {table.table: table for table in shop.reported().tables}
    if not set(reported) >= set(old.tables):
        raise AssertionError(f"reported are only {sorted(reported)}")
    for table in reported.values():
        counted = table.inserted + table.repaired + table.unchanged + table.overtaken
        assert table.unknown or counted == table.read, table
        assert table.read <= 2 * ROWS, table
    old.are_in_sync()
