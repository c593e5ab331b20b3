"""A merge as a task of its own, whose driver stands still at a failpoint."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from sandbox.services.postgres import wait_for
from tests.support.on_cluster import OnCluster
from tidemark import failpoints


class Task(threading.Thread):
    """A merge of the pipeline's run; `raised` is what it ended with."""

    def __init__(self, shop: OnCluster) -> None:
        super().__init__(daemon=True)
        self.shop = shop
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            self.shop.merge()
        except BaseException as raised:
            self.raised = raised


@contextmanager
def halted(shop: OnCluster, failpoint: str) -> Iterator[tuple[psutil.Process, Task]]:
    """A merge whose driver is a child of the task and stands at the failpoint, and the task that waits for it."""
    task = Task(shop.with_variables({failpoints.VARIABLE: f"{failpoint}:stop"}))
    task.start()
    (driver,) = wait_for(
        f"the driver stands at {failpoint}", lambda: halted_drivers(psutil.Process(), task), seconds=300
    )
    os.environ.pop(failpoints.VARIABLE)  # the task's variables are this process's, and the next driver shall not halt
    try:
        yield driver, task
    finally:
        with suppress(psutil.NoSuchProcess):
            driver.resume()
        task.join(timeout=300)


def halted_drivers(above: psutil.Process, task: Task) -> list[psutil.Process]:
    """Those below a process; an error once the task, which waits for one, has ended."""
    if not task.is_alive():
        raise AssertionError(f"the merge ended before: {task.raised!r}")
    drivers = []
    for process in above.children(recursive=True):
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED and "merge_batch.py" in " ".join(process.cmdline()):
                drivers.append(process)
    return drivers
