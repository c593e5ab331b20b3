"""What the log has of a wait: a line at its start, one every half minute, and how long it was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from tidemark import wait_log
from tidemark.wait_log import Wait


@dataclass
class Clock:
    """Time that passes by sleeping alone."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(caplog: pytest.LogCaptureFixture) -> Clock:
    caplog.set_level("INFO", wait_log.__name__)
    return Clock()


def wait_for(clock: Clock, seconds: float, *, limit_s: float) -> bool:
    """Wait for what is there after so many seconds; False where the limit came first."""
    wait, there_at = Wait(limit_s, clock=clock, sleep=clock.sleep), clock.now + seconds
    while clock.now < there_at:
        if not wait.pause(lambda: "the lease slot, which the other DAG holds until noon"):
            return False
    wait.log_end()
    return True


def test_it_is_said_at_the_start_every_half_minute_and_at_the_end(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert wait_for(clock, 75, limit_s=600)
    what = "the lease slot, which the other DAG holds until noon"
    assert caplog.messages == [
        f"Waiting for {what} (10 min at most)",
        f"Still waiting after 31 s for {what} (10 min at most)",
        f"Still waiting after 1 min 1 s for {what} (10 min at most)",
        f"Waited 1 min 15 s for {what}",
    ]


def test_what_is_over_within_a_second_is_not_said(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    assert wait_for(clock, 0.9, limit_s=600)
    assert caplog.messages == []


def test_it_ends_at_its_limit_and_not_a_pause_later(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    assert not wait_for(clock, 75, limit_s=20.2)
    assert sum(clock.slept) == pytest.approx(20.2)
    assert len(caplog.messages) == 1


def test_without_time_to_wait_nobody_waits(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    assert not wait_for(clock, 1, limit_s=0)
    assert (clock.slept, caplog.messages) == ([], [])


def test_a_wait_that_another_bounds_names_no_limit(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    wait = Wait(math.inf, clock=clock, sleep=clock.sleep)
    clock.sleep(5)
    wait.log_if_due(lambda: "the source's messages")
    assert caplog.messages == ["Waiting for the source's messages"]
