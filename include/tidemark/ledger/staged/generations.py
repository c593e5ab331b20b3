"""Stores the generations of a pipeline's slot: rows of `generations`; the one with the highest number is open.

`capture.continuity.generation` judges the slot and opens generations; this module only stores them. `staged_lsn` is the
end of the chain of batches, and only `batches.register` moves it (R4). If changes may be missing before a new
generation, the same transaction marks the pipeline's tables as needing a backfill and records the error to raise once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidemark.errors import GenerationMissing, TidemarkError
from tidemark.formats.error_record import ErrorFacts
from tidemark.formats.generation_file import GenerationFile
from tidemark.ledger import migrations
from tidemark.ledger.captured import backfill_marks, joins, tables
from tidemark.ledger.captured.table_lives import step
from tidemark.ledger.connection import Ledger, fields_of, open_ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.reading import backfills, chunks
from tidemark.lsn import Lsn, WalPoint
from tidemark.wording import counted

_COLUMNS = (
    "number, system_identifier, timeline, slot, start_lsn, staged_lsn, confirmed_lsn, heartbeat_lsn, heartbeat_at, "
    "opened_at, reason, history, source_started_at, last_committed_at"
)


@dataclass(frozen=True, slots=True)
class Generation:
    """One life of the slot. `confirmed_lsn` was last read back from the source and may be out of date. `history` is
    that of the timeline (`source.wal.timelines`). `source_started_at` is the start of the server whose WAL was last
    verified as the staged one; None if it was not. `last_committed_at` is the latest commit time of a staged
    change."""

    number: int
    system_identifier: str
    timeline: int
    slot: str
    start_lsn: Lsn
    staged_lsn: Lsn
    confirmed_lsn: Lsn | None
    heartbeat_lsn: Lsn | None
    heartbeat_at: datetime | None
    opened_at: datetime
    reason: str
    history: str | None = None
    source_started_at: str | None = None
    last_committed_at: datetime | None = None


def has_begun(conninfo: str, pipeline: str) -> bool:
    """Whether a capture of the pipeline has ever run; before that its ledger may lack a schema."""
    with open_ledger(conninfo, pipeline) as ledger:
        return migrations.version(ledger.connection) is not None and current(ledger) is not None


def current(ledger: Ledger) -> Generation | None:
    """The open generation; None before the pipeline's first run."""
    query = f"SELECT {_COLUMNS} FROM tidemark.generations WHERE pipeline = %s ORDER BY number DESC LIMIT 1"
    return next(iter(ledger.records(class_row(Generation), query.encode(), (ledger.pipeline,))), None)


def all_of(ledger: Ledger) -> list[Generation]:
    """All generations, the oldest first."""
    query = f"SELECT {_COLUMNS} FROM tidemark.generations WHERE pipeline = %s ORDER BY number"
    return ledger.records(class_row(Generation), query.encode(), (ledger.pipeline,))


def required(ledger: Ledger) -> Generation:
    """The open generation. Raises `GenerationMissing` before the pipeline's first run."""
    generation = current(ledger)
    if generation is None:
        raise GenerationMissing(pipeline=ledger.pipeline)
    return generation


def open_generation(ledger: Ledger, lease: Lease, opening: GenerationFile) -> Generation:
    """Open the generation that a written generation.json describes; its number must be above every other's.

    With a `backfill_kind` every table of the pipeline is marked as needing a backfill for the same reason, and its join
    is judged anew: what was in flight when the new slot was made is in no stream. If the opening names its `tables`,
    that is so of those alone. Behind a fork the generation goes on from the point
    where the source left what was staged, by a slot that has all from there: then its `tables` are marked, and tables
    that joined above that point. The error is kept until `take_error` hands it out, once. Needs the lease `slot`.
    """
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.insert("pipelines", or_nothing=True)
        # Opening a backfill shares this row: it ends before the backfills are closed below, or sees this generation.
        ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR UPDATE", (lease.pipeline,))
        newest = current(ledger)
        if newest is not None and newest.number >= opening.number:
            raise ValueError(f"generation {opening.number} is not above the open one, {newest.number}")
        ledger.insert(
            "generations",
            **fields_of(opening, "number system_identifier timeline slot start_lsn reason history"),
            staged_lsn=opening.start_lsn,
            opened_by=lease.holder,
            error=None if opening.error is None else Jsonb(opening.error.to_json()),
        )
        backfills.close_older(ledger, opening.number)
        if opening.tables is not None and opening.backfill_kind != backfill_marks.GAP:
            _mark_lost(ledger, opening)
        elif opening.backfill_kind is not None:
            marked = [
                row.table for row in tables.all_of(ledger) if opening.tables is None or row.table in opening.tables
            ]
            with (
                step(ledger, "capture", "judge_anew", marked),
                step(ledger, "target", "need_backfill", marked),
            ):
                ledger.execute(
                    """
                    UPDATE tidemark.tables
                       SET needs_backfill = true, backfill_kind = %s, backfill_reason = %s,
                           backfill_since = clock_timestamp(), marks = marks + 1, join_horizon = NULL,
                           lost_keys = NULL, columns_in_doubt = NULL
                     WHERE pipeline = %s AND "table" = ANY(%s)
                    """,
                    (opening.backfill_kind, opening.reason, lease.pipeline, marked),
                )
        return required(ledger)


