"""When a merge that follows ends: with its drain, however long that is tried again. Nothing is there to be merged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.support.pipeline import Pipeline
from tidemark.capture.following.merge_cycles import MergeCycles
from tidemark.capture.following.window import FollowWindow


class Idle:
    """An application that gets no order."""

    def order(self, plan: str) -> None:
        raise AssertionError(plan)

    def is_ready(self) -> bool:
        return True

    def has_ended(self) -> bool:
        return False


def test_a_merge_waits_for_a_drain_that_is_tried_again_and_ends_when_it_is_not(pipeline: Pipeline) -> None:
    pipeline.begin()
    pipeline.drain()
    looks: list[float] = []
    cycles = MergeCycles(
        pipeline.task("merge", "following", clock=lambda: 10.0 * len(looks)),
        FollowWindow(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1), 2),
        "the drain",
        lambda: len(looks) > 40,
        pause=looks.append,
    )
    assert list(cycles.results(Idle())) == []
    assert len(looks) > 40


def test_a_merge_whose_drain_has_ended_does_what_is_left_and_ends(pipeline: Pipeline) -> None:
    """As where it alone is cleared, of a run that is over."""
    pipeline.begin()
    pipeline.drain()
    window = FollowWindow(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1), 2)
    cycles = MergeCycles(pipeline.task("merge"), window, "the drain", lambda: True)
    assert list(cycles.results(Idle())) == []
