"""Reserves the driver's memory for one table at a time.

After a backlog all tables have many changes, and the application merges several tables at the same time. Together they
would need more memory than a driver has in addition to its JVM. A table waits for its turn. Spark merges a table that
does not get the memory in time; Spark's memory does not grow with the number of tables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemark.target.merge_choice import Declined

# The longest wait of a table's fold for the memory. A fold of 40,000 changes takes a second, and Spark's MERGE of them
# takes ten and more.
WAIT_S: Final = 20.0

# The longest wait of a table's chunks. It is long because Spark would otherwise join all of current with them.
CHUNKS_WAIT_S: Final = 60.0

_RESERVATION: Final = threading.BoundedSemaphore(1)


def reserve(wait_s: float = 0.0) -> None:
    """Reserve the memory for one table until `free`. Raises Declined if another table still holds it after `wait_s`."""
    if not _RESERVATION.acquire(timeout=wait_s):
        raise Declined("another table has the driver's memory")


def free() -> None:
    _RESERVATION.release()


@contextmanager
def reserved(wait_s: float) -> Iterator[None]:
    """The memory is reserved while the block runs. Raises Declined as `reserve` does."""
    reserve(wait_s)
    try:
        yield
    finally:
        free()
