"""Reads many changes on a thread, and finds the newest of each key, while the JVM creates or opens the table.

    the batches that come next ──┬─► thread: files read, hashed and decoded; the newest row of each key ──┐
                                 └─► the table's shape: the JVM's first commits ──────────────────────────┴─► the fold

In a new driver's first commits the JVM mostly loads classes, on one core. That takes as long as reading a million
changes takes on the other core. The thread writes nothing, decides nothing, and needs no Spark job. The fold asks for
the changes by files and shape, and gets the thread's result or its exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.formats.merge_plan import PlannedBatch
from tidemark.schema.table import TableSchema
from tidemark.target.driver import driver_memory
from tidemark.target.driver.change_reader import change_shape
from tidemark.target.driver.driver_fold import NewestChanges
from tidemark.target.merge_choice import Declined


@contextmanager
def reading_ahead(
    schema: TableSchema, batches: Sequence[PlannedBatch], read: Callable[[], NewestChanges]
) -> Iterator[ReadAhead | None]:
    """Read the batches' changes by `read` on a thread beside the block; None if another table has the driver's
    memory."""
    try:
        driver_memory.reserve()
    except Declined:
        yield None
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read ahead") as thread:
        ahead = ReadAhead(schema, batches, thread.submit(read))
        try:
            yield ahead
        finally:
            ahead.let_go()


@dataclass(slots=True)
class ReadAhead:
    """Changes that are being read, with the driver's memory reserved for them. `take` uses them up. The object
    lives until the table is merged, so it drops the changes before another table can reserve the memory."""

    schema: TableSchema
    batches: Sequence[PlannedBatch]
    newest: Future[NewestChanges] | None
    is_over: bool = False

    def take(self, schema: TableSchema, batches: Sequence[PlannedBatch]) -> NewestChanges | None:
        """The changes of these batches in the table's shape, with their memory; None if other batches were read, or
        if they were taken before. Raises the reading thread's error, and keeps the memory then."""
        if self.newest is None or not self._is_of(schema, batches):
            self.let_go()
            return None
        try:
            newest = self.newest.result()
        finally:
            self.newest = None  # where it raised too: the traceback holds what was read until then
        self.is_over = True
        return newest

    def let_go(self) -> None:
        """Return the memory once the thread no longer needs it, unless `take` was called."""
        if self.is_over:
            return
        if self.newest is not None:
            self.newest.exception()
            self.newest = None
        self.is_over = True
        driver_memory.free()

    def _is_of(self, schema: TableSchema, batches: Sequence[PlannedBatch]) -> bool:
        """Whether the changes were read in this shape. Other content of a shape (names in older versions, comments)
        does not affect them."""
        shapes = [change_shape(one) for one in (schema, self.schema)]
        files = [[file for batch in some for file in batch.files] for some in (batches, self.batches)]
        return shapes[0] == shapes[1] and schema.key == self.schema.key and files[0] == files[1]
