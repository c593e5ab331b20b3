"""Defines plan.json, which tells one Spark application what to apply: `MergePlan`. Pure.

A plan has no secret and nothing of Airflow (R10): only paths relative to the lake root, table definitions and LSNs.
Every attempt writes a plan of its own, so a driver that outlives its task never reads another's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from msgspec import field
from msgspec.structs import replace

from tidemark.formats.json_file import JsonFile
from tidemark.formats.manifest import Claim, Purpose, StagedFile, Sweep
from tidemark.lsn import Lsn
from tidemark.schema.table import Column, TableSchema
from tidemark.strict_json import JsonRecord


class PlannedBatch(JsonRecord, frozen=True):
    """The part of a registered batch that concerns one table: files in R1 order, and claimed chunks."""

    start_lsn: Lsn
    end_lsn: Lsn
    files: tuple[StagedFile, ...]
    unchanged: int
    moved: int
    truncates: int
    claims: tuple[Claim, ...] = ()
    sweeps: tuple[Sweep, ...] = ()

    @property
    def changes(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def rows(self) -> int:
        """The number of changes and of chunk rows."""
        return self.changes + sum(c.rows for c in self.claims)

    @property
    def may_bring_holes(self) -> bool:
        """Whether it can cause holes: unchanged values without an earlier value. The change that did not send the value
        is in this batch, or an older one that follows a row of a chunk."""
        return self.unchanged > 0 or bool(self.claims)

    def of(self, *purposes: Purpose) -> PlannedBatch:
        """The batch with the chunks and sweeps of these purposes alone."""
        return replace(
            self,
            claims=tuple(c for c in self.claims if c.purpose in purposes),
            sweeps=tuple(s for s in self.sweeps if s.purpose in purposes),
        )


class HistoryBase(JsonRecord, frozen=True):
    """The rows that a table gets before its first batch: the history of `table` below `lsn` of `generation`."""

    table: str
    generation: int
    lsn: Lsn


class PlannedTable(JsonRecord, frozen=True):
    """What a plan applies to one table. `after`: end of the last touching batch before the plan, None if there is none
    in this generation.

    - `schemas` has every version that a file of the plan follows, oldest first; the last one is the target's.
    - `evidence` are older batches in R1 order that the plan does not apply: those with changes that a chunk or a sweep
      of the plan did not see, and those that claimed the other chunks of a backfill that the plan sweeps.
    - `had_holes`: rows of current had unchanged values whose base is unknown.
    - `dropped` are columns of an older version that the last one lacks. The target keeps those that it has. If the
      number of one is known, an existing column may have its name, and has another name in the target.
    - `ahead` are columns with a default that only a later version has. If the target has one already, since a chunk
      brought it, the plan writes the default.
    - `called` maps names in the target from before the plan to the numbers of their columns at the source, where the
      target's own schema lacks them.
    - `comments` are the source's, by the numbers of the columns, the table's under 0; None if they are not known.
    - `base` is applied before everything else if the table has no position yet.
    """

    table: str
    after: Lsn | None
    schemas: tuple[TableSchema, ...]
    batches: tuple[PlannedBatch, ...]
    evidence: tuple[PlannedBatch, ...] = ()
    had_holes: bool = False
    dropped: tuple[Column, ...] = ()
    ahead: tuple[Column, ...] = ()
    called: dict[str, int] = field(default_factory=dict)
    comments: dict[int, str] | None = None
    base: HistoryBase | None = None

    @property
    def end_lsn(self) -> Lsn:
        return self.batches[-1].end_lsn

    def may_have_new_holes(self, applied: Lsn | None, without_holes: Collection[Lsn] = ()) -> bool:
        """Whether the table, if it is applied up to `applied`, may have holes from this plan that are not counted yet.
        `without_holes` are the end LSNs of batches that are known to have caused none."""
        return applied is not None and any(
            batch.may_bring_holes and batch.end_lsn <= applied and batch.end_lsn not in without_holes
            for batch in self.batches
        )

    @property
    def rows(self) -> int:
        """The number of changes and of chunk rows that the plan applies."""
        return sum(b.rows for b in self.batches)

    @property
    def rows_read(self) -> int:
        """The number of rows in all files that the plan names."""
        return self.rows + sum(b.rows for b in self.evidence)

    @property
    def changes_read(self) -> int:
        """The number of these rows that are changes."""
        return sum(b.changes for b in (*self.batches, *self.evidence))

    @property
    def files(self) -> Iterator[StagedFile]:
        """All files that the plan names, of changes and of chunks."""
        for batch in (*self.batches, *self.evidence):
            yield from batch.files
            for claim in batch.claims:
                yield from claim.files

    @property
    def bytes_read(self) -> int:
        """The size of these files."""
        return sum(file.bytes for file in self.files)


class StagedLevel(JsonRecord, frozen=True):
    """How far the pipeline was staged before the plan was put together: all its tables in `tables` were level with
    that, and those of the plan are once it is applied. `committed_at` is the latest commit time of a change below, None
    if there is none. `inexact` are tables, of both, that are not what the source was: they need a backfill, or joined
    and were not judged yet. `names` are what the source calls tables, of both, whose id is not their name; None of what
    is captured no more."""

    generation: int
    lsn: Lsn
    committed_at: str | None
    tables: tuple[str, ...]
    inexact: tuple[str, ...]
    names: dict[str, str | None] = field(default_factory=dict)


class MergePlan(JsonFile, frozen=True):
    """`lake` is the root URI that paths are relative to; `pipeline` and `generation` make up the `txnAppId` (R5). What
    the application shall note in `_positions` stands in `level`."""

    KIND: ClassVar[str] = "merge plan"
    FORMAT: ClassVar[int] = 2

    plan: str
    pipeline: str
    generation: int
    lake: str
    threads: int
    tables: tuple[PlannedTable, ...]
    level: StagedLevel | None = None

    def application_id(self, table: str, step: str) -> str:
        """Delta's `txnAppId`: it and `txnVersion`, the end LSN, come from the source and outlive any ledger."""
        return f"tidemark:{self.pipeline}:{self.generation}:{table}:{step}"
