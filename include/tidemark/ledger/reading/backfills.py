"""Stores the backfill of each table and how it ended: rows of `backfills`.

    create ──► open ──the batch of its last claim is applied──► applied
                 └──replaced, idle, its table leaves or cannot be read,
                        a new generation opens──► closed, with the reason

A backfill has one table. A table has at most one open backfill, and one open verify (`proofs`), which is a backfill
whose chunks are compared. `chunks` stores the chunks. The backfill's row is the lock for its ranges and chunks: to
record, claim or reject a chunk, or to end the backfill, a transaction locks this row first. So one transaction at a
time decides whether the backfill is open and complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidemark.errors import JoinHorizonAhead, SnapshotBeforeCleanUp
from tidemark.formats.manifest import KeyPart, Purpose
from tidemark.formats.snapshot import Snapshot
from tidemark.ledger.captured import backfill_marks, tables, unfit_values
from tidemark.ledger.connection import Ledger, fields_of
from tidemark.ledger.leases import of_range
from tidemark.lsn import Lsn, WalPoint

Mode = Literal["chunks", "exported_snapshot", "keys"]
State = Literal["open", "applied", "closed"]

Key = tuple[str, ...]
# `source.rows.key_ranges.KeyOrder`
KeyOrder = list[list[str | bool | None]]

_COLUMNS: Final = (
    'pipeline, backfill, "table", generation, mode, row_filter, chunk_rows, run_id, snapshot, timeline, '
    "snapshot_lsn, estimated_rows, sweeps, key_order, purpose, parts, columns, state, state_reason, "
    "opened_at, active_at, ended_at, swept, complete_lsn, marks"
)


@dataclass(frozen=True, slots=True)
class Backfill:
    """One table's backfill. `table` is the table's id. The ledger's migrations 0002, 0010 and 0028 explain the
    columns.

    `create` takes the fields up to `columns`; the ledger fills in the others.
    """

    pipeline: str
    backfill: str
    table: str
    generation: int
    mode: Mode
    row_filter: str | None
    chunk_rows: int
    run_id: str
    snapshot: str
    timeline: int
    snapshot_lsn: Lsn | None
    estimated_rows: int
    sweeps: bool
    key_order: KeyOrder = field(default_factory=list)
    purpose: Purpose = "fill"
    parts: tuple[KeyPart, ...] | None = None
    columns: tuple[int, ...] | None = None
    state: State = "open"
    state_reason: str | None = None
    opened_at: datetime | None = None
    active_at: datetime | None = None
    ended_at: datetime | None = None
    swept: int | None = None
    complete_lsn: Lsn | None = None
    marks: int = 0

    @property
    def whole_table(self) -> bool:
        """Whether all rows are read with all columns."""
        return self.reads_all_rows and self.columns is None

    @property
    def reads_all_rows(self) -> bool:
        """Whether every row of the table is read, rather than the rows of a filter, of chosen keys, or of some
        parts."""
        return self.row_filter is None and self.mode != "keys" and self.parts is None

    @property
    def reads_lost_keys(self) -> bool:
        """Whether the backfill reads the keys whose changes the source lost. No other backfill of chosen keys
        sweeps."""
        return self.mode == "keys" and self.sweeps and self.purpose == "fill"


@dataclass(frozen=True, slots=True)
class Range:
    """A range of the key's order, `(lower, upper]`, None for no bound; or the `keys` to read instead, each as
    texts. `cursor` is the last key that was read, None before the first chunk. `next_chunk` is the number of the
    next chunk.

    `create` takes the fields up to `keys`; the ledger fills in the others.
    """

    lower: Key | None = None
    upper: Key | None = None
    keys: tuple[Key, ...] | None = None
    backfill: str = ""
    range: int = 0
    cursor: Key | None = None
    next_chunk: int = 1
    done: bool = False

    @property
    def chunk(self) -> str:
        """The id of the next chunk."""
        return f"{self.range}-{self.next_chunk}"

    @property
    def lease(self) -> str:
        """The name of the lease that its reader holds."""
        return of_range(self.backfill, self.range)


def open_of(ledger: Ledger, table: str, *, verifies: bool = False) -> Backfill | None:
    """The table's open backfill, or its open verify; None without one."""
    condition = """pipeline = %s AND "table" = %s AND state = 'open' AND (purpose <> 'fill') = %s"""
    opened = _select(ledger, condition, (ledger.pipeline, table, verifies))
    return opened[0] if opened else None


