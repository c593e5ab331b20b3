"""Logs what a task waits for, who holds it and until when: at once, then every half minute.

    wait = Wait(limit_s=600)
    while (holder := look()) is not None:
        if not wait.goes_on(lambda: f"the lease …, held by {holder}"):
            raise ...
    wait.is_over()

What ends within a second is not worth a line. A statement that blocks inside the database is watched by `saying`, from
a thread. Clock and sleep are passed in.
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

# A slot is active for a moment after its client closed, a lease is given back in the next one: no news.
SAID_AFTER_S: Final = 1.0
SAID_EVERY_S: Final = 30.0


class Wait:
    """One wait of at most `limit_s` seconds (inf: somebody else ends it): pauses between looks, and says what it is
    that it waits for."""

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
        self._say_at = self._began + min(SAID_AFTER_S, limit_s / 2)
        self._said = ""

    @property
    def waited_s(self) -> float:
        return self._clock() - self._began

    def goes_on(self, awaited: Callable[[], str]) -> bool:
        """Pause before the next look; False if the time is over, and the caller raises. `awaited` is asked where
        a line is due: what is waited for, who holds it and until when."""
        left_s = self._limit_s - self.waited_s
        if left_s <= 0:
            return False
        self.note(awaited)
        self._sleep(min(self._every_s, left_s))
        return True

    def note(self, awaited: Callable[[], str]) -> None:
        """Say it where a line is due, without a pause: for a loop that waits by other means."""
        if self._clock() < self._say_at:
            return
        begin = f"Still waiting after {duration(self.waited_s)}" if self._said else "Waiting"
        self._said = awaited()
        limit = "" if math.isinf(self._limit_s) else f" ({duration(self._limit_s)} at most)"
        log.info("%s for %s%s", begin, self._said, limit)
        self._say_at = self._clock() + SAID_EVERY_S

    def is_over(self) -> None:
        """It was worth the wait: said where the wait was."""
        if self._said:
            log.info("Waited %s for %s", duration(self.waited_s), self._said)


@contextmanager
def saying(limit_s: float, awaited: Callable[[], str]) -> Iterator[None]:
    """Say what is waited for while the block runs, which is one statement that waits inside a database.

    `awaited` is called on a thread: it needs a session of its own. What it raises is not the block's affair.
    """
    wait = Wait(limit_s)
    ended = threading.Event()

    def watch() -> None:
        # Twice a second, so that the lines come when they are due.
        while not ended.wait(0.5):
            try:
                wait.note(awaited)
            except Exception as failed:
                log.debug("What is waited for cannot be said: %s", type(failed).__name__)

    watcher = threading.Thread(target=watch, name="saying what is waited for", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(timeout=5)
    wait.is_over()
