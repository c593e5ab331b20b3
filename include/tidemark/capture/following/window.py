"""Computes how long a run follows the source, and how often it stages and merges: `FollowWindow`.

The next run is started when it is due. It takes over once its Spark application is ready (`ledger.followers`), so a run
goes on for up to `HANDOVER_S` beyond that time. Where the schedule does not say when the next one is due, a run ends
after `OTHERWISE_S`. Airflow starts no run of `@continuous` before the one before has ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidemark.config import PipelineConfig
from tidemark.config.schedule import longest_gap_s, next_after

OTHERWISE_S: Final = 900
# The least that a run follows: one that begins late takes the time of the next one too.
LEAST_S: Final = 60
# How long the next run may take to be ready.
HANDOVER_S: Final = 120
# By how much the clocks of Airflow and of a worker may differ.
SKEW_S: Final = 60


@dataclass(frozen=True, slots=True)
class FollowWindow:
    """When a run began, until when it follows the source, and the least seconds between two of its batches."""

    began_at: datetime
    ends_at: datetime
    every_s: float

    def left_s(self, now: datetime) -> float:
        """Seconds until the run ends, 0 where it is over. A run that begins later than now is over: the clock was put
        back since, perhaps by a day."""
        if now < self.began_at - timedelta(seconds=SKEW_S):
            return 0.0
        return max(0.0, (self.ends_at - now).total_seconds())


def window_of(schedule: str | None, every_s: float, began_at: datetime) -> FollowWindow:
    """The window of a run that began then; each try of each of its tasks has the same one."""
    due_at = next_after(schedule, began_at + timedelta(seconds=LEAST_S))
    lasts = timedelta(seconds=OTHERWISE_S) if due_at is None else due_at - began_at + timedelta(seconds=HANDOVER_S)
    return FollowWindow(began_at, began_at + lasts, every_s)


def longest_s(config: PipelineConfig) -> int:
    """The longest that a run of the pipeline follows the source; 0 where none does."""
    if config.follow is None:
        return 0
    return math.ceil(longest_gap_s(config.schedule) or OTHERWISE_S) + LEAST_S + HANDOVER_S


def may_overlap(config: PipelineConfig) -> bool:
    """Whether the next run may start before this one has ended: one that follows, by a schedule that allows it."""
    return config.follow is not None and config.schedule != "@continuous"