def close_of(ledger: Ledger, table: str, reason: str) -> None:
    """Close the table's open backfill and its open verify (`close`)."""
    for backfill in (open_of(ledger, table), open_of(ledger, table, verifies=True)):
        if backfill is not None:
            close(ledger, backfill.backfill, reason)


def one(ledger: Ledger, backfill: str) -> Backfill | None:
    """The backfill with this id, in any state; None without one."""
    of_this_id = _select(ledger, "pipeline = %s AND backfill = %s", (ledger.pipeline, backfill))
    return of_this_id[0] if of_this_id else None


def of_run(ledger: Ledger, run_id: str) -> list[Backfill]:
    """The backfills that this DAG run reads or has read, in any state, by table."""
    return _select(ledger, "pipeline = %s AND run_id = %s", (ledger.pipeline, run_id))


def open_tables_of(ledger: Ledger, run_id: str) -> dict[str, bool]:
    """The tables of the run's open backfills and verifies, in order, each with whether all of its ranges are read."""
    rows = ledger.execute(
        """
        SELECT b."table", coalesce(bool_and(r.done), true)
          FROM tidemark.backfills b LEFT JOIN tidemark.ranges r USING (pipeline, backfill)
         WHERE b.pipeline = %s AND b.run_id = %s AND b.state = 'open' GROUP BY b."table" ORDER BY b."table"
        """,
        (ledger.pipeline, run_id),
    )
    return dict(rows.fetchall())


def all_open(ledger: Ledger) -> list[Backfill]:
    """Every open backfill and verify of the pipeline, by table."""
    return _select(ledger, "pipeline = %s AND state = 'open'", (ledger.pipeline,))


def tables_tried_within(ledger: Ledger, seconds: float) -> set[str]:
    """The tables with a backfill that was begun, adopted or read in the last `seconds`. Later times than now, as
    after the ledger's clock was set back, do not count."""
    rows = ledger.execute(
        'SELECT DISTINCT "table" FROM tidemark.backfills '
        "WHERE pipeline = %s AND purpose = 'fill' "
        "AND active_at BETWEEN clock_timestamp() - make_interval(secs => %s) AND clock_timestamp()",
        (ledger.pipeline, seconds),
    )
    return {table for (table,) in rows}


def _select(ledger: Ledger, condition: str, values: tuple[Any, ...]) -> list[Backfill]:
    query = f'SELECT {_COLUMNS} FROM tidemark.backfills b WHERE {condition} ORDER BY "table", opened_at, backfill'
    selected = ledger.records(class_row(Backfill), query.encode(), values)
    # The ledger stores parts as JSON.
    parts: list[Any] = [b.parts for b in selected]
    return [
        replace(
            b,
            parts=None if raw is None else tuple(KeyPart.from_json(part) for part in raw),
            columns=None if b.columns is None else tuple(b.columns),
        )
        for b, raw in zip(selected, parts, strict=True)
    ]


def create(ledger: Ledger, backfill: Backfill, ranges: Sequence[Range]) -> bool:
    """Open the backfill with its ranges, numbered from 1. There must be at least one. Returns False and writes
    nothing if the table has an open one by now, or if the backfill's generation and timeline are not the open ones.

    Raises `SnapshotBeforeCleanUp` if staging was retired after the backfill's snapshot was taken, and
    `JoinHorizonAhead` if the table joined or was marked after it and the snapshot lacks a transaction from before that.
    """
    if not ranges:
        raise ValueError(f"backfill {backfill.backfill} of {backfill.table} has no range to read")
    with ledger.transaction():
        # Opening a generation locks this row too, and closes the open backfills. So it closes this one, or this
        # transaction reads the new generation. Retiring staging also locks it: it keeps what this backfill needs, or
        # this transaction reads `retired_xid` and does not depend on what is removed (R7).
        ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR KEY SHARE", (backfill.pipeline,))
        row = ledger.execute(
            """
            SELECT timeline, retired_xid FROM tidemark.generations
             WHERE pipeline = %(pipeline)s AND number = %(number)s
               AND number = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
            """,
            {"number": backfill.generation},
        ).fetchone()
        if row is None or row[0] != backfill.timeline:
            return False
        # Every retired transaction must be visible to the backfill's snapshot. Then it is visible to those of all its
        # chunks.
        xmin, retired_xid = Snapshot.parse(backfill.snapshot).xmin, row[1]
        if retired_xid is not None and xmin <= retired_xid:
            raise SnapshotBeforeCleanUp(table=backfill.table, xmin=xmin, xid=retired_xid)
        marked = tables.one(ledger, backfill.table)
        horizon = 0 if marked is None else marked.join_horizon or 0
        if backfill.purpose == "fill" and xmin < horizon:
            raise JoinHorizonAhead(table=backfill.table, xmin=xmin, horizon=horizon)
        opened = ledger.insert(
            "backfills",
            or_nothing=True,
            **fields_of(backfill, "backfill table generation mode row_filter chunk_rows run_id snapshot timeline"),
            **fields_of(backfill, "snapshot_lsn estimated_rows sweeps purpose"),
            key_order=Jsonb(backfill.key_order),
            parts=None if backfill.parts is None else Jsonb([part.to_json() for part in backfill.parts]),
            columns=None if backfill.columns is None else list(backfill.columns),
            marks=0 if marked is None else marked.marks,
        )
        if not opened:
            return False
        add_ranges(ledger, backfill.backfill, ranges)
    return True


