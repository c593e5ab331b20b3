"""Records when a table joined the stream (`join_horizon`), and whether older rows are missing (the mark
`existing_rows`).

`schema.table_life`, machine `capture`, has the transitions.

A table joins at the first preflight of the open generation that reads it in the publication. Rows from before the join
are not in the stream. The table needs a backfill, unless a snapshot that includes all such rows is empty.
`join_horizon` is the xid below which every transaction must have ended before a snapshot counts. NULL means that the
join is not judged; after a crash, the next preflight judges it. A mark raises it (`backfill_marks`). If a table leaves,
its open backfill is closed, because its chunks are no base for a stream with a gap.
"""

from __future__ import annotations

from typing import Final

from tidemark.ledger.captured import backfill_marks, merge_states, tables
from tidemark.ledger.captured.table_lives import step
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills
from tidemark.ledger.staged import positions
from tidemark.lsn import Lsn, WalPoint
from tidemark.schema import table_life

LEFT: Final = "its table left the pipeline file or the publication"


def join(
    ledger: Ledger,
    table: str,
    horizon: int,
    seen_at: WalPoint,
    *,
    backfill: tuple[str, str] | None,
) -> None:
    """Record the join; `backfill` is (kind, reason) if the table needs one. `seen_at` is the WAL position at which
    the evidence of the decision is durable.

    An existing mark stays, as in `backfill_marks.mark`. Join and mark are one transaction: a table that is captured
    with a horizon is never judged again.
    """
    with ledger.transaction():
        with step(ledger, "capture", "join", [table]):
            ledger.execute(
                """
                INSERT INTO tidemark.tables (pipeline, "table", join_horizon, joined_timeline, joined_lsn)
                VALUES (%s, %s, %s, %s, %s)
                ON CONFLICT (pipeline, "table") DO UPDATE
                   SET captured = true, join_horizon = excluded.join_horizon, forgotten_at = NULL,
                       joined_timeline = excluded.joined_timeline, joined_lsn = excluded.joined_lsn
                """,
                (ledger.pipeline, table, horizon, seen_at.timeline, seen_at.lsn),
            )
        if backfill is not None:
            backfill_marks.mark(ledger, table, *backfill)


def judged_above(ledger: Ledger, lsn: Lsn) -> set[str]:
    """The tables whose join was judged above this position. The reading of the catalogue that the join left may be
    younger than changes above the position."""
    listed = 'SELECT "table" FROM tidemark.tables WHERE pipeline = %s AND joined_lsn > %s'
    return {table for (table,) in ledger.execute(listed, (ledger.pipeline, lsn))}


def take_over(ledger: Ledger, table: str, before: str) -> None:
    """Capture the table from the other one's join on: its relation never left the stream. If the other one's join
    is not judged yet, neither is this one's."""
    row = ledger.execute(
        "SELECT join_horizon, joined_timeline, joined_lsn FROM tidemark.tables "
        'WHERE pipeline = %s AND "table" = %s AND captured AND join_horizon IS NOT NULL',
        (ledger.pipeline, before),
    ).fetchone()
    if row is not None:
        join(ledger, table, row[0], WalPoint(row[1], row[2]), backfill=None)


def leave(ledger: Ledger, table: str) -> None:
    """Record that the table left the file or the publication. Its staged changes are still merged. If it comes
    back, it joins anew. Its open backfill is closed."""
    with step(ledger, "capture", "leave", [table]):
        ledger.execute(
            'UPDATE tidemark.tables SET captured = false, join_horizon = NULL WHERE pipeline = %s AND "table" = %s',
            (ledger.pipeline, table),
        )
        backfills.close_of(ledger, table, LEFT)


def forget(ledger: Ledger, table: str) -> None:
    """Hide a table that is no longer captured until it joins again. A parked table stays parked, is not tried, and
    is reported again when it is back."""
    with step(ledger, "capture", "forget", [table]):
        ledger.execute(
            'UPDATE tidemark.tables SET forgotten_at = clock_timestamp() WHERE pipeline = %s AND "table" = %s',
            (ledger.pipeline, table),
        )


