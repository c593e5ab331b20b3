"""When a table joined the stream, and whether its older rows are missing: `join_horizon` and the mark `existing_rows`.

    unknown ──join──► captured (horizon kept) ──leave──► not captured ──join──► captured, needs a backfill

A table joins when preflight first sees it published in a generation that is open. Its rows from before the join are in
no stream; unless it was seen empty by a snapshot that saw all of them, it needs a backfill. `join_horizon` is the xid
below which everything must have ended before a snapshot counts; NULL means that the join was not yet judged, so that a
crash between two steps is caught up by the next preflight.
"""

from __future__ import annotations

from typing import Any

import psycopg

EXISTING_ROWS = "existing_rows"
REJOINED = "rejoined"


def join(
    connection: psycopg.Connection[Any],
    pipeline: str,
    table: str,
    horizon: int,
    *,
    backfill: tuple[str, str] | None,
) -> None:
    """Record the join; `backfill` is (kind, reason) where the table needs one.

    A mark that it already has stays, unless it is EXISTING_ROWS, which gives way to any other.
    """
    kind, reason = backfill if backfill is not None else (None, None)
    connection.execute(
        """
        INSERT INTO tidemark.tables AS known
               (pipeline, "table", join_horizon, needs_backfill, backfill_kind, backfill_reason, backfill_since)
        VALUES (%(pipeline)s, %(table)s, %(horizon)s, %(kind)s::text IS NOT NULL, %(kind)s, %(reason)s,
                CASE WHEN %(kind)s::text IS NOT NULL THEN clock_timestamp() END)
        ON CONFLICT (pipeline, "table") DO UPDATE SET captured = true, join_horizon = excluded.join_horizon
        """,
        {"pipeline": pipeline, "table": table, "horizon": horizon, "kind": kind, "reason": reason},
    )
    if backfill is not None:
        connection.execute(
            """
            UPDATE tidemark.tables
               SET needs_backfill = true, backfill_kind = %(kind)s, backfill_reason = %(reason)s,
                   backfill_since = clock_timestamp()
             WHERE pipeline = %(pipeline)s AND "table" = %(table)s
               AND (NOT needs_backfill OR (backfill_kind = %(weaker)s AND backfill_kind <> %(kind)s))
            """,
            {"pipeline": pipeline, "table": table, "kind": kind, "reason": reason, "weaker": EXISTING_ROWS},
        )


def leave(connection: psycopg.Connection[Any], pipeline: str, table: str) -> None:
    """The table is no longer in the file or the publication. What is staged of it is still
    merged; coming back is a join."""
    connection.execute(
        'UPDATE tidemark.tables SET captured = false, join_horizon = NULL WHERE pipeline = %s AND "table" = %s',
        (pipeline, table),
    )


def seen_empty(connection: psycopg.Connection[Any], pipeline: str, table: str) -> bool:
    """Take the mark EXISTING_ROWS away, and no other. True if it was there."""
    done = connection.execute(
        """
        UPDATE tidemark.tables
           SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, backfill_since = NULL
         WHERE pipeline = %s AND "table" = %s AND backfill_kind = %s
        """,
        (pipeline, table, EXISTING_ROWS),
    )
    return done.rowcount == 1