def add_ranges(ledger: Ledger, backfill: str, ranges: Iterable[Range]) -> None:
    """Add ranges to the backfill. The caller has locked its row, or created it in this transaction."""
    for key_range in ranges:
        ledger.execute(
            """
            INSERT INTO tidemark.ranges (pipeline, backfill, range, lower, upper, keys)
            SELECT %(pipeline)s, %(backfill)s, 1 + coalesce(max(range), 0), %(lower)s, %(upper)s, %(keys)s
              FROM tidemark.ranges WHERE pipeline = %(pipeline)s AND backfill = %(backfill)s
            """,
            {
                "backfill": backfill,
                "lower": None if key_range.lower is None else list(key_range.lower),
                "upper": None if key_range.upper is None else list(key_range.upper),
                "keys": None if key_range.keys is None else Jsonb([list(key) for key in key_range.keys]),
            },
        )


def adopt(ledger: Ledger, backfill: str, run_id: str) -> bool:
    """Assign the backfill to another DAG run, which continues it. False if the backfill is no longer open."""
    return ledger.wrote_one(
        "UPDATE tidemark.backfills SET run_id = %s, active_at = clock_timestamp() "
        "WHERE pipeline = %s AND backfill = %s AND state = 'open'",
        (run_id, ledger.pipeline, backfill),
    )


def close(ledger: Ledger, backfill: str, reason: str, *, unreadable: bool = False) -> bool:
    """End the backfill before it is applied. Batches staged from now on claim none of its chunks; claimed chunks
    are still merged. `reason` is a sentence for people. `unreadable`: another backfill would end the same way.
    False if the backfill is no longer open."""
    with ledger.transaction():
        ended = _end(ledger, backfill, state="closed", reason=reason, complete_lsn=None)
        if ended and unreadable:
            ledger.execute(
                """
                UPDATE tidemark.backfills b SET unreadable = true, marks = t.marks FROM tidemark.tables t
                 WHERE t.pipeline = b.pipeline AND t."table" = b."table" AND b.pipeline = %s AND b.backfill = %s
                """,
                (ledger.pipeline, backfill),
            )
        return ended


def unreadable(ledger: Ledger) -> dict[str, str]:
    """The tables whose last backfill ended because PostgreSQL could not read them, with the reason. A table that
    was marked since is left out."""
    rows = ledger.execute(
        """
        SELECT b."table", b.state_reason FROM tidemark.backfills b
          JOIN tidemark.tables t ON t.pipeline = b.pipeline AND t."table" = b."table" AND t.marks = b.marks
         WHERE b.pipeline = %s AND b.unreadable
           AND NOT EXISTS (SELECT FROM tidemark.backfills later
                            WHERE later.pipeline = b.pipeline AND later."table" = b."table" AND later.purpose = 'fill'
                              AND (later.opened_at, later.backfill) > (b.opened_at, b.backfill))
        """,
        (ledger.pipeline,),
    )
    return dict(rows.fetchall())


def _end(
    ledger: Ledger,
    backfill: str,
    *,
    state: State,
    reason: str | None,
    complete_lsn: Lsn | None,
) -> bool:
    """End the backfill if it is open, and mark the table's holes, because it no longer fills them. Locks the
    table's row first, like every other writer."""
    row = one(ledger, backfill)
    if row is None:
        return False
    tables.lock(ledger, [row.table])
    ended = ledger.execute(
        """
        UPDATE tidemark.backfills
           SET state = %s, state_reason = %s, complete_lsn = %s, ended_at = clock_timestamp()
         WHERE pipeline = %s AND backfill = %s AND state = 'open'
        """,
        (state, reason, complete_lsn, ledger.pipeline, backfill),
    ).rowcount
    if ended == 1:
        backfill_marks.mark_holes(ledger, row.table)
    return ended == 1


