"""Merges with Spark the changes, the chunk rows of backfills, and the removals of rows that the source lacks (R7).

    staged changes ─┐                     ┌─► rows: the changes, unchanged values filled, from chunks too
    older changes ──┼─ place, fill ───────┤
    chunk rows ─────┘                     └─► additions: `read` and `sweep` rows ─┬─► history, with the changes
    current and history, pinned before ───────────────────────────────────────────┘   current, the newest row per key

The table has a key. The additions are computed against the pinned tables. So history and current get the same
additions, whatever is committed between their two commits. A chunk adds no row if current already has its rows. Most
chunk rows have keys that no change has; no window is computed for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.errors import ChunksMissing
from tidemark.formats.manifest import Sweep
from tidemark.formats.merge_result import ChunkResult
from tidemark.target.chunks.chunk_input import may_share_keys
from tidemark.target.delta import delta_tables
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.driver import file_pruning
from tidemark.target.driver.file_pruning import KeyRange
from tidemark.target.merge_facts import keys_in_shape
from tidemark.target.spark import fold, visibility
from tidemark.target.spark.chunk_frames import ChunkChanges
from tidemark.target.spark.fold import ABOVE, ORIGIN
from tidemark.target.spark.spark_merge import SMALL_BYTES, SMALL_ROWS, with_row_holes
from tidemark.target.spark.visibility import ALONE, CLAIM, INSERTED, LACKING, LOST, VERDICT
from tidemark.wording import counted

# Up to this number of changes, their keys are broadcast, so that the chunks' rows need not be shuffled.
FEW_CHANGES: Final = 200_000


class KeyedChunkChanges(ChunkChanges):
    """The changes and claimed chunks of a table with a key.

    `narrows`: of current, only the key ranges of the chunks are read.
    """

    narrows = True

    @property
    def are_small(self) -> bool:
        """Whether changes and chunks can be broadcast; not with a sweep, which may remove all rows."""
        if self.sweeps or not super().are_small:
            return False
        files = [f for b in self.evidence for f in b.files]
        return sum(f.rows for f in files) <= SMALL_ROWS and sum(f.bytes for f in files) <= SMALL_BYTES

    @property
    def _has_changes(self) -> bool:
        """Whether there are any changes, of the plan or of the evidence, that may have keys of chunks."""
        return any(b.files for b in (*self.batches, *self.evidence))

    @property
    def _few_changes(self) -> bool:
        return sum(b.changes for b in (*self.batches, *self.evidence)) <= FEW_CHANGES

    @property
    def _overlap(self) -> bool:
        """Whether two chunks may have the same key."""
        return may_share_keys(self.alive.values())

    @cached_property
    def _reads(self) -> DataFrame:
        reads = super()._reads
        return reads.transform(visibility.greatest_watermark(self.schema.key)) if self._overlap else reads

    @property
    def _key(self) -> list[Column]:
        return [fold.column(name) for name in self.schema.key]

    # --- changes, and the chunk rows with their keys ------------------------------------------------------------------

    @cached_property
    def rows(self) -> DataFrame:
        if not (self.alive and self._has_changes):
            return super().rows
        own = self._events.where(F.col(ORIGIN) == fold.PLAN)
        return own.drop(fold.SEEN, ORIGIN, CLAIM)

    @cached_property
    def _events(self) -> DataFrame:
        """The plan's changes, older changes that chunks did not see, and the chunk rows with keys of these changes.

        Each row has its place in the order (SEEN), and unchanged values are filled in.
        """
        events = self._placed.unionByName(self._touched_reads)
        names = self._unchanged_names(self.staged.select("_unchanged").unionByName(self._older.select("_unchanged")))
        names = sorted({*names, *(name for unread in self._not_read.values() for name in unread)})
        filled = events.transform(self._fill(events, names) if names else fold.without_holes)
        return self._computed_once(filled)

    @cached_property
    def _placed(self) -> DataFrame:
        own = self._single(self.staged).withColumn(ORIGIN, F.lit(fold.PLAN))
        older = self._single(self._older).withColumn(ORIGIN, F.lit(fold.OLDER))
        changes = own.unionByName(older)
        keys = self._reads.select(*self._key, CLAIM)
        if self._few_changes:
            keys = keys.join(F.broadcast(changes.select(*self._key)), on=list(self.schema.key), how="left_semi")
        return self._computed_once(changes.transform(visibility.place_changes(self.schema.key, keys, self._claims)))

    @cached_property
    def _touched_keys(self) -> DataFrame:
        of_chunks = self._placed.where(F.col(CLAIM).isNotNull())
        keys = of_chunks.select(*self._key).distinct()
        return F.broadcast(keys) if self._few_changes else keys

    @cached_property
    def _touched_reads(self) -> DataFrame:
        return self._reads.join(self._touched_keys, on=list(self.schema.key), how="left_semi")

    @cached_property
    def _with_verdicts(self) -> DataFrame:
        """Every chunk row with its verdict. Not cached if current is empty: reading chunks twice is then cheaper."""
        rows = self._reads.transform(visibility.untouched(self.names))
        if self._has_changes:
            untouched = rows.join(self._touched_keys, on=list(self.schema.key), how="left_anti")
            touched = self._events.transform(visibility.at_watermark(self.schema.key, self.names, self._claims))
            rows = touched.unionByName(untouched)
        with_verdicts = rows.transform(self._add_verdicts())
        return with_verdicts if self._target_rows is None else self._computed_once(with_verdicts)

    def _add_verdicts(self) -> fold.Transform:
        return visibility.add_verdicts(
            self.schema.key,
            self.source_names,
            self._target_rows,
            truncated=self.truncated,
            not_read=self._not_read,
        )

    def _rows_of(self, current: PinnedTable) -> DataFrame | None:
        if self.load is not None:
            return self.load.current_rows()
        rows = delta_tables.rows(current)
        return rows if self._chunk_ranges is None else rows.where(self._in_ranges(self._chunk_ranges))

    def _in_ranges(self, ranges: Sequence[KeyRange], of: str | None = None) -> Column:
        return file_pruning.within(fold.column(self.schema.key[0], of), file_pruning.join_ranges(ranges))

    @cached_property
    def _chunk_ranges(self) -> list[KeyRange] | None:
        """The ranges of the chunks' keys in the key's first column; None if they are unknown or would save nothing."""
        if not self.narrows or self.few_rows or not self.alive or self.sweeps:
            return None
        if not keys_in_shape(self.schemas, self.batches):  # in some files another column has this name
            return None
        uris = [f"{self.lake}/{f.path}" for claim in self.alive.values() for f in claim.files]
        return file_pruning.ranges_in(self.session, uris, self.schema.key[0])

    @cached_property
    def narrowed(self) -> Column | None:
        if self._chunk_ranges is None or self.moved or any(b.changes for b in self.batches):
            return None
        return self._in_ranges(self._chunk_ranges, "t")

    # --- additions ----------------------------------------------------------------------------------------------------

    @cached_property
    def additions(self) -> DataFrame | None:
        frames = []
        if self.alive:
            additions = visibility.additions(self.schema.key, self.names, self._not_read)
            frames.append(self._with_verdicts.transform(additions))
        frames += self._swept.values()
        return reduce(DataFrame.unionByName, frames) if frames else None

    @cached_property
    def _swept(self) -> dict[str, DataFrame]:
        """Per sweep, the target's rows whose keys are in no chunk of the backfill and in no change that it did not see.

        There are none if the plan has a truncate, which already removes these rows.
        """
        if self._target_rows is None or self.truncated:
            return {}
        return {sweep.backfill: self._computed_once(self._sweep(sweep, self._target_rows)) for sweep in self.sweeps}

    def _sweep(self, sweep: Sweep, rows: DataFrame) -> DataFrame:
        claims = self.next_batches.claims_of(sweep)
        # There may be more claims than chunks: after a ledger was restored from an older copy, chunks are read again.
        if len(claims) < sweep.chunks:
            table = str(self.schema.table)
            raise ChunksMissing(
                table=table, backfill=sweep.backfill, chunks=counted(sweep.chunks, "chunk"), claims=len(claims)
            )
        older = self._single(self._staged_of(self.evidence))
        keys = [
            self._chunk_rows(claims).select(*self._key),
            older.transform(visibility.keys_not_seen(self.schema.key, sweep)),
            self._single(self.staged).select(*self._key),
        ]
        last = max(claims, key=lambda claim: claim.watermark_lsn)
        if sweep.parts is not None:
            types = {f.name: f.dataType for f in rows.schema.fields}
            rows = rows.where(visibility.within(self.schema.key, types, sweep.parts))
        if sweep.keys is not None:
            requested = visibility.keys_frame(self.session, self.schema.key, rows.schema, sweep.keys)
            rows = rows.join(requested, on=list(self.schema.key), how="left_semi")
        return visibility.swept(self.schema.key, self.names, rows, reduce(DataFrame.union, keys), self.generation, last)

    def _newest(self) -> DataFrame:
        if self.additions is None:
            return super()._newest()
        additions = self.additions.where(F.col(ABOVE))
        touched = additions.where(~F.col(ALONE)).drop(ALONE)
        rows = self.rows.where(F.col(ABOVE))
        newest = rows.unionByName(touched, allowMissingColumns=True).transform(fold.newest_per_key(self.schema.key))
        untouched = additions.where(F.col(ALONE)).drop(ALONE)
        return newest.unionByName(untouched, allowMissingColumns=True).transform(with_row_holes)

    # --- results of the chunks ----------------------------------------------------------------------------------------

    def chunk_results(self) -> tuple[ChunkResult, ...]:
        verdicts = {number: Counter[str]() for number in self.alive}
        lost = Counter[int]()
        # Into an empty current, all rows whose keys no change has are inserted, so only the others are counted.
        into_nothing = self._target_rows is None and not self._overlap
        if self.alive and (self._has_changes or not into_nothing):
            rows = self._with_verdicts.where(~F.col(ALONE)) if into_nothing else self._with_verdicts
            for row in rows.groupBy(CLAIM, VERDICT).agg(F.count(F.lit(1)), F.count_if(LOST)).collect():
                number, verdict, count, lost_rows = row
                verdicts[number][verdict] = count
                lost[number] += lost_rows
        if into_nothing:
            for number, claim in self.alive.items():
                verdict = INSERTED if claim.columns is None else LACKING
                verdicts[number][verdict] += claim.rows - verdicts[number].total()
        return self._results(verdicts, lost)

    def swept_rows(self) -> dict[str, int]:
        return super().swept_rows() | {backfill: rows.count() for backfill, rows in self._swept.items()}
