"""The next run that follows the source takes over from the one before: neither waits for the other, and no change is
staged twice or by nobody."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from sandbox.services.postgres import wait_for
from tests.support.following import Follower
from tests.support.pipeline import Pipeline
from tidemark.capture.following.merge_cycles import MergeCycles
from tidemark.capture.following.window import FollowWindow
from tidemark.ledger import followers, leases
from tidemark.ledger.connection import open_ledger

Following = Callable[..., Follower]


@pytest.fixture
def orders(pipeline: Pipeline) -> Pipeline:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.begin()
    return pipeline


def insert(pipeline: Pipeline, number: int) -> None:
    pipeline.execute(f"INSERT INTO orders VALUES ({number})")


def take_over(follower: Follower) -> None:
    with open_ledger(follower.run.ledger, follower.run.pipeline) as book:
        followers.take_over(book, follower.run.run_id, follower.window.began_at)


def ids(pipeline: Pipeline) -> list[int]:
    return [row["id"] for row in pipeline.staged("public.orders")]


def holds_slot(follower: Follower) -> bool:
    with open_ledger(follower.run.ledger, follower.run.pipeline) as book:
        return leases.holders(book).get(leases.SLOT) == follower.run.holder


def follows(following: Following, run_id: str) -> Follower:
    """A drain that follows, of a run whose application is ready."""
    follower = following(run_id)
    take_over(follower)
    follower.await_staged()
    return follower


def test_a_drain_goes_on_until_the_next_run_is_ready(orders: Pipeline, following: Following) -> None:
    first = follows(following, "first")
    second = following("second")
    for number in range(3):
        insert(orders, number)
        first.await_staged()
    assert holds_slot(first)
    assert second.thread.is_alive()
    take_over(second)
    insert(orders, 3)
    first.thread.join(60)
    assert not first.thread.is_alive()
    assert first.error is None
    insert(orders, 4)
    second.await_staged()
    assert holds_slot(second)
    result = second.end()
    assert ids(orders) == list(range(5))
    assert first.result is not None
    assert result.batches[0][0] == first.result.batches[-1][1]


def test_a_drain_does_not_wait_for_a_run_that_is_gone(orders: Pipeline, following: Following) -> None:
    follows(following, "first").end()
    second = following("second")
    insert(orders, 1)
    second.await_staged()
    second.end()
    assert ids(orders) == [1]


def test_a_drain_follows_once_that_of_the_run_before_has_ended(orders: Pipeline, following: Following) -> None:
    first = follows(following, "first")
    second = following("second")
    first.end()
    insert(orders, 1)
    second.await_staged()
    assert holds_slot(second)


def test_a_later_try_of_the_run_before_takes_nothing_back(orders: Pipeline, following: Following) -> None:
    first = follows(following, "first")
    second = following("second")
    take_over(second)
    first.thread.join(60)
    again = following("first", began_at=first.window.began_at)
    take_over(again)
    again.thread.join(60)
    assert not again.thread.is_alive()
    insert(orders, 1)
    second.await_staged()
    assert ids(orders) == [1]


class Starting:
    """An application that starts, and gets no order."""

    def __init__(self) -> None:
        self.looks = 0

    def is_ready(self) -> bool:
        self.looks += 1
        return self.looks > 3

    def order(self, plan: str) -> None:
        raise AssertionError(plan)

    def has_ended(self) -> bool:
        return False


def merge_of(pipeline: Pipeline, run_id: str, *, drain_has_ended: bool, hours_ago: int = 0) -> list[object]:
    """Merge as a run that began then, until its drain is not tried any more."""
    began_at = datetime.now(UTC) - timedelta(hours=hours_ago)
    window = FollowWindow(began_at, began_at + timedelta(days=1), 2)
    ended = iter([drain_has_ended])
    cycles = MergeCycles(
        pipeline.task("merge", run_id), window, "the drain", lambda: next(ended, True), pause=lambda _: None
    )
    return list(cycles.results(Starting()))


def follower_of(pipeline: Pipeline) -> list[tuple[str, ...]]:
    return [row[:1] for row in pipeline.ledger_query("SELECT run_id FROM tidemark.followers")]


def test_the_merge_takes_over_once_its_application_is_ready(orders: Pipeline) -> None:
    orders.drain()
    merge_of(orders, "first", drain_has_ended=False, hours_ago=1)
    assert follower_of(orders) == [("first",)]
    merge_of(orders, "second", drain_has_ended=False)
    assert follower_of(orders) == [("second",)]
    merge_of(orders, "first", drain_has_ended=False, hours_ago=1)
    assert follower_of(orders) == [("second",)], "a later try"


def test_the_merge_alone_takes_nothing_over(orders: Pipeline) -> None:
    """As where it is cleared, and its drain is not: nothing would follow the source."""
    orders.drain()
    merge_of(orders, "first", drain_has_ended=False, hours_ago=1)
    merge_of(orders, "second", drain_has_ended=True)
    assert follower_of(orders) == [("first",)]


def test_a_run_from_the_future_keeps_no_other_from_following(orders: Pipeline, following: Following) -> None:
    """The clock was a day ahead while that run began."""
    orders.drain()
    merge_of(orders, "ahead", drain_has_ended=False, hours_ago=-24)
    now = follows(following, "now")
    assert follower_of(orders) == [("now",)]
    insert(orders, 1)
    now.await_staged()
    assert holds_slot(now)


def test_a_merge_ends_when_a_later_run_has_taken_over(orders: Pipeline, following: Following) -> None:
    first = follows(following, "first")
    run = orders.task("merge", "first")
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 10:
            take_over(second)
            wait_for("the drain has ended", lambda: not first.thread.is_alive())

    second = following("second")
    cycles = MergeCycles(run, first.window, first.run.holder, lambda: False, pause=pause)
    assert list(cycles.results(Starting())) == []
    assert len(looks) >= 10
