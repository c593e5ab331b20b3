"""Merges with Spark the changes, the chunk rows of backfills, and the removals of rows that the source lacks (R7).

    staged changes ─┐                     ┌─► rows: the changes, unchanged values filled, from chunks too
    older changes ──┼─ place, fill ───────┤
    chunk rows ─────┘                     └─► additions: `read` and `sweep` rows ─┬─► history, with the changes
    current and history, pinned before ───────────────────────────────────────────┘   current, the newest row per key

The additions are computed against the pinned tables. So history and current get the same additions, whatever is
committed between their two commits. A chunk adds no row if current already has its rows. Most chunk rows have keys that
no change has; no window is computed for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.errors import ChunksMissing
from tidemark.formats.manifest import Claim, Sweep
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.formats.snapshot import Snapshot
from tidemark.target.delta import delta_tables
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.driver import file_pruning
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.file_pruning import KeyRange
from tidemark.target.driver.history_files import OnFailure
from tidemark.target.merge_facts import keys_in_shape
from tidemark.target.spark import fold, visibility
from tidemark.target.spark.fold import ABOVE, ORIGIN, SEEN
from tidemark.target.spark.spark_merge import SMALL_BYTES, SMALL_ROWS, Changes, with_row_holes
from tidemark.target.spark.staged_changes import read_changes, read_chunk_rows
from tidemark.target.spark.table_columns import with_defaults
from tidemark.target.spark.visibility import (
    ALONE,
    CLAIM,
    INSERTED,
    LACKING,
    LOST,
    REPAIRED,
    UNCHANGED,
    VERDICT,
    TableTruncate,
)
from tidemark.wording import counted

# Up to this number of changes, their keys are broadcast, so that the chunks' rows need not be shuffled.
FEW_CHANGES: Final = 200_000

_WEIGHT: Final = "__tidemark_weight"  # the number of copies that a row adds, or removes if negative


class ChunkChanges(Changes):
    """The changes and claimed chunks of the next batches, merged by Spark.

    `evidence` are batches that were applied before. `history` is pinned just before these changes, or just after them
    if history is ahead. `narrows`: of current, only the key ranges of the chunks are read.
    """

    narrows = True

    def __init__(
        self,
        table: StagedTable,
        batches: Sequence[PlannedBatch],
        current: PinnedTable | None,
        *,
        history: PinnedTable,
        evidence: Sequence[PlannedBatch],
        generation: int,
        few_rows: bool,
        on_failure: OnFailure,
    ) -> None:
        super().__init__(table, batches, current, few_rows=few_rows, on_failure=on_failure)
        self.history = history
        self.evidence = evidence
        self.generation = generation
        self.claims: tuple[Claim, ...] = tuple(c for b in batches for c in b.claims)
        self.sweeps: tuple[Sweep, ...] = tuple(s for b in batches for s in b.sweeps)
        self.moved = self.moved or any(b.moved for b in evidence)
        self.unchanged = self.unchanged or any(b.unchanged for b in evidence)
        self.may_truncate = self.truncated or any(b.truncates for b in evidence)
        self.keyed = bool(self.schema.key)
        self.unchanged = self.unchanged or any(c.columns is not None for c in self.claims)

    @property
    def are_small(self) -> bool:
        """Whether changes and chunks can be broadcast; not with a sweep or without a key, which may remove all rows."""
        if self.sweeps or not self.keyed or not super().are_small:
            return False
        files = [f for b in self.evidence for f in b.files]
        return sum(f.rows for f in files) <= SMALL_ROWS and sum(f.bytes for f in files) <= SMALL_BYTES

    # --- input --------------------------------------------------------------------------------------------------------

    @cached_property
    def alive(self) -> dict[int, Claim]:
        """The claims whose rows no truncate has removed since, by their numbers in the plan."""
        return visibility.alive(self.claims, self._truncates) if self.claims else {}

    @cached_property
    def _truncates(self) -> list[TableTruncate]:
        truncates = []
        for batches, older in ((self.evidence, True), (self.batches, False)):
            with_truncates = [b for b in batches if b.truncates]
            if with_truncates:
                staged = read_changes(self.session, self.lake, self.schemas, with_truncates)
                each = staged.where(F.col("_op") == "truncate").groupBy("_commit_lsn", "_xid")
                for row in each.agg(F.max("_ordinal").alias("ordinal")).collect():
                    truncates.append(TableTruncate(row["_commit_lsn"], row["ordinal"], row["_xid"], older))
        return truncates

    @cached_property
    def _not_read(self) -> Mapping[int, tuple[str, ...]]:
        return visibility.unread(self.alive, self.schema)

    @cached_property
    def _claims(self) -> DataFrame:
        return visibility.claims_frame(self.session, self.alive, self._truncates)

    @cached_property
    def _reads(self) -> DataFrame:
        """The chunks' rows in the shape of changes."""
        rows = read_chunk_rows(self.session, self.lake, self.schemas, list(self.alive.values()))
        reads = rows.transform(visibility.as_changes(self._claims, self.names, self.generation, self._not_read))
        return reads.transform(visibility.greatest_watermark(self.schema.key)) if self._overlap else reads

    @property
    def _has_changes(self) -> bool:
        """Whether there are any changes, of the plan or of the evidence, that may have keys of chunks."""
        return any(b.files for b in (*self.batches, *self.evidence))

    @property
    def _few_changes(self) -> bool:
        return sum(b.changes for b in (*self.batches, *self.evidence)) <= FEW_CHANGES

    @property
    def _overlap(self) -> bool:
        """Whether two chunks may have the same key: chunks of two backfills, or of two attempts at one range.

        After a ledger was restored from an older copy, chunks are read again although their first attempts are claimed.
        """
        claims = list(self.alive.values())
        attempts = {(c.backfill, c.key_range, c.attempt) for c in claims}
        several = len(attempts) > len({(backfill, number) for backfill, number, _ in attempts})
        return self.keyed and (several or len({c.backfill for c in claims}) > 1)

    @cached_property
    def _older(self) -> DataFrame:
        """Applied changes that some chunk's snapshot may not have seen: those from the lowest xmin on."""
        staged = read_changes(self.session, self.lake, self.schemas, [b for b in self.evidence if b.files])
        if all(c.consistent_point is None for c in self.alive.values()):
            staged = staged.where(F.col("_xid") >= min(Snapshot.parse(c.snapshot).xmin for c in self.alive.values()))
        return staged

    # --- a table with a key -------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> DataFrame:
        if not (self.keyed and self.alive and self._has_changes):
            return self._plain_rows
        own = self._events.where(F.col(ORIGIN) == fold.PLAN)
        return own.drop(fold.SEEN, ORIGIN, CLAIM)

    @cached_property
    def _plain_rows(self) -> DataFrame:
        """The changes as they would be without chunks."""
        return super().rows

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
        key = [fold.column(k) for k in self.schema.key]
        changes = own.unionByName(older)
        keys = self._reads.select(*key, CLAIM)
        if self._few_changes:
            keys = keys.join(F.broadcast(changes.select(*key)), on=list(self.schema.key), how="left_semi")
        return self._computed_once(changes.transform(visibility.place_changes(self.schema.key, keys, self._claims)))

    @cached_property
    def _touched_keys(self) -> DataFrame:
        of_chunks = self._placed.where(F.col(CLAIM).isNotNull())
        keys = of_chunks.select(*[fold.column(k) for k in self.schema.key]).distinct()
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

    @cached_property
    def _target_rows(self) -> DataFrame | None:
        """The rows of current that chunk rows may be compared with, None if current is empty or does not exist."""
        if self.current is None or self.current.files == 0:
            return None
        if self.load is not None:
            return self.load.current_rows()
        rows = delta_tables.rows(self.session, self.current)
        return rows if self._chunk_ranges is None else rows.where(self._in_ranges(self._chunk_ranges))

    def _in_ranges(self, ranges: Sequence[KeyRange], of: str | None = None) -> Column:
        return file_pruning.within(fold.column(self.schema.key[0], of), file_pruning.join_ranges(ranges))

    @cached_property
    def _chunk_ranges(self) -> list[KeyRange] | None:
        """The ranges of the chunks' keys in the key's first column; None if they are unknown or would save nothing."""
        if not self.narrows or self.few_rows or not self.keyed or not self.alive or self.sweeps:
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

    @cached_property
    def additions(self) -> DataFrame | None:
        frames = []
        if self.alive and self.keyed:
            frames.append(
                self._with_verdicts.transform(visibility.additions(self.schema.key, self.names, self._not_read))
            )
        elif self._base is not None:
            frames.append(self._computed_once(self._missing_in_history(self._base)))
        frames += list(self._swept.values())
        return reduce(DataFrame.unionByName, frames) if frames else None

    @cached_property
    def _swept(self) -> dict[str, DataFrame]:
        """Per sweep, the target's rows whose keys are in no chunk of the backfill and in no change that it did not see.

        There are none if the plan has a truncate, which already removes these rows.
        """
        if self._target_rows is None or self.truncated or not self.keyed:
            return {}
        return {sweep.backfill: self._computed_once(self._sweep(sweep, self._target_rows)) for sweep in self.sweeps}

    def _sweep(self, sweep: Sweep, rows: DataFrame) -> DataFrame:
        key = [fold.column(k) for k in self.schema.key]
        claims = [c for b in (*self.evidence, *self.batches) for c in b.claims if c.backfill == sweep.backfill]
        # There may be more claims than chunks: after a ledger was restored from an older copy, chunks are read again.
        if len(claims) < sweep.chunks:
            table = str(self.schema.table)
            raise ChunksMissing(
                table=table, backfill=sweep.backfill, chunks=counted(sweep.chunks, "chunk"), claims=len(claims)
            )
        keys = [read_chunk_rows(self.session, self.lake, self.schemas, claims).select(*key)]
        older = read_changes(self.session, self.lake, self.schemas, [b for b in self.evidence if b.files])
        keys.append(self._single(older).transform(visibility.keys_not_seen(self.schema.key, sweep)))
        keys.append(self._single(self.staged).select(*key))
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

    # --- a table without a key ----------------------------------------------------------------------------------------

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
            changes = delta_tables.rows(self.session, self.history).transform(with_defaults)
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

    # --- results of the chunks ----------------------------------------------------------------------------------------

    def chunk_results(self) -> tuple[ChunkResult, ...]:
        """One result per claim, including claims whose rows a truncate has removed."""
        counts: dict[int, dict[str, int]] = {number: {} for number in self.alive}
        lost: dict[int, int] = {}
        if self.keyed and self.alive:
            into_nothing = self._target_rows is None and not self._overlap
            rows = self._with_verdicts.where(~F.col(ALONE)) if into_nothing else self._with_verdicts
            counted = rows.groupBy(CLAIM, VERDICT).agg(F.count(F.lit(1)).alias("n"), F.count_if(LOST).alias("lost"))
            for row in counted.collect() if self._has_changes or not into_nothing else ():
                counts[row[CLAIM]][row[VERDICT]] = row["n"]
                lost[row[CLAIM]] = lost.get(row[CLAIM], 0) + row["lost"]
            if into_nothing:
                for number, claim in self.alive.items():
                    claim_counts, remaining_verdict = counts[number], INSERTED if claim.columns is None else LACKING
                    claim_counts[remaining_verdict] = (
                        claim_counts.get(remaining_verdict, 0) + claim.rows - sum(claim_counts.values())
                    )
        elif self._base is not None and self.additions is not None:
            ops = {row["_op"]: row["count"] for row in self.additions.groupBy("_op").count().collect()}
            inserted = ops.get("read", 0)
            counts[self._base] = {
                INSERTED: inserted,
                REPAIRED: ops.get("sweep", 0),
                UNCHANGED: max(0, self.alive[self._base].rows - inserted),
            }
        return tuple(self._result(n, claim, counts.get(n, {}), lost.get(n, 0)) for n, claim in enumerate(self.claims))

    def _result(self, number: int, claim: Claim, counts: dict[str, int], lost: int) -> ChunkResult:
        inserted, repaired, unchanged = (counts.get(verdict, 0) for verdict in (INSERTED, REPAIRED, UNCHANGED))
        lacking = counts.get(LACKING, 0)
        return ChunkResult(
            backfill=claim.backfill,
            chunk=claim.chunk,
            attempt=claim.attempt,
            read=claim.rows,
            inserted=inserted,
            repaired=repaired,
            unchanged=unchanged,
            overtaken=max(0, claim.rows - inserted - repaired - unchanged - lacking),
            lost_by_window=lost if self.keyed else None,
            lacking=lacking,
        )

    def swept_rows(self) -> dict[str, int]:
        """The number of rows that each backfill's sweep removes."""
        return {sweep.backfill: self._swept[sweep.backfill].count() if self._swept else 0 for sweep in self.sweeps}
