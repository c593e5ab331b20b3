"""Computes how long a run follows the source, and how often it stages and merges: `FollowWindow`.

A run ends when the next one of its schedule is due, so that there is one at any time. Where the schedule does not say
when that is, as `@continuous`, it ends after `OTHERWISE_S`.
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


@dataclass(frozen=True, slots=True)
class FollowWindow:
    """Until when a run follows the source, and the least seconds between two of its batches."""

    ends_at: datetime
    every_s: float

    def left_s(self, now: datetime) -> float:
        """Seconds until the run ends, 0 where it is over."""
        return max(0.0, (self.ends_at - now).total_seconds())


def window_of(schedule: str | None, every_s: float, began_at: datetime) -> FollowWindow:
    """The window of a run that began then; each try of each of its tasks has the same one."""
    due_at = next_after(schedule, began_at + timedelta(seconds=LEAST_S))
    return FollowWindow(began_at + timedelta(seconds=OTHERWISE_S) if due_at is None else due_at, every_s)


def longest_s(config: PipelineConfig) -> int:
    """The longest that a run of the pipeline follows the source; 0 where none does."""
    if config.follow is None:
        return 0
    return math.ceil(longest_gap_s(config.schedule) or OTHERWISE_S) + LEAST_S