def close_idle(ledger: Ledger, idle_s: float) -> list[Backfill]:
    """Close the open backfills that have unread ranges and were not worked on for `idle_s`; returns them. A
    backfill that is read completely is kept, because it only waits for a drain or a merge."""
    idle = _select(
        ledger,
        """
        pipeline = %s AND state = 'open' AND active_at < clock_timestamp() - make_interval(secs => %s)
        AND EXISTS (SELECT 1 FROM tidemark.ranges r
                     WHERE r.pipeline = b.pipeline AND r.backfill = b.backfill AND NOT r.done)
        AND NOT EXISTS (SELECT 1 FROM tidemark.leases l
                         WHERE l.pipeline = b.pipeline AND starts_with(l.name, 'range:' || b.backfill || ':')
                           AND l.expires_at >= clock_timestamp())
        """,
        (ledger.pipeline, idle_s),
    )
    reason = "nobody read on since {:%Y-%m-%d %H:%M:%S} UTC"
    closed = [b.backfill for b in idle if close(ledger, b.backfill, reason.format(_utc(b.active_at)))]
    return _select(ledger, "pipeline = %s AND backfill = ANY(%s)", (ledger.pipeline, closed))


def _utc(moment: datetime | None) -> datetime:
    assert moment is not None
    return moment.astimezone(UTC)


def close_older(ledger: Ledger, generation: int) -> None:
    """Close the open backfills of older generations: their snapshots can only be compared with transaction ids of
    their own generation. Called in the transaction that opens the generation."""
    ledger.execute(
        """
        UPDATE tidemark.backfills
           SET state = 'closed', ended_at = clock_timestamp(), state_reason = %s
         WHERE pipeline = %s AND generation < %s AND state = 'open'
        """,
        (f"generation {generation} was opened", ledger.pipeline, generation),
    )


def follow(ledger: Ledger, left_lsn: Lsn, snapshot: str, seen_at: WalPoint) -> list[str]:
    """Move the open backfills to the timeline of `seen_at`. A backfill whose snapshot is above `left_lsn`, where
    the earlier timeline was left, gets `snapshot`; returns the tables of these.

    Such a backfill has no claimed chunk: a claimed chunk was read after the backfill's snapshot and is below that
    point. Each row is updated, so that a reader that records a chunk of the earlier timeline finds the new one.
    """
    rows = ledger.execute(
        """
        UPDATE tidemark.backfills b
           SET timeline = %(timeline)s,
               snapshot = CASE WHEN lost.is_lost THEN %(snapshot)s ELSE snapshot END,
               snapshot_lsn = CASE WHEN lost.is_lost THEN %(lsn)s ELSE snapshot_lsn END
          FROM (SELECT backfill, snapshot_lsn IS NULL OR snapshot_lsn > %(left)s AS is_lost FROM tidemark.backfills
                 WHERE pipeline = %(pipeline)s AND state = 'open' ORDER BY backfill FOR UPDATE) lost
         WHERE b.pipeline = %(pipeline)s AND b.backfill = lost.backfill AND b.timeline <> %(timeline)s
        RETURNING b."table", lost.is_lost
        """,
        {
            "timeline": seen_at.timeline,
            "snapshot": snapshot,
            "lsn": seen_at.lsn,
            "left": left_lsn,
        },
    ).fetchall()
    return sorted(table for table, is_lost in rows if is_lost)


def keep_swept(ledger: Ledger, swept: Mapping[str, int]) -> None:
    """Store how many rows a plan swept, per backfill. The count is replaced and never added, since a plan may be
    repeated."""
    for backfill, count in sorted(swept.items()):
        ledger.execute(
            "UPDATE tidemark.backfills SET swept = %s WHERE pipeline = %s AND backfill = %s",
            (count, ledger.pipeline, backfill),
        )


