"""Beside a run that follows the source, a backfill waits until that has merged what it read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.following import Follower
from tests.support.pipeline import Pipeline
from tidemark.capture.following.merged_reading import is_merged_by_follower
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


@pytest.fixture
def follower(orders: Pipeline, following: Following) -> Follower:
    """A run that follows, which has the slot."""
    follower = following()
    with orders.ledger_connection() as book:
        followers.take_over(book, follower.run.run_id, follower.window.began_at)
    follower.await_staged()
    return follower


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What happens between one look and the next, in turn. The test fails where it is waited for more."""
    meanwhile: Looks = []

    def pause(_: Wait, awaited: Callable[[], str]) -> bool:
        assert awaited() == "the run that follows the source, to merge what was read of 1 table"
        assert meanwhile, "it is waited for something that does not come"
        meanwhile.pop(0)()
        return True

    monkeypatch.setattr(Wait, "pause", pause)
    return meanwhile


def is_merged(orders: Pipeline) -> bool:
    return is_merged_by_follower(orders.task("drain", orders.run_id), wait_s=LONG_S)


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
    assert is_merged(orders)
    assert not looks
    assert all(chunk.claimed_lsn is not None for chunk in orders.chunks(backfill)), "its drain has claimed them"


def test_a_run_that_has_read_nothing_leaves_the_run_that_follows_alone(
    orders: Pipeline, follower: Follower, looks: Looks
) -> None:
    assert is_merged(orders)


def test_where_no_run_follows_the_tasks_are_needed(orders: Pipeline, looks: Looks) -> None:
    assert not is_merged(orders), "as well where nothing is open"
    planned(orders)
    orders.read()
    assert not is_merged(orders)


def test_a_run_that_ends_meanwhile_is_not_waited_for(orders: Pipeline, follower: Follower, looks: Looks) -> None:
    planned(orders)
    orders.read()
    looks.append(lambda: bool(follower.end()))
    assert not is_merged(orders)
    assert not looks


def test_another_task_that_has_the_slot_is_no_run_that_follows(
    orders: Pipeline, follower: Follower, looks: Looks
) -> None:
    planned(orders)
    orders.read()
    follower.end()
    with leases.hold(orders.ledger, orders.config.pipeline, leases.SLOT, "shop/following/drain"):
        assert not is_merged(orders)


def test_what_a_merge_cannot_end_is_not_waited_for(orders: Pipeline, follower: Follower, looks: Looks) -> None:
    planned(orders)
    assert not is_merged(orders), "nothing is read"
    orders.read()
    looks.append(lambda: park(orders))
    assert not is_merged(orders), "the table is parked"
    assert not looks


def test_it_is_waited_for_so_long_and_no_longer(orders: Pipeline, follower: Follower) -> None:
    planned(orders)
    orders.read()
    assert not is_merged_by_follower(orders.task("drain", orders.run_id))
