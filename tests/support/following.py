"""A drain that follows the source on a thread of the test."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from sandbox.services.postgres import wait_for
from tests.support.pipeline import Place
from tidemark.capture.drain import DrainResult
from tidemark.capture.following.drain_cycles import RunFile, follow
from tidemark.capture.following.window import FollowWindow
from tidemark.lsn import Lsn


class Follower:
    """A drain that follows the source on a thread, until the test says that its window is over."""

    def __init__(
        self,
        pipeline: Place,
        run_id: str,
        every_s: float,
        file: RunFile | None = None,
        began_at: datetime | None = None,
    ) -> None:
        self.pipeline = pipeline
        began_at = began_at or datetime.now(UTC)
        self.ends_at = began_at + timedelta(hours=1)
        self.is_over = False
        self.result: DrainResult | None = None
        self.error: BaseException | None = None
        self.run = pipeline.task("drain", run_id, now=self.now, holder=f"{run_id}/drain")
        self.window = FollowWindow(began_at, self.ends_at, every_s)
        self.file = file
        self.thread = threading.Thread(target=self._follow)
        self.thread.start()

    def now(self) -> datetime:
        return self.ends_at if self.is_over else datetime.now(UTC)

    def _follow(self) -> None:
        try:
            self.result = follow(self.run, self.window, wait_s=30, file=self.file)
        except BaseException as failed:
            self.error = failed

    def await_staged(self) -> None:
        """Wait until all that the source has by now is staged."""
        # A message under our prefix that says nothing: it wakes the drain, and is behind all that was committed.
        lsn = Lsn.parse(self.pipeline.sql("SELECT pg_logical_emit_message(true, 'tidemark', 'a test')::text")[0][0])

        def is_staged() -> bool:
            generation = self.pipeline.generation()
            return self.thread.is_alive() and generation is not None and generation.staged_lsn >= lsn

        wait_for("what the source has is staged", lambda: is_staged() or self._raise())

    def _raise(self) -> bool:
        if self.error is not None:
            raise self.error
        return False

    def end(self) -> DrainResult:
        self.is_over = True
        self.thread.join(60)
        self._raise()
        assert self.result is not None
        return self.result
