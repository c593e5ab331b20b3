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

from tidemark.formats.plan import PlannedBatch
from tidemark.schema.table import TableSchema
from tidemark.target import plain_changes
from tidemark.target.plain_changes import Staged


@dataclass(slots=True)
class ReadAhead:
    """What is being read, with the driver's memory reserved for it; used up by the first that is asked of it."""

    schema: TableSchema
    batches: Sequence[PlannedBatch]
    staged: Future[Staged]
    is_over: bool = False

    def take(self, schema: TableSchema, batches: Sequence[PlannedBatch]) -> Staged | None:
        """The changes of these batches in the table's shape, and the memory with them; None if others were read, or
        they are taken. Raises what reading them raised, and keeps the memory then."""
        if self.is_over or not self._is_of(schema, batches):
            self.let_go()
            return None
        staged = self.staged.result()
        self.is_over = True
        return replace(staged, schema=schema, batches=batches)

    def let_go(self) -> None:
        """Give the memory back, once the thread has no need of it, unless somebody took it."""
        if not self.is_over:
            self.staged.exception()
            plain_changes.free_memory()
        self.is_over = True

    def _is_of(self, schema: TableSchema, batches: Sequence[PlannedBatch]) -> bool:
        """What a settled shape says besides (names of older versions, comments) is nothing to the changes."""
        shapes = [plain_changes.shape_of(one) for one in (schema, self.schema)]
        files = [[file for batch in some for file in batch.files] for some in (batches, self.batches)]
        return shapes[0] == shapes[1] and schema.key == self.schema.key and files[0] == files[1]
