"""Opens the backfills of purpose `verify` or `repair` that a verify's form requests, in the ledger (R7).

    fit      tables that are captured, complete and not parked, with a current and without an open backfill
    cut      a table without parts, or that doubled or changed its key's order, is cut into parts of its key's order
    choose   from a table with many parts, the share with the oldest proofs; from the other tables, a share by rows;
             nothing that was proven within the last round, unless the form names it
    open     one backfill per table, whose ranges are the parts

A table has several parts only if Spark orders the stored keys as the index does (`source.rows.key_ranges`): otherwise
an extra row of the target cannot be assigned to a part. Any other table is one part, and so is a table without a key.
Verifies that another run left open are closed: their parts have the oldest proofs and are chosen again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Any, Final

import psycopg

from tidemark.backfill import backfill_checks
from tidemark.backfill.chunk_reading import shape
from tidemark.backfill.named_tables import matching_tables, unknown_table
from tidemark.backfill.range_planning import RANGES_PER_READER, ranges_of
from tidemark.errors import (
    BackfillTablesUnknown,
    TidemarkError,
    VerifyRefused,
)
from tidemark.failpoints import reach
from tidemark.formats.manifest import KeyPart, Purpose
from tidemark.ledger.captured import tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills, proofs
from tidemark.ledger.reading.backfills import Backfill, Range
from tidemark.ledger.reading.proofs import Part, TableCut
from tidemark.ledger.staged.generations import Generation
from tidemark.run import Run
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.rows import key_ranges
from tidemark.source.rows.key_ranges import TableToRead
from tidemark.source.wal.wal_messages import make_durable
from tidemark.wording import counted

log = logging.getLogger(__name__)

# The most parts of a table.
MOST_PARTS: Final = 1000
# A table that has grown by more than this factor since it was cut is cut anew.
OUTGROWN: Final = 2
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The fields of the verify DAG's form. Without `tables`, every table that can be proven is considered. `share`
    is the share of each table's parts, and of the rows of the tables that have one part."""

    tables: tuple[str, ...] = ()
    row_filter: str | None = None
    share: Fraction = Fraction(1, 30)
    repair: bool = False
    readers: int | None = None


@dataclass(frozen=True, slots=True)
class _SourceTable:
    """A table as read at the source under its lock. `cut` is None if the form has a row filter; `ranges` is empty
    if the table has several parts."""

    captured: CapturedTable
    snapshot: str
    wanted: TableToRead
    estimated_rows: int
    cut: TableCut | None
    ranges: tuple[Range, ...]

    @property
    def table(self) -> str:
        return str(self.captured.table)


def plan_verify(
    run: Run,
    *,
    request: VerifyRequest,
) -> list[Backfill]:
    """Open the verifies that are due. Returns the run's open verifies by table; empty if nothing is due.

    Raises CaptureNotBegun, BackfillTablesUnknown, VerifyRefused or RowFilterInvalid. Then the only open verifies of the
    run are those of an earlier try.
    """
    with backfill_checks.sessions(run) as (book, source):
        return _VerifyPlanner(run, source, book, request).plan()


def neighbours_joined(parts: Iterable[Part], most: int) -> tuple[Range, ...]:
    """The ranges that read the parts. Adjacent parts are joined, so that about `most` ranges are left. A range
    costs at least one chunk, however few rows it has: a hundred ranges took half as long again as twenty."""
    in_order = sorted(parts, key=lambda part: part.part)
    longest = ceil(len(in_order) / most)
    runs: list[list[Part]] = []
    for part in in_order:
        is_next = bool(runs) and runs[-1][-1].part + 1 == part.part and len(runs[-1]) < longest
        if is_next:
            runs[-1].append(part)
        else:
            runs.append([part])
    return tuple(Range(run[0].bounds.lower, run[-1].bounds.upper) for run in runs)


