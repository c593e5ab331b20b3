"""Reserves the driver's memory for one table at a time.

A backlog concerns all tables, and the application merges several at the same time. Together they would need more memory
than a driver has beside its JVM. A table that does not get the memory is merged by Spark, which needs no more memory
for more tables.
"""

from __future__ import annotations

import threading
from typing import Final

from tidemark.target.merge_choice import Declined

_ONE: Final = threading.BoundedSemaphore(1)


def reserve(wait_s: float = 0.0) -> None:
    """For this table alone, until `free`. Raises Declined where another one has it so long."""
    if not _ONE.acquire(timeout=wait_s):
        raise Declined("another table has the driver's memory")


def free() -> None:
    _ONE.release()
