"""Reads the ledger's rows of one pipeline as records, at one moment, for `tidemark status`, assets and the page.

Nothing here reads the source: `confirmed_lsn` is the value at the last confirmation, and lag is relative to the staged
LSN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidemark.formats.manifest import Purpose
from tidemark.ledger import leases
from tidemark.ledger.captured import (
    definition_changes,
    put_aside,
    relation_ids,
    replays,
    successors,
    table_errors,
    tables,
    unfit_values,
)
from tidemark.ledger.captured.definition_changes import DefinitionChange
from tidemark.ledger.captured.put_aside import PutAside
from tidemark.ledger.captured.table_errors import TableErrors
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations import runs, table_sizes
from tidemark.ledger.observations.runs import FailedRun
from tidemark.ledger.observations.table_sizes import DeltaTable
from tidemark.ledger.reading import backfill_progress, backfills, chunks, proofs
from tidemark.ledger.reading.backfill_progress import Progress
from tidemark.ledger.reading.proofs import Verified
from tidemark.ledger.retention import retirement
from tidemark.ledger.retention.retirement import LastMaintenance
from tidemark.ledger.staged import applied_positions, generations, positions, unapplied_changes
from tidemark.ledger.staged.generations import Generation
from tidemark.ledger.staged.unapplied_changes import Backlog
from tidemark.lsn import Lsn
from tidemark.names import TableName

NEWEST_CHANGES: Final = 10


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table. `applied_lsn` is how far it counts as applied; `backlog` is what is staged and not applied, None
    where that is nothing; `lag_bytes` is WAL between applied and staged, 0 for a table that is level. `verified` is
    how far it is proven, None if it never was; `unfit` counts by column the values that did not fit. `delta` are
    its Delta tables as the last maintenance saw them. `beside` is the table that readers see in its stead, while it
    is built in another shape or, `is_replayed`, from staging. `unreadable` is why its last backfill could not be
    read, while nothing starts another. `at_source` is what the source calls the table now, or called it last."""

    row: TableRow
    history_lsn: Lsn | None
    current_lsn: Lsn | None
    applied_lsn: Lsn
    lag_bytes: int
    backlog: Backlog | None
    verified: Verified | None = None
    unfit: dict[str, int] = field(default_factory=dict)
    delta: tuple[DeltaTable, ...] = ()
    beside: str | None = None
    is_replayed: bool = False
    unreadable: str | None = None
    at_source: TableName | None = None

    @property
    def called(self) -> TableName:
        """The table's name at the source; without a relation, the name in its id."""
        return self.at_source or TableName.parse(self.table).at_source

    @property
    def differences(self) -> str:
        """The differences that a verify found and nobody repaired, in words."""
        return "" if self.verified is None else "; ".join(self.verified.differing)

    @property
    def table(self) -> str:
        return self.row.table

    @property
    def waiting_batches(self) -> int:
        return 0 if self.backlog is None else self.backlog.batches

    @property
    def waiting_changes(self) -> int:
        return 0 if self.backlog is None else self.backlog.changes

    @property
    def waiting_bytes(self) -> int:
        return 0 if self.backlog is None else self.backlog.bytes

    @property
    def waiting_since(self) -> datetime | None:
        return None if self.backlog is None else self.backlog.since


@dataclass(frozen=True, slots=True)
class OpenBackfill:
    """How far an open backfill, or a verify by its `purpose`, is, since when it is open, who reads it (None: nobody),
    and the numbers of the ranges that are filled."""

    purpose: Purpose
    progress: Progress
    opened_at: datetime
    active_at: datetime
    read_by: str | None
    filled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """`confirmable_lsn` and `held_back_by` are what the next confirmation will use. `leases` has who holds
    each. What had committed at the source by `level_at`, and by the heartbeat, is staged."""

    pipeline: str
    generation: Generation
    confirmable_lsn: Lsn
    held_back_by: dict[str, Lsn]
    batches: int
    last_committed_at: datetime | None
    tables: tuple[TableStatus, ...]
    leases: dict[str, str]
    backfills: tuple[OpenBackfill, ...]
    table_errors: tuple[TableErrors, ...]
    maintenance: LastMaintenance | None
    level_at: datetime | None = None
    definition_changes: tuple[DefinitionChange, ...] = ()
    put_aside: tuple[PutAside, ...] = ()
    failed_runs: tuple[FailedRun, ...] = ()

    @property
    def level_through(self) -> datetime:
        """The time up to which every captured change that committed at the source is staged."""
        return max(filter(None, (self.generation.heartbeat_at, self.generation.opened_at, self.level_at)))


