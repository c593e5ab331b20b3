"""Reads the chunks of backfills, and the changes that they are merged with, as frames of Spark (R7).

    staged changes of the plan ── `staged`     older changes, applied before ── `_older`
    files of claimed chunks    ── `_reads`     current, pinned before        ── `_target_rows`

`spark_chunk_merge` merges them into a table with a key, `keyless_chunk_merge` into one without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.formats.manifest import Claim
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.formats.snapshot import Snapshot
from tidemark.target.chunks.chunk_input import NextBatches
from tidemark.target.delta import delta_tables
from tidemark.target.delta.delta_tables import PinnedPair, PinnedTable
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.spark import visibility
from tidemark.target.spark.spark_merge import Changes
from tidemark.target.spark.staged_changes import read_changes, read_chunk_rows
from tidemark.target.spark.visibility import INSERTED, LACKING, REPAIRED, UNCHANGED, TableTruncate


class ChunkChanges(Changes, ABC):
    """The changes and claimed chunks of the next batches, merged by Spark.

    `tables` are pinned just before these changes; history just after them if it is ahead.
    """

    def __init__(
        self,
        table: StagedTable,
        next_batches: NextBatches,
        tables: PinnedPair,
        *,
        few_rows: bool,
    ) -> None:
        super().__init__(table, next_batches.batches, tables.current, few_rows=few_rows)
        self.next_batches = next_batches
        self.history = tables.history
        self.evidence = evidence = next_batches.evidence
        self.generation = next_batches.generation
        self.claims = next_batches.claims
        self.sweeps = next_batches.sweeps
        self.moved = self.moved or any(b.moved for b in evidence)
        of_chunks = any(c.columns is not None for c in self.claims)
        self.unchanged = self.unchanged or of_chunks or any(b.unchanged for b in evidence)
        self.may_truncate = self.truncated or any(b.truncates for b in evidence)

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
                each = self._staged_of(with_truncates).where(F.col("_op") == "truncate").groupBy("_commit_lsn", "_xid")
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
        as_changes = visibility.as_changes(self._claims, self.names, self.generation, self._not_read)
        return self._chunk_rows(self.alive.values()).transform(as_changes)

    @cached_property
    def _older(self) -> DataFrame:
        """Applied changes that some chunk's snapshot may not have seen: those from the lowest xmin on."""
        staged = self._staged_of(self.evidence)
        if all(c.consistent_point is None for c in self.alive.values()):
            staged = staged.where(F.col("_xid") >= min(Snapshot.parse(c.snapshot).xmin for c in self.alive.values()))
        return staged

    @cached_property
    def _target_rows(self) -> DataFrame | None:
        """The rows of current that chunk rows may be compared with, None if current is empty or does not exist."""
        return None if self.current is None or self.current.files == 0 else self._rows_of(self.current)

    def _rows_of(self, current: PinnedTable) -> DataFrame | None:
        return delta_tables.rows(current)

    def _staged_of(self, batches: Iterable[PlannedBatch]) -> DataFrame:
        return read_changes(self.session, self.lake, self.schemas, [b for b in batches if b.files])

    def _chunk_rows(self, claims: Iterable[Claim]) -> DataFrame:
        return read_chunk_rows(self.session, self.lake, self.schemas, list(claims))

    # --- results of the chunks ----------------------------------------------------------------------------------------

    @abstractmethod
    def chunk_results(self) -> tuple[ChunkResult, ...]:
        """One result per claim, including claims whose rows a truncate has removed."""

    def _results(
        self, verdicts: Mapping[int, Mapping[str, int]], lost: Mapping[int, int] | None = None
    ) -> tuple[ChunkResult, ...]:
        """The results by the number of rows per verdict of each claim. `lost` is None if that is not counted."""
        results = []
        for number, claim in enumerate(self.claims):
            counts = verdicts.get(number, {})
            inserted, repaired, unchanged, lacking = (
                counts.get(verdict, 0) for verdict in (INSERTED, REPAIRED, UNCHANGED, LACKING)
            )
            results.append(
                ChunkResult(
                    backfill=claim.backfill,
                    chunk=claim.chunk,
                    attempt=claim.attempt,
                    read=claim.rows,
                    inserted=inserted,
                    repaired=repaired,
                    unchanged=unchanged,
                    overtaken=max(0, claim.rows - inserted - repaired - unchanged - lacking),
                    lost_by_window=None if lost is None else lost.get(number, 0),
                    lacking=lacking,
                )
            )
        return tuple(results)

    def swept_rows(self) -> dict[str, int]:
        """The number of rows that each backfill's sweep removes."""
        return {sweep.backfill: 0 for sweep in self.sweeps}
