"""Ends a process, with all that it started, when it runs for longer than it may.

Airflow's `execution_timeout` counts from the task's start, its wait for another merge included, and ends spark-submit
alone. Here the time begins with the block, which is the application's run; the JVM of the driver and the Python in it
end too (SIGKILL: a driver that is told to end would first write of every table that it failed).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(slots=True)
class TimeLimit:
    """`passed` where the time was over before the block was; `ran_s` is how long that took."""

    passed: bool = False
    ran_s: float = 0.0


@contextmanager
def time_limit(seconds: float, end: Callable[[], None]) -> Iterator[TimeLimit]:
    """Call `end`, on a thread, once the block has run for so long."""
    limit, began = TimeLimit(), time.monotonic()

    def over() -> None:
        limit.passed, limit.ran_s = True, time.monotonic() - began
        end()

    timer = threading.Timer(seconds, over)
    timer.daemon = True
    timer.start()
    try:
        yield limit
    finally:
        timer.cancel()
        # Where it is ending the processes right now, what it does belongs to this block.
        timer.join()


@contextmanager
def ending_with_descendants(pid: int | None) -> Iterator[None]:
    """The block ends the process; whatever it started, and is still there, is killed after it."""
    import psutil

    descendants: list[psutil.Process] = []
    if pid is not None:
        with suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(pid).children(recursive=True)
    try:
        yield
    finally:
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
