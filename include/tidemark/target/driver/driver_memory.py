"""Reserves the driver's memory for one table at a time.

A backlog is of all tables, and as many of these as the application has threads need more memory than a driver has
beside its JVM. A table that does not get it goes through Spark, which needs no more for more of them.
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
