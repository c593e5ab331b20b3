"""The staged files of many plain changes, read by a thread while the JVM makes or opens the table.

    which batches come next ──┬─► thread: files read, hashed and decoded; the newest row of each key ──┐
                              └─► the table's shape: the JVM's first commits ──────────────────────────┴─► the fold

A new driver's first commits are mostly the JVM finding and loading classes, on one core, and take about as long as a
million changes take to be read on the other. Nothing is written by it, nothing decided, and Spark runs no job for it:
whoever folds the changes asks for those of these files in this shape, and hears then what reading them raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from tidemark.formats.merge_plan import PlannedBatch
from tidemark.schema.table import TableSchema
from tidemark.target.driver import columnar_merge
from tidemark.target.driver.columnar_merge import StagedChanges


@dataclass(slots=True)
class ReadAhead:
    """What is being read, with the driver's memory reserved for it; used up by the first that is asked of it.

    It lives until the table is merged, so it forgets the changes before another table can have the memory.
    """

    schema: TableSchema
    batches: Sequence[PlannedBatch]
    staged: Future[StagedChanges] | None
    is_over: bool = False

    def take(self, schema: TableSchema, batches: Sequence[PlannedBatch]) -> StagedChanges | None:
        """The changes of these batches in the table's shape, and the memory with them; None if others were read, or
        they are taken. Raises what reading them raised, and keeps the memory then."""
        if self.staged is None or not self._is_of(schema, batches):
            self.let_go()
            return None
        try:
            staged = self.staged.result()
        finally:
            self.staged = None  # where it raised too: the traceback holds what was read until then
        self.is_over = True
        return replace(staged, schema=schema, batches=batches)

    def let_go(self) -> None:
        """Give the memory back, once the thread has no need of it, unless somebody took it."""
        if self.is_over:
            return
        if self.staged is not None:
            self.staged.exception()
            self.staged = None
        self.is_over = True
        columnar_merge.free_memory()

    def _is_of(self, schema: TableSchema, batches: Sequence[PlannedBatch]) -> bool:
        """What a settled shape says besides (names of older versions, comments) is nothing to the changes."""
        shapes = [columnar_merge.shape_of(one) for one in (schema, self.schema)]
        files = [[file for batch in some for file in batch.files] for some in (batches, self.batches)]
        return shapes[0] == shapes[1] and schema.key == self.schema.key and files[0] == files[1]