def restart(ledger: Ledger, table: str) -> bool:
    """Unpark a table whose Delta tables are gone. Its staged changes are never merged, and a backfill reads its
    rows. False if it is not parked.

    The next preflight judges its join anew, so that the backfill's snapshots contain the changes that are skipped here.
    """
    reason = "its Delta tables were removed and are begun anew, without the rows and changes from before"
    with ledger.transaction():
        if not _skip_staged(ledger, table, "its table was begun anew"):
            return False
        ledger.execute(
            "UPDATE tidemark.tables SET holes = '{}', hole_keys = '[]' WHERE pipeline = %s AND \"table\" = %s",
            (ledger.pipeline, table),
        )
        backfill_marks.mark(ledger, table, backfill_marks.BEGUN_ANEW, reason)
        # Whatever it was marked for before, nothing of that is left.
        backfill_marks.rename(ledger, table, backfill_marks.BEGUN_ANEW, reason)
    return True


def pass_over(ledger: Ledger, table: str) -> bool:
    """Unpark a table whose staged files are lost. As `restart`, but its Delta tables stay and are as exact as
    before; a backfill reads the skipped changes' rows. False if it is not parked."""
    reason = "what was staged of it could not be read, and was passed over"
    with ledger.transaction():
        if not _skip_staged(ledger, table, reason):
            return False
        backfill_marks.mark(ledger, table, backfill_marks.GAP, reason)
        row = tables.one(ledger, table)
        if row is not None and row.backfill_kind == backfill_marks.BEGUN_ANEW:
            # What was merged since gave its Delta tables their shape, and no batch behind this position tells of it.
            backfill_marks.rename(ledger, table, backfill_marks.GAP, reason)
    return True


def _skip_staged(ledger: Ledger, table: str, why: str) -> bool:
    """Unpark the table and count all its staged changes as applied. False if it is not parked."""
    tables.lock(ledger, [table])
    if not merge_states.unpark(ledger, table):
        return False
    with step(ledger, "capture", "judge_anew", [table]):
        ledger.execute(
            'UPDATE tidemark.tables SET join_horizon = NULL WHERE pipeline = %s AND "table" = %s',
            (ledger.pipeline, table),
        )
    backfills.close_of(ledger, table, why)
    positions.skip_staged(ledger, table)
    return True


def lost_joins(ledger: Ledger, timeline: int, left_lsn: Lsn) -> list[str]:
    """The tables whose join was judged on an earlier timeline, by WAL above the point where the source left that
    timeline. Their rows are locked."""
    rows = ledger.execute(
        """
        SELECT "table" FROM tidemark.tables
         WHERE pipeline = %s AND join_horizon IS NOT NULL AND joined_timeline IS DISTINCT FROM %s
           AND (joined_lsn IS NULL OR joined_lsn > %s)
         ORDER BY "table" FOR UPDATE
        """,
        (ledger.pipeline, timeline, left_lsn),
    )
    return [table for (table,) in rows]


def judge_anew(ledger: Ledger, table: str, reason: str) -> None:
    """Let the next preflight judge the table's join as a new join. Its open backfill is closed."""
    with step(ledger, "capture", "judge_anew", [table]):
        ledger.execute(
            "UPDATE tidemark.tables SET join_horizon = NULL, joined_timeline = NULL, joined_lsn = NULL "
            'WHERE pipeline = %s AND "table" = %s',
            (ledger.pipeline, table),
        )
        backfills.close_of(ledger, table, reason)


def clear_existing_rows(ledger: Ledger, table: str, seen_at: WalPoint) -> bool:
    """Clear the mark EXISTING_ROWS and no other. True if it was set. `seen_at` becomes the join's evidence: if WAL
    below it is lost, the deleted rows may be back."""
    with ledger.transaction():
        tables.lock(ledger, [table])
        row = tables.one(ledger, table)
        if row is None or row.life.target != table_life.EXISTING_ROWS:
            return False
        backfill_marks.clear(ledger, table, "see_empty")
        ledger.execute(
            'UPDATE tidemark.tables SET joined_timeline = %s, joined_lsn = %s WHERE pipeline = %s AND "table" = %s',
            (seen_at.timeline, seen_at.lsn, ledger.pipeline, table),
        )
    return True