class _VerifyPlanner:
    def __init__(
        self,
        run: Run,
        source: psycopg.Connection[Any],
        ledger: Ledger,
        request: VerifyRequest,
    ) -> None:
        self._config = run.config
        self._run_id = run.run_id
        self._now = run.now()
        self._source = source
        self._ledger = ledger
        self._request = request

    def plan(self) -> list[Backfill]:
        opened = backfill_checks.settled(self._config, self._source, self._ledger, self._request.tables)
        mine = {b.table for b in backfills.of_run(self._ledger, self._run_id) if b.state != "closed"}
        fit = self._fit_tables()
        if not mine:  # otherwise an earlier try has chosen
            inspected = [
                source_table for captured in fit.values() if (source_table := self._inspect(captured)) is not None
            ]
            for source_table, parts in self._chosen(inspected):
                self._open(opened, source_table, parts)
        return [b for b in backfills.of_run(self._ledger, self._run_id) if b.state == "open"]

    # --- fit ----------------------------------------------------------------------------------------------------------

    def _fit_tables(self) -> dict[str, CapturedTable]:
        """The tables that can be proven, by id. Raises VerifyRefused if a table that the form names cannot be."""
        at_source = backfill_checks.published(self._config, self._source, self._ledger)
        rows = {row.table: row for row in tables.all_of(self._ledger)}
        named = self._named(at_source)
        chosen = {table: at_source[table] for table in (at_source if named is None else named)}
        fit = {}
        for table, captured in sorted(chosen.items()):
            reason = self._unfit(captured, rows.get(table))
            if reason is None:
                fit[table] = captured
            elif named is not None:
                raise VerifyRefused(table=table, reason=reason)
            else:
                log.warning("%s is not verified: %s", table, reason)
        return fit

    def _named(self, at_source: Mapping[str, CapturedTable]) -> Iterable[str] | None:
        """The ids of the tables that the form names; None if it names none."""
        if not self._request.tables:
            if self._request.row_filter is not None:
                raise VerifyRefused(table="no table", reason="a row filter is that of tables that the form names")
            return None
        named: dict[str, None] = {}
        problems = []
        for text in self._request.tables:
            fitting = matching_tables(text, {table: captured.name for table, captured in at_source.items()})
            named.update(dict.fromkeys(fitting))
            if not fitting:
                problems.append(unknown_table(text, at_source, self._request.tables))
        if problems:
            raise BackfillTablesUnknown(pipeline=self._config.pipeline, problems=", ".join(problems))
        return named

    def _unfit(self, captured: CapturedTable, row: TableRow | None) -> str | None:
        """The reason why the table cannot be proven, half a sentence; None if it can."""
        if not captured.published or row is None or not row.life.can_be_read:
            return "the capture has not seen it join the publication"
        if row.life.is_parked:
            return "it is parked"
        if row.life.is_paused:
            return "it is paused"
        if row.life.needs_backfill:
            return f"it needs a backfill: {row.backfill_reason}"
        if backfills.open_of(self._ledger, row.table) is not None:
            return "a backfill of it is open"
        if not captured.key and captured.identity != "full":
            return "it has no replica identity, so there is no current to be proven"
        if not captured.key and self._request.row_filter is not None:
            return "it has no key, so it is read as a whole, without a row filter"
        return None

    # --- cut ----------------------------------------------------------------------------------------------------------

    def _inspect(self, captured: CapturedTable) -> _SourceTable | None:
        """Read the table under its lock; None if it is refused and the form does not name it."""
        try:
            return self._locked(captured)
        except TidemarkError as refused:
            if self._request.tables:
                raise
            log.warning("%s is not verified: %s", captured.table, refused)
            return None

    def _locked(self, captured: CapturedTable) -> _SourceTable:
        row_filter = self._request.row_filter
        with backfill_checks.locked(self._config, self._source, captured, row_filter, VerifyRefused) as locked:
            to_read = locked.to_read
            rows = key_ranges.estimated_rows(self._source, to_read)
            # With a filter too, the table is cut: its differences are recorded for the parts.
            parts = self._cut(captured, to_read, rows)
            cut = None if row_filter is not None else parts
            ranges: tuple[Range, ...] = ()
            if cut is None or len(cut.parts) == 1:  # it is read as a whole, in enough ranges for all readers
                most = min(self._most_ranges(), rows // self._config.bounds.chunk_rows)
                ranges = ranges_of(self._source, to_read, most)
        return _SourceTable(captured, locked.snapshot, to_read, rows, cut, ranges)

    def _cut(self, captured: CapturedTable, to_read: TableToRead, rows: int) -> TableCut:
        """The table's parts. It is cut anew if it was never cut, if the order of its key changed, or if it grew by
        more than OUTGROWN."""
        last_cut = proofs.cut_of(self._ledger, str(captured.table))
        few = self._config.bounds.chunk_rows
        fits = last_cut is not None and last_cut.key_order == to_read.key_order
        if last_cut is not None and fits and rows <= OUTGROWN * max(last_cut.estimated_rows, few):
            return last_cut
        bounds: list[key_ranges.Key] = []
        if to_read.key and key_ranges.is_ordered_as_stored(self._source, to_read.key, self._stored(captured)):
            bounds = key_ranges.sampled_bounds(self._source, to_read, min(MOST_PARTS, rows // few))
        parts = [KeyPart(lower, upper) for lower, upper in zip([None, *bounds], [*bounds, None], strict=True)]
        return proofs.cut(self._ledger, str(captured.table), to_read.key_order, parts, rows)

    def _stored(self, captured: CapturedTable) -> dict[str, str]:
        """The Delta type of each column."""
        versions = tables.versions(self._ledger, str(captured.table))
        schema = shape(self._source, captured, lambda _: versions[-1] if versions else None)
        return {column.name: column.target for column in schema.columns}

    def _most_ranges(self) -> int:
        return RANGES_PER_READER * (self._request.readers or self._config.bounds.readers)

    # --- choose -------------------------------------------------------------------------------------------------------

    def _chosen(self, inspected: Sequence[_SourceTable]) -> list[tuple[_SourceTable, Sequence[Part] | None]]:
        """The tables to read, each with the parts to read; None for the whole table."""
        chosen: list[tuple[_SourceTable, Sequence[Part] | None]] = []
        whole: list[tuple[datetime, _SourceTable]] = []
        for source_table in inspected:
            if source_table.cut is None:
                chosen.append((source_table, None))
            elif len(source_table.cut.parts) == 1:
                if self._is_due(source_table.cut.parts[0]):
                    whole.append((source_table.cut.parts[0].proven_at or _LONG_AGO, source_table))
            else:
                oldest_first = sorted(source_table.cut.parts, key=lambda part: (part.proven_at or _LONG_AGO, part.part))
                due = [part for part in oldest_first if self._is_due(part)]
                parts = due[: ceil(len(oldest_first) * self._request.share)]
                if parts:
                    chosen.append((source_table, None if len(parts) == len(oldest_first) else parts))
        whole.sort(key=lambda one: (one[0], one[1].table))
        budget = self._request.share * sum(
            max(1, source_table.estimated_rows)
            for source_table in inspected
            if source_table.cut is not None and len(source_table.cut.parts) == 1
        )
        for _, source_table in whole:
            if budget <= 0 and not self._request.tables:
                break
            budget -= max(1, source_table.estimated_rows)
            chosen.append((source_table, None))
        return chosen

    def _is_due(self, part: Part) -> bool:
        """Whether the part is to be read: the form names its table, the share is all, it has no proof, or its proof is
        older than a round of daily runs. A round is shortened by half a day, because daily runs do not start at exactly
        the same time."""
        if self._request.tables or self._request.share == 1 or part.proven_at is None:
            return True
        return self._now - part.proven_at > timedelta(days=float(1 / self._request.share) - 0.5)

    # --- open ---------------------------------------------------------------------------------------------------------

    def _open(self, opened: Generation, source_table: _SourceTable, parts: Sequence[Part] | None) -> None:
        """Open a verify of these parts. The table's snapshot is taken before the first chunk, and may be older than
        a part needs."""
        wal_point = make_durable(self._source)
        purpose: Purpose = "repair" if self._request.repair else "verify"
        ranges = source_table.ranges
        if parts is not None:
            ranges = neighbours_joined(parts, self._most_ranges())
        elif source_table.cut is not None and len(source_table.cut.parts) > 1:
            ranges = neighbours_joined(source_table.cut.parts, self._most_ranges())
        rows = source_table.estimated_rows if parts is None else sum(part.estimated_rows for part in parts)
        verify = Backfill(
            pipeline=self._config.pipeline,
            backfill=backfill_checks.new_id(self._now),
            table=source_table.table,
            generation=opened.number,
            mode="chunks",
            row_filter=self._request.row_filter,
            chunk_rows=self._config.bounds.chunk_rows,
            run_id=self._run_id,
            snapshot=source_table.snapshot,
            timeline=wal_point.timeline,
            snapshot_lsn=wal_point.lsn,
            estimated_rows=rows,
            sweeps=bool(source_table.captured.key) and self._request.row_filter is None,
            key_order=source_table.wanted.key_order,
            purpose=purpose,
            parts=None if parts is None else tuple(part.bounds for part in parts),
        )
        reach("plan.before_open")
        with self._ledger.transaction():
            left = backfills.open_of(self._ledger, source_table.table, verifies=True)
            if left is not None:
                backfills.close(self._ledger, left.backfill, f"run {self._run_id} begins anew")
            created = backfills.create(self._ledger, verify, ranges)
        if not created:
            raise backfill_checks.generation_ended(self._config, verify.table)
        reach("plan.after_open")
        extent = (
            counted(len(ranges), "range")
            if parts is None or source_table.cut is None
            else (f"{len(parts)} of {counted(len(source_table.cut.parts), 'part')}")
        )
        log.info("Verify %s of %s: about %s in %s", verify.backfill, source_table.table, counted(rows, "row"), extent)
