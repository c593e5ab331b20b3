"""Maintenance gets every table of its group from a merge that follows, which holds busy ones nearly all the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.pipeline import Pipeline
from tidemark.ledger import leases
from tidemark.maintenance import compaction_runs
from tidemark.wait_log import Wait

TABLES = ("public.orders", "public.lines")


@pytest.fixture
def merges(pipeline: Pipeline) -> Iterator[None]:
    """Plan after plan of the first table, which is left out of a plan only where somebody waits for it."""
    held, ended = threading.Event(), threading.Event()
    name = leases.of_table(TABLES[0])

    def merge() -> None:
        with pipeline.ledger_connection() as book:
            while not ended.is_set():
                if name in leases.awaited(book, "merge"):
                    ended.wait(0.05)
                    continue
                with leases.hold(pipeline.ledger, pipeline.config.pipeline, name, "merge", wait_s=30):
                    held.set()
                    wait = Wait(30, every_s=0.05)
                    while not ended.is_set() and name not in leases.awaited(book, "merge"):
                        wait.pause(lambda: "somebody who waits")

    pipeline.execute(*(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in TABLES))
    pipeline.begin()
    pipeline.drain()
    thread = threading.Thread(target=merge)
    thread.start()
    held.wait(30)
    yield
    ended.set()
    thread.join()


def test_maintenance_waits_until_a_merge_lets_all_of_its_tables_go(pipeline: Pipeline, merges: None) -> None:
    with compaction_runs.plan_current(pipeline.task("compact"), TABLES) as plan:
        assert plan is not None
        assert sorted(plan.tables) == sorted(TABLES)
        with pipeline.ledger_connection() as book:
            assert {leases.of_table(table) for table in TABLES} <= leases.holders(book).keys()
