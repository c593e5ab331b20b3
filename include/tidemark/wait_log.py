"""Logs what a task waits for, who holds it and until when: at once, then every half minute.

    wait = Wait(limit_s=600)
    while (holder := holder_of_the_lease()) is not None:
        if not wait.pause(lambda: f"the lease …, held by {holder}"):
            raise ...
    wait.log_end()

A wait of less than a second is not logged. `logged_wait` logs from a thread while a statement blocks inside the
database. Clock and sleep are passed in.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tidemark.wording import duration

log = logging.getLogger(__name__)

# Short waits are normal: a slot stays active for a moment after its client closed.
LOGGED_AFTER_S: Final = 1.0
LOGGED_EVERY_S: Final = 30.0


class Wait:
    """Pauses between checks of one wait of at most `limit_s` seconds (inf: no limit), and logs what is awaited."""

    def __init__(
        self,
        limit_s: float,
        *,
        every_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit_s = limit_s
        self._every_s = every_s
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._next_line_at = self._began + min(LOGGED_AFTER_S, limit_s / 2)
        self._logged = ""

    @property
    def waited_s(self) -> float:
        return self._clock() - self._began

    def pause(self, awaited: Callable[[], str]) -> bool:
        """Pause before the next check. Returns False after `limit_s`; the caller then raises. `awaited` returns what is
        awaited, who holds it and until when; it is called only when a line is due."""
        left_s = self._limit_s - self.waited_s
        if left_s <= 0:
            return False
        self.log_if_due(awaited)
        self._sleep(min(self._every_s, left_s))
        return True

    def log_if_due(self, awaited: Callable[[], str]) -> None:
        """Log a line if one is due, without a pause, for a loop that pauses by other means."""
        if self._clock() < self._next_line_at:
            return
        begin = f"Still waiting after {duration(self.waited_s)}" if self._logged else "Waiting"
        self._logged = awaited()
        limit = "" if math.isinf(self._limit_s) else f" ({duration(self._limit_s)} at most)"
        log.info("%s for %s%s", begin, self._logged, limit)
        self._next_line_at = self._clock() + LOGGED_EVERY_S

    def log_end(self) -> None:
        """Log the end of a wait that was logged before."""
        if self._logged:
            log.info("Waited %s for %s", duration(self.waited_s), self._logged)


@contextmanager
def logged_wait(limit_s: float, awaited: Callable[[], str]) -> Iterator[None]:
    """Log what is awaited while the block runs one statement that waits inside a database.

    A thread calls `awaited`, so it needs a separate session. Its errors do not affect the block.
    """
    wait = Wait(limit_s)
    ended = threading.Event()

    def watch() -> None:
        # Twice a second, so that the lines come when they are due.
        while not ended.wait(0.5):
            try:
                wait.log_if_due(awaited)
            except Exception as failed:
                log.debug("Could not read what this task waits for: %s", type(failed).__name__)

    watcher = threading.Thread(target=watch, name="wait log", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(timeout=5)
    wait.log_end()