def _mark_lost(ledger: Ledger, opening: GenerationFile) -> None:
    """Mark the tables whose changes the source lost.

    Tables that joined above the fork point are marked too: their changes from before the join are not staged, so lost
    ones among them are unknown.
    """
    for table, keys in sorted((opening.tables or {}).items()):
        rows = "any of its rows" if keys is None else counted(len(keys), "row")
        backfill_marks.mark_lost(ledger, table, f"the source lost changes of {rows}: {opening.reason}", keys)
    for table in joins.lost_joins(ledger, opening.timeline, opening.start_lsn):
        joins.judge_anew(ledger, table, opening.reason)
        backfill_marks.mark_lost(ledger, table, opening.reason, None)


@dataclass(frozen=True, slots=True)
class FollowedPromotion:
    """The consequences of a promotion: tables whose join is judged anew, backfills that begin anew, and the number
    of chunks that are read again."""

    tables: tuple[str, ...]
    backfills: tuple[str, ...]
    chunks: int


def follow(
    ledger: Ledger, lease: Lease, generation: int, *, left_lsn: Lsn, snapshot: str, seen_at: WalPoint
) -> FollowedPromotion:
    """Go on, on the timeline of `seen_at`, which left the generation's own at `left_lsn`. Needs the lease `slot`.

    What was kept of the part that was lost is evidence of nothing (R7): its transactions are in no history, and their
    ids are given out again. So a chunk that was read above `left_lsn` and not claimed is rejected and read again; a
    backfill whose own snapshot was taken there has none of its chunks claimed, takes `snapshot` instead, of now, and so
    begins anew; a join that was judged there is judged anew, and the table's open backfill is closed. All that lies
    below is in both histories and stays. What was claimed does: its watermark is staged, so it lies below.
    """
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR UPDATE", (lease.pipeline,))
        ledger.execute(
            "UPDATE tidemark.generations SET timeline = %s, history = NULL WHERE pipeline = %s AND number = %s",
            (seen_at.timeline, lease.pipeline, generation),
        )
        rejoining = joins.lost_joins(ledger, seen_at.timeline, left_lsn)
        for table in rejoining:
            joins.judge_anew(ledger, table, "the promotion of a standby lost when it was captured")
        rejected = chunks.reject_lost(ledger, seen_at.timeline, left_lsn)
        begun = backfills.follow(ledger, left_lsn, snapshot, seen_at)
    return FollowedPromotion(tuple(rejoining), tuple(begun), rejected)


def take_error(ledger: Ledger, lease: Lease) -> TidemarkError | None:
    """The error with which the open generation began, if no run has raised it yet. It is recorded as raised before
    it returns, so one run fails with it and the next goes on. Needs the lease `slot`."""
    with ledger.transaction():
        lease.check(ledger, SLOT)
        row = ledger.execute(
            """
            UPDATE tidemark.generations SET error_raised_at = clock_timestamp()
             WHERE pipeline = %s AND error IS NOT NULL AND error_raised_at IS NULL
               AND number = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %s)
            RETURNING error
            """,
            (lease.pipeline, lease.pipeline),
        ).fetchone()
    return None if row is None else TidemarkError.from_facts(ErrorFacts.from_json(row[0]))


def note_source(
    ledger: Ledger,
    lease: Lease,
    generation: int,
    **seen: str | Lsn,
) -> None:
    """Record facts of the source: `confirmed_lsn`, read back from the slot; `slot`, a new name; `history`, that of
    its timeline; `source_started_at`. Needs the lease `slot`."""
    columns = ("confirmed_lsn", "slot", "history", "source_started_at")
    if not set(seen) <= set(columns):
        raise TypeError(f"a generation does not keep {sorted(set(seen) - set(columns))}")
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.execute(
            """
            UPDATE tidemark.generations
               SET confirmed_lsn = coalesce(%s::pg_lsn, confirmed_lsn), slot = coalesce(%s, slot),
                   history = coalesce(%s, history), source_started_at = coalesce(%s, source_started_at)
             WHERE pipeline = %s AND number = %s
            """,
            (*(seen.get(column) for column in columns), lease.pipeline, generation),
        )
