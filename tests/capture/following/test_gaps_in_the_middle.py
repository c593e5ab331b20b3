"""The source fails over, or the slot is gone, in the middle of a run that follows: a later try of its drain goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.capture.continuity.test_failover import Pair, captured_there, marked, pair, primary
from tests.support.following import Follower
from tests.support.pipeline import Pipeline
from tidemark.errors import ChangesGone, SlotMissing, SourceForked, TidemarkError
from tidemark.run import Run
from tidemark.staging.batch_writer import read_table

__all__ = ["captured_there", "pair", "primary"]

pytestmark = pytest.mark.thorough


class LaterTry:
    """The file of a later try, which begins with a preflight."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def has_changed(self, source: psycopg.Connection[Any]) -> bool:
        return False

    def taken_up(self, run: Run) -> Run:
        self.pipeline.preflight(holder=run.holder).raise_for_errors()
        return run


@pytest.fixture
def tries(pair: Pair) -> Iterator[Callable[[], Follower]]:
    """Starts a try of the run's drain; the first one without a preflight."""
    started: list[Follower] = []

    def start() -> Follower:
        file = LaterTry(pair.pipeline) if started else None
        started.append(Follower(pair.pipeline, "following", 0.05, file))
        return started[-1]

    yield start
    for follower in started:
        follower.is_over = True
        follower.thread.join(60)


def error_of(follower: Follower) -> BaseException | None:
    follower.thread.join(60)
    assert not follower.thread.is_alive()
    return follower.error


def ids(pipeline: Pipeline, generation: int = 1) -> list[int]:
    manifests = [pipeline.manifest(batch) for batch in pipeline.registered(generation)]
    files = [file for m in manifests for t in m.tables if t.table == "public.item" for file in t.files]
    return [row["id"] for file in files for row in read_table(pipeline.store, file).to_pylist()]


def test_a_promotion_in_the_middle_of_a_run_loses_nothing(pair: Pair, tries: Callable[[], Follower]) -> None:
    pipeline = pair.pipeline
    first = tries()
    pipeline.execute("INSERT INTO public.item VALUES (6, 'before')")
    first.await_staged()
    pair.catch_up()
    pair.promote()
    assert isinstance(error_of(first), TidemarkError)
    pipeline.execute("INSERT INTO public.item VALUES (7, 'after')")
    again = tries()
    again.await_staged()
    again.end()
    assert ids(pipeline) == [1, 2, 3, 4, 5, 6, 7]
    assert marked(pipeline) == {}


def test_what_a_promotion_lost_is_named_once_and_the_run_goes_on(pair: Pair, tries: Callable[[], Follower]) -> None:
    pipeline = pair.pipeline
    first = tries()
    first.await_staged()
    pair.catch_up()
    pair.standby.fall_behind()
    pipeline.execute("INSERT INTO public.item VALUES (9, 'lost')")
    first.await_staged()
    pair.promote()
    assert isinstance(error_of(first), TidemarkError)
    pipeline.execute("INSERT INTO public.item VALUES (6, 'after')")
    assert isinstance(error_of(tries()), SourceForked)
    again = tries()
    again.await_staged()
    again.end()
    assert marked(pipeline) == {"public.item": [("9",)]}
    assert ids(pipeline, 2) == [6]


def test_a_slot_that_is_gone_is_made_again_within_the_run(pair: Pair, tries: Callable[[], Follower]) -> None:
    pipeline = pair.pipeline
    first = tries()
    first.await_staged()
    slot = pipeline.config.slot
    pipeline.sql(f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'")
    pipeline.drop_slot()
    assert isinstance(error_of(first), TidemarkError)
    assert isinstance(error_of(tries()), ChangesGone | SlotMissing)
    pipeline.execute("INSERT INTO public.item VALUES (6, 'after')")
    again = tries()
    again.await_staged()
    again.end()
    assert ids(pipeline, 2) == [6]
    assert set(marked(pipeline)) == {"public.item", "public.line", "public.other", "public.log"}
