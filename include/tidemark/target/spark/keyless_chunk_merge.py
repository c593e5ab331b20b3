"""Merges chunk rows with Spark into a table without a key: the number of copies of each row counts (R7).

    the chunk with the greatest watermark: the whole table ─┐
    changes that its snapshot did not see ──────────────────┴─► the copies that there should be

    history lacks copies, or has too many  ─► `read` and `sweep` rows at the watermark
    current lacks copies, or has too many  ─► inserts and deletes

The copies in history and in current are counted on the pinned tables, as for a table with a key.
"""

from __future__ import annotations

from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.formats.merge_result import ChunkResult
from tidemark.target.delta import delta_tables
from tidemark.target.spark import fold, visibility
from tidemark.target.spark.chunk_frames import ChunkChanges
from tidemark.target.spark.fold import ABOVE, ORIGIN, SEEN
from tidemark.target.spark.table_columns import with_defaults
from tidemark.target.spark.visibility import CLAIM, INSERTED, REPAIRED, UNCHANGED

_WEIGHT = "__tidemark_weight"  # the number of copies that a row adds, or removes if negative


class KeylessChunkChanges(ChunkChanges):
    """The changes and claimed chunks of a table without a key."""

    @property
    def are_small(self) -> bool:
        """Nothing is broadcast: all rows may be removed."""
        return False

    @cached_property
    def additions(self) -> DataFrame | None:
        return None if self._base is None else self._computed_once(self._missing_in_history(self._base))

    @cached_property
    def _base(self) -> int | None:
        """The chunk with the greatest watermark, whose rows are the whole table. None if a truncate follows it."""
        newest = max(self.alive, key=lambda number: self.alive[number].watermark_lsn, default=None)
        return None if newest is None or not visibility.is_above(self.alive[newest], self._truncates) else newest

    def _copies(self, base: int) -> DataFrame:
        """The chunk's rows, older changes that it did not see, and the plan's changes, marked by ORIGIN and SEEN."""
        claim = self._claims.where(F.col(CLAIM) == base)
        own = self.rows.where(F.col(ABOVE)).withColumn(ORIGIN, F.lit(fold.PLAN))
        older = self._single(self._older).transform(fold.without_holes).withColumn(ORIGIN, F.lit(fold.OLDER))
        placed = own.unionByName(older).crossJoin(claim).transform(visibility.mark_seen)
        reads = self._reads.where(F.col(CLAIM) == base)
        return placed.unionByName(reads.transform(fold.without_holes))

    def _missing_in_history(self, base: int) -> DataFrame:
        """`read` rows for the copies that the stream lacks just below the watermark, `sweep` rows for surplus copies.

        A table with history only gets no `sweep` rows. The copies are compared with history, not with current: history
        also counts removals of rows that it never held, and has the texts of values that do not fit (R8).
        """
        seen = F.when((F.col(ORIGIN) == fold.PLAN) & (F.col(SEEN) == 0), -1)
        weight = seen.when(F.col(ORIGIN) == fold.PLAN, 0).otherwise(1) * fold.copies_of()
        copies = self._copies(base).withColumn(_WEIGHT, weight)
        if not self.truncated and self.history.exists:
            changes = delta_tables.rows(self.history).transform(with_defaults)
            changes = changes.transform(visibility.above_last_truncate)
            copies = copies.unionByName(changes.withColumn(_WEIGHT, -fold.copies_of()), allowMissingColumns=True)
        net = copies.transform(fold.net_copies(self.source_names, F.col(_WEIGHT), texts=True))
        if not self.multiset:
            net = net.where(F.col(fold.NET) > 0)
        return net.transform(visibility.copies_at(self.alive[base], self.source_names, self.generation))

    def _net(self) -> DataFrame:
        """The copies that current lacks or has in excess after the chunk's rows and the changes that it did not see."""
        if self._base is None:
            return super()._net()
        weight = F.when((F.col(ORIGIN) == fold.PLAN) & (F.col(SEEN) == 0), 0).otherwise(1) * fold.copies_of()
        copies = self._copies(self._base).withColumn(_WEIGHT, weight)
        if self._target_rows is not None and not self.truncated:
            current = self._target_rows.withColumn("_op", F.lit("delete")).withColumn(_WEIGHT, F.lit(-1))
            copies = copies.unionByName(current, allowMissingColumns=True)
        of_plan = F.coalesce(F.col(ORIGIN) == fold.PLAN, F.lit(False))
        return copies.transform(fold.net_copies(self.source_names, F.col(_WEIGHT), always=of_plan))

    def chunk_results(self) -> tuple[ChunkResult, ...]:
        if self._base is None or self.additions is None:
            return self._results({})
        ops = {row["_op"]: row["count"] for row in self.additions.groupBy("_op").count().collect()}
        inserted = ops.get("read", 0)
        unchanged = max(0, self.alive[self._base].rows - inserted)
        return self._results({self._base: {INSERTED: inserted, REPAIRED: ops.get("sweep", 0), UNCHANGED: unchanged}})
