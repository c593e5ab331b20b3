"""Reads many small files of staging, several at the same time, in bounded memory.

On an object store each file is one request, and rebuilding a ledger takes thousands. Results are returned in order,
while the next reads run. `Executor.map` would start all reads and keep all results in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

# Reads that are under way at the same time.
READERS: Final = 16

Named = TypeVar("Named")
Read = TypeVar("Read")


def read_ahead(read: Callable[[Named], Read], named: Iterable[Named]) -> Generator[Read, None, None]:
    """The results of `read` in order. Raises the first error. A caller that stops early waits for the reads under
    way."""
    under_way: deque[Future[Read]] = deque()
    with ThreadPoolExecutor(READERS, thread_name_prefix="tidemark-read-ahead") as readers:
        for name in named:
            under_way.append(readers.submit(read, name))
            if len(under_way) > READERS:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