def complete(
    ledger: Ledger, generation: int, table: str, applied_lsn: Lsn | None, *, verifies: bool = False
) -> Backfill | None:
    """End the table's open backfill, or its open verify, if all of it is read, claimed and, according to
    `applied_lsn`, merged. Returns it if this call ended it, else None.

    - A backfill of the whole table removes the table's mark, unless a backfill was required again since it was opened
      (`marks`), and clears the differences that a verify detected. Its counts of values that did not fit replace the
      earlier counts.
    - A backfill of the keys whose changes the source lost removes this mark only.
    - A backfill of the columns that may differ removes this mark only. It removes nothing if rows may have moved behind
      its reader, or if the result of a chunk is unknown: then another backfill follows.

    The caller has locked the table's row.
    """
    backfill = open_of(ledger, table, verifies=verifies)
    if backfill is None or backfill.generation != generation or applied_lsn is None:
        return None
    ledger.execute(
        "SELECT 1 FROM tidemark.backfills WHERE pipeline = %s AND backfill = %s FOR UPDATE",
        (ledger.pipeline, backfill.backfill),
    )
    last = _last_claim(ledger, backfill.backfill)
    if last is None or applied_lsn < last:
        return None
    row = tables.one(ledger, table)
    brings_all = backfill.whole_table and backfill.purpose == "fill"
    brings_lost = backfill.reads_lost_keys and row is not None and row.lost_keys is not None
    in_doubt = None if row is None else row.columns_in_doubt
    brings_columns = backfill.reads_all_rows and backfill.purpose == "fill" and in_doubt is not None
    brings_columns &= set(in_doubt or ()) <= set(backfill.columns or ())
    brings_columns = (
        brings_columns and not _may_have_moved(ledger, backfill, last) and _all_results_recorded(ledger, backfill)
    )
    is_newer = row is not None and row.marks == backfill.marks
    if is_newer and (brings_all or brings_lost or brings_columns):
        backfill_marks.clear(ledger, table)
    if brings_all:
        since = backfill.snapshot_lsn or Lsn(0) if backfill.mode == "exported_snapshot" else None
        unfit_values.replace(ledger, table, backfill.backfill, backfill.snapshot, since, generation)
        ledger.execute(
            'UPDATE tidemark.parts SET differing = NULL WHERE pipeline = %s AND "table" = %s', (ledger.pipeline, table)
        )
    if not _end(ledger, backfill.backfill, state="applied", reason=None, complete_lsn=last):
        return None
    return one(ledger, backfill.backfill)


# The Delta types of values that PostgreSQL never moves to TOAST, and so always sends.
_ALWAYS_SENT: Final = frozenset(
    {"boolean", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz"}
)


def _may_have_moved(ledger: Ledger, backfill: Backfill, last: Lsn) -> bool:
    """Whether a row may have got a new key behind the reader, in an update that did not send the value of one of
    these columns. The row then has the value of the old key's row, which may not have been read again before."""
    versions = tables.versions(ledger, backfill.table)
    columns = [c for c in versions[-1].columns if c.attnum in (backfill.columns or ())] if versions else []
    if all(column.target in _ALWAYS_SENT for column in columns):
        return False
    return ledger.holds(
        """
        SELECT 1 FROM tidemark.batch_tables
         WHERE pipeline = %s AND generation = %s AND "table" = %s AND moved > 0 AND unchanged > 0
           AND end_lsn <= %s AND (%s::pg_lsn IS NULL OR end_lsn > %s) LIMIT 1
        """,
        (ledger.pipeline, backfill.generation, backfill.table, last, backfill.snapshot_lsn, backfill.snapshot_lsn),
    )


def _all_results_recorded(ledger: Ledger, backfill: Backfill) -> bool:
    """Whether the result of every chunk is known. If a driver dies after its commit, the results of its chunks stay
    unknown."""
    return not ledger.holds(
        "SELECT 1 FROM tidemark.chunks WHERE pipeline = %s AND backfill = %s AND rejected IS NULL AND result IS NULL",
        (ledger.pipeline, backfill.backfill),
    )


def _last_claim(ledger: Ledger, backfill: str) -> Lsn | None:
    """End of the batch that claimed the backfill's last chunk; None if anything is unread or unclaimed."""
    return ledger.value(
        """
        SELECT max(c.claimed_lsn) FROM tidemark.chunks c
         WHERE c.pipeline = %(pipeline)s AND c.backfill = %(backfill)s AND c.rejected IS NULL
           AND NOT EXISTS (SELECT 1 FROM tidemark.ranges r
                            WHERE r.pipeline = %(pipeline)s AND r.backfill = %(backfill)s AND NOT r.done)
        HAVING bool_and(c.claimed_lsn IS NOT NULL)
        """,
        {"backfill": backfill},
    )