def read(ledger: Ledger) -> PipelineStatus | None:
    """The pipeline's status; None before its first generation was opened."""
    with ledger.transaction():
        ledger.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        generation = generations.current(ledger)
        if generation is None:
            return None
        row = ledger.row(
            "SELECT sum(batches)::bigint FROM tidemark.generations WHERE pipeline = %s", (ledger.pipeline,)
        )
        return PipelineStatus(
            pipeline=ledger.pipeline,
            generation=generation,
            confirmable_lsn=applied_positions.confirmable(ledger),
            held_back_by=applied_positions.held_back_by(ledger),
            batches=row[0],
            last_committed_at=generation.last_committed_at,
            tables=_tables(ledger, generation),
            leases=leases.holders(ledger),
            backfills=_backfills(ledger),
            maintenance=retirement.last(ledger),
            level_at=runs.level_at(ledger),
            table_errors=tuple(table_errors.all_of(ledger)),
            definition_changes=definition_changes.newest(ledger, NEWEST_CHANGES),
            put_aside=put_aside.all_of(ledger),
            failed_runs=tuple(runs.failed(ledger)),
        )


def _tables(ledger: Ledger, generation: Generation) -> tuple[TableStatus, ...]:
    applied = applied_positions.applied(ledger)
    table_positions = positions.all_of(ledger, generation.number)
    waiting = unapplied_changes.all_of(ledger)
    proven = proofs.verified(ledger)
    unfit = unfit_values.all_of(ledger)
    delta = table_sizes.all_of(ledger)
    besides = {table: one.beside for table, one in successors.all_of(ledger).items() if one.placed_at is None}
    replayed = set(replays.unplaced(ledger).values())
    unreadable = backfills.unreadable(ledger)
    called = relation_ids.names(ledger)
    statuses = []
    for row in tables.all_of(ledger):
        if not row.life.is_listed:
            continue
        position = table_positions.get(row.table)
        statuses.append(
            TableStatus(
                row=row,
                history_lsn=None if position is None else position.history_lsn,
                current_lsn=None if position is None else position.current_lsn,
                applied_lsn=applied[row.table],
                lag_bytes=generation.staged_lsn - applied[row.table],
                backlog=waiting.get(row.table),
                verified=proven.get(row.table),
                unfit=unfit.get(row.table, {}),
                delta=delta.get(row.table, ()),
                beside=besides.get(row.table),
                is_replayed=row.table in replayed,
                unreadable=unreadable.get(row.table),
                at_source=called.get(row.table),
            )
        )
    return tuple(statuses)


def _backfills(ledger: Ledger) -> tuple[OpenBackfill, ...]:
    by_id = {b.backfill: b for b in backfills.all_open(ledger)}
    open_backfills = []
    for progress in backfill_progress.progress(ledger):
        backfill = by_id[progress.backfill]
        assert backfill.opened_at is not None
        assert backfill.active_at is not None
        open_backfills.append(
            OpenBackfill(
                purpose=backfill.purpose,
                progress=progress,
                opened_at=backfill.opened_at,
                active_at=backfill.active_at,
                read_by=_reader(ledger, progress.backfill),
                filled=tuple(backfill_progress.filled(ledger, progress.backfill)),
            )
        )
    return tuple(open_backfills)


def _reader(ledger: Ledger, backfill: str) -> str | None:
    lease = chunks.live_reader(ledger, backfill)
    return None if lease is None else lease[0]
