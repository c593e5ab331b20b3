"""A backfill waits until the run that follows the source has merged its chunks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.following import Follower
from tests.support.pipeline import Pipeline
from tidemark.capture.following import follower_wait
from tidemark.capture.following.follower_wait import GAP_S, wait_for_follower
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import followers, leases
from tidemark.ledger.captured import merge_states
from tidemark.ledger.reading.backfills import Backfill
from tidemark.wait_log import Wait

Following = Callable[..., Follower]
Looks = list[Callable[[], None]]
LONG_S = 3600.0


@pytest.fixture
def orders(pipeline: Pipeline) -> Pipeline:
    pipeline.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders SELECT generate_series(1, 10)", "ANALYZE orders"
    )
    pipeline.capture()
    pipeline.drain()
    return pipeline


def take_over(orders: Pipeline, follower: Follower) -> None:
    with orders.ledger_connection() as book:
        followers.take_over(book, follower.run.run_id, follower.window.began_at)


@pytest.fixture
def follower(orders: Pipeline, following: Following) -> Follower:
    """A run that follows, which has the slot."""
    follower = following()
    take_over(orders, follower)
    follower.await_staged()
    return follower


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What happens between one look and the next, in turn. The test fails where it is waited for more."""
    meanwhile: Looks = []

    class Looking(Wait):
        def pause(self, awaited: Callable[[], str]) -> bool:
            assert awaited() == "the run that follows the source, to merge what was read of public.orders"
            assert meanwhile, "it is waited for something that does not come"
            meanwhile.pop(0)()
            return True

    monkeypatch.setattr(follower_wait, "Wait", Looking)
    return meanwhile


def is_left_to_follower(orders: Pipeline, **about: Any) -> bool:
    return wait_for_follower(orders.task("drain", orders.run_id, **about), wait_s=LONG_S)


def planned(orders: Pipeline) -> Backfill:
    (backfill,) = orders.plan(tables=("public.orders",))
    return backfill


def set_state(orders: Pipeline, backfill: Backfill, state: str) -> None:
    orders.ledger_query("UPDATE tidemark.backfills SET state = %s WHERE backfill = %s", state, backfill.backfill)


def park(orders: Pipeline) -> None:
    with orders.ledger_connection() as book:
        merge_states.park(book, "public.orders", ErrorRecord("TargetDiffers", "FIX_TARGET", "somebody changed it"))


@pytest.mark.parametrize("state", ["applied", "closed"])
def test_it_waits_until_the_backfill_is_over(orders: Pipeline, follower: Follower, looks: Looks, state: str) -> None:
    backfill = planned(orders)
    orders.read()
    looks += [follower.await_staged, lambda: set_state(orders, backfill, state)]
    assert is_left_to_follower(orders)
    assert not looks
    assert all(chunk.claimed_lsn is not None for chunk in orders.chunks(backfill)), "its drain has claimed them"


def test_a_run_that_has_read_nothing_leaves_the_run_that_follows_alone(
    orders: Pipeline, follower: Follower, looks: Looks
) -> None:
    assert is_left_to_follower(orders)


def test_where_no_run_follows_the_tasks_are_needed(orders: Pipeline, looks: Looks) -> None:
    assert not is_left_to_follower(orders), "as well where nothing is open"
    planned(orders)
    orders.read()
    assert not is_left_to_follower(orders)


def test_a_run_that_ends_meanwhile_is_waited_for_no_longer_than_a_handover_takes(
    orders: Pipeline, follower: Follower, looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    planned(orders)
    orders.read()
    seconds = [0.0]

    def pass_s(more: float) -> None:
        seconds[0] += more

    looks += [lambda: bool(follower.end()), lambda: pass_s(GAP_S), lambda: pass_s(1)]
    assert not is_left_to_follower(orders, clock=lambda: seconds[0])
    assert not looks
    assert "itself: no run follows the source any more" in caplog.text


def test_a_handover_does_not_end_the_wait(
    orders: Pipeline, follower: Follower, following: Following, looks: Looks
) -> None:
    backfill = planned(orders)
    orders.read()
    later: list[Follower] = []

    def begin_to_take_over() -> None:
        """The later run is ready, and the earlier one has the slot still, or nobody has."""
        later.append(following("later"))
        take_over(orders, later[0])

    looks += [
        begin_to_take_over,
        lambda: follower.thread.join(60),
        lambda: later[0].await_staged(),
        lambda: set_state(orders, backfill, "applied"),
    ]
    assert is_left_to_follower(orders)
    assert not looks


@pytest.mark.parametrize(
    ("holder", "lasts_s"), [("shop/following/drain", 60.0), ("following-2/drain", 60.0), ("following/drain", -1.0)]
)
def test_nobody_else_follows(orders: Pipeline, follower: Follower, looks: Looks, holder: str, lasts_s: float) -> None:
    """Another task has the slot, or the run had it until its task died."""
    planned(orders)
    orders.read()
    follower.end()
    with leases.hold(orders.ledger, orders.config.pipeline, leases.SLOT, holder):
        orders.ledger_query(
            "UPDATE tidemark.leases SET expires_at = clock_timestamp() + %s", timedelta(seconds=lasts_s)
        )
        assert not is_left_to_follower(orders)


def test_what_a_merge_cannot_end_is_not_waited_for(
    orders: Pipeline, follower: Follower, looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    planned(orders)
    assert not is_left_to_follower(orders), "nothing is read"
    orders.read()
    looks.append(lambda: park(orders))
    assert not is_left_to_follower(orders), "the table is parked"
    assert not looks
    assert "itself: no merge can complete public.orders: parked, paused, replayed, or to be read again" in caplog.text


def test_one_table_that_cannot_be_merged_does_not_end_the_wait_for_another(
    orders: Pipeline, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.execute("CREATE TABLE lines (id int PRIMARY KEY)", "INSERT INTO lines VALUES (1)")
    orders.capture()
    follower.await_staged()
    backfills = orders.plan(tables=("public.orders", "public.lines"))
    orders.read()
    park(orders)
    waits = []

    class Looking(Wait):
        def pause(self, awaited: Callable[[], str]) -> bool:
            waits.append(awaited())
            (lines,) = (one for one in backfills if one.table == "public.lines")
            set_state(orders, lines, "applied")
            return True

    monkeypatch.setattr(follower_wait, "Wait", Looking)
    assert not is_left_to_follower(orders)
    assert [text.partition("read of ")[2] for text in waits] == ["public.lines, public.orders"]


def test_an_open_backfill_without_ranges_is_not_over(orders: Pipeline, follower: Follower, looks: Looks) -> None:
    backfill = planned(orders)
    orders.ledger_query("DELETE FROM tidemark.ranges")
    looks.append(lambda: set_state(orders, backfill, "applied"))
    assert is_left_to_follower(orders)
    assert not looks


def test_it_is_waited_for_so_long_and_no_longer(
    orders: Pipeline, follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    planned(orders)
    orders.read()
    assert not wait_for_follower(orders.task("drain", orders.run_id), wait_s=0.1)
    assert "itself: the run that follows has not merged public.orders within 0.1 s" in caplog.text
