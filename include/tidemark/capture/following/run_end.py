"""Decides when a run that follows the source is over, for its drain and its merge alike: `is_over`."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from tidemark.ledger import followers
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import batches
from tidemark.run import Run


class Window(Protocol):
    """How long a run follows the source, and how often it stages (`FollowWindow`)."""

    @property
    def began_at(self) -> datetime:
        """When the run began."""

    @property
    def every_s(self) -> float:
        """The least seconds between two batches."""

    def left_s(self, now: datetime) -> float:
        """Seconds until the run ends, 0 where it is over."""


def is_over(run: Run, book: Ledger, window: Window) -> bool:
    """Whether the window is, or a later run has taken over, and all up to a heartbeat of the run is staged."""
    has_ended = window.left_s(run.now()) <= 0 or followers.is_succeeded(book, run.run_id, window.began_at)
    return has_ended and batches.has_heartbeat(book, run.run_id)
