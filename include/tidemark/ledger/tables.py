"""What the ledger knows of each captured table: state, marks, error, schema versions, fingerprint.

    merging ──park──► parked ──unpark──► merging          (deferred: by choice, merged less often)

`needs_backfill` is a mark beside the state: a table may be merging and need one. A state never holds back what is
staged: parked and deferred tables count as staged in R3's minimum (`positions.confirmable`). Reasons and errors hold
no row's value. No function here takes a lease: the callers that write do so inside a transaction that is fenced
(registering a batch by its lease, ingesting a result by the plan's row), or they are an operator's (`unpark`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidemark.errors import Move
from tidemark.ledger.joins import EXISTING_ROWS
from tidemark.schema.table import TableSchema
from tidemark.staging.manifest import TableMark

State = Literal["merging", "deferred", "parked"]

# Kinds of `needs_backfill`; those of joining stand in `joins`, those of a changed fingerprint come with the
# mark. Only EXISTING_ROWS gives way to another: it ends by itself when the table is seen empty, and the
# target may hold rows otherwise.
GAP: Final = "gap"
HOLES: Final = "holes"

_COLUMNS = (
    '"table", state, state_since, captured, join_horizon, needs_backfill, backfill_kind, backfill_reason, '
    "backfill_since, error, error_at, failed_runs, tried_at, notified_at, holes, fingerprint"
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """`error` is {"kind", "move", "message"} of the last failure, None after a success; `captured` is False while the
    table is not in the publication or the file; `fingerprint` is the JSON of `schema.fingerprint.Fingerprint`."""

    table: str
    state: State
    state_since: datetime
    captured: bool
    join_horizon: int | None
    needs_backfill: bool
    backfill_kind: str | None
    backfill_reason: str | None
    backfill_since: datetime | None
    error: dict[str, str] | None
    error_at: datetime | None
    failed_runs: int
    tried_at: datetime | None
    notified_at: datetime | None
    holes: dict[str, int]
    fingerprint: dict[str, Any] | None


def all_of(connection: psycopg.Connection[Any], pipeline: str) -> list[TableRow]:
    """Every table that was ever captured, by id."""
    with connection.cursor(row_factory=class_row(TableRow)) as cursor:
        query = f'SELECT {_COLUMNS} FROM tidemark.tables WHERE pipeline = %s ORDER BY "table"'
        return cursor.execute(query.encode(), (pipeline,)).fetchall()


def one(connection: psycopg.Connection[Any], pipeline: str, table: str) -> TableRow | None:
    """The table's row, None where it was never captured."""
    with connection.cursor(row_factory=class_row(TableRow)) as cursor:
        query = f'SELECT {_COLUMNS} FROM tidemark.tables WHERE pipeline = %s AND "table" = %s'
        return cursor.execute(query.encode(), (pipeline, table)).fetchone()


def add(connection: psycopg.Connection[Any], pipeline: str, table: str) -> None:
    """Make sure that the table has a row; an existing one stays as it is."""
    connection.execute(
        'INSERT INTO tidemark.tables (pipeline, "table") VALUES (%s, %s) ON CONFLICT DO NOTHING', (pipeline, table)
    )


def keep_fingerprint(
    connection: psycopg.Connection[Any], pipeline: str, table: str, fingerprint: dict[str, Any]
) -> None:
    """Keep the fingerprint that the newest registered batch was staged under."""
    add(connection, pipeline, table)
    connection.execute(
        'UPDATE tidemark.tables SET fingerprint = %s WHERE pipeline = %s AND "table" = %s',
        (Jsonb(fingerprint), pipeline, table),
    )


def mark(connection: psycopg.Connection[Any], pipeline: str, found: TableMark) -> None:
    """Give the table what the drain found out about it."""
    add(connection, pipeline, found.table)
    if found.state == "parked":
        park(connection, pipeline, found.table, {"kind": found.kind, "move": found.move, "message": found.message})
    else:
        mark_needs_backfill(connection, pipeline, found.table, found.kind, found.message)


def park(connection: psycopg.Connection[Any], pipeline: str, table: str, error: dict[str, str]) -> bool:
    """Suspend the table's merge with `error` = {"kind", "move", "message"}. True if it was not parked before, which
    is when the pipeline's notifier fires (R6). A parked table takes a newer error unless that one is RETRY and its
    own is not."""
    with connection.transaction():
        row = connection.execute(
            'SELECT state, error FROM tidemark.tables WHERE pipeline = %s AND "table" = %s FOR UPDATE',
            (pipeline, table),
        ).fetchone()
        if row is None:
            raise LookupError(f"no table {table} in pipeline {pipeline}")
        state, old = row
        if state == "parked" and error["move"] == Move.RETRY and old["move"] != Move.RETRY:
            return False
        connection.execute(
            """
            UPDATE tidemark.tables
               SET state = 'parked', error = %s, error_at = clock_timestamp(),
                   state_since = CASE WHEN state = 'parked' THEN state_since ELSE clock_timestamp() END
             WHERE pipeline = %s AND "table" = %s
            """,
            (Jsonb(error), pipeline, table),
        )
        return bool(state != "parked")


def unpark(connection: psycopg.Connection[Any], pipeline: str, table: str) -> bool:
    """Let the next run apply all of the table's batches in order. False where the table is not parked or not known."""
    return (
        connection.execute(
            """
            UPDATE tidemark.tables
               SET state = 'merging', state_since = clock_timestamp(), error = NULL, error_at = NULL, failed_runs = 0,
                   tried_at = NULL, notified_at = NULL
             WHERE pipeline = %s AND "table" = %s AND state = 'parked'
            """,
            (pipeline, table),
        ).rowcount
        == 1
    )


def failed(
    connection: psycopg.Connection[Any], pipeline: str, table: str, error: dict[str, str], *, park_after: int
) -> bool:
    """Record an error of the table's own result (R6): parked at once where its move is not RETRY, after `park_after`
    failed runs in a row where it is. True if this parked it."""
    with connection.transaction():
        row = connection.execute(
            """
            UPDATE tidemark.tables
               SET failed_runs = failed_runs + 1, tried_at = clock_timestamp(), error_at = clock_timestamp(),
                   error = CASE WHEN state = 'parked' AND error ->> 'move' <> 'RETRY' THEN error ELSE %s END
             WHERE pipeline = %s AND "table" = %s
            RETURNING failed_runs
            """,
            (Jsonb(error), pipeline, table),
        ).fetchone()
        if row is None:
            raise LookupError(f"no table {table} in pipeline {pipeline}")
        if error["move"] == Move.RETRY and row[0] < park_after:
            return False
        return park(connection, pipeline, table, error)


def succeeded(connection: psycopg.Connection[Any], pipeline: str, table: str, holes: dict[str, int]) -> None:
    """Record that the table was merged: its counter is 0 again, a park that came from RETRY errors ends, `holes`
    (unchanged values whose base is known nowhere, per column) are added up and mark the table as needing a backfill."""
    with connection.transaction():
        row = connection.execute(
            """
            UPDATE tidemark.tables
               SET failed_runs = 0, tried_at = clock_timestamp(),
                   state = CASE WHEN state = 'parked' AND error ->> 'move' = 'RETRY' THEN 'merging' ELSE state END,
                   state_since = CASE WHEN state = 'parked' AND error ->> 'move' = 'RETRY' THEN clock_timestamp()
                                      ELSE state_since END,
                   error = CASE WHEN state = 'parked' AND error ->> 'move' <> 'RETRY' THEN error END,
                   error_at = CASE WHEN state = 'parked' AND error ->> 'move' <> 'RETRY' THEN error_at END,
                   notified_at = CASE WHEN state = 'parked' AND error ->> 'move' <> 'RETRY' THEN notified_at END
             WHERE pipeline = %s AND "table" = %s
            RETURNING holes
            """,
            (pipeline, table),
        ).fetchone()
        if row is None:
            raise LookupError(f"no table {table} in pipeline {pipeline}")
        if not any(holes.values()):
            return
        total = {column: row[0].get(column, 0) + holes.get(column, 0) for column in {*row[0], *holes}}
        connection.execute(
            'UPDATE tidemark.tables SET holes = %s WHERE pipeline = %s AND "table" = %s',
            (Jsonb(total), pipeline, table),
        )
        listed = ", ".join(f"{count} in {column}" for column, count in sorted(total.items()))
        reason = f"unchanged values whose base is known nowhere: {listed}"
        mark_needs_backfill(connection, pipeline, table, HOLES, reason)


def notified(connection: psycopg.Connection[Any], pipeline: str, table: str) -> bool:
    """Claim the one notification of the table's park: True for the first caller since
    it was parked, else False (R6)."""
    return (
        connection.execute(
            "UPDATE tidemark.tables SET notified_at = clock_timestamp() "
            """WHERE pipeline = %s AND "table" = %s AND state = 'parked' AND notified_at IS NULL""",
            (pipeline, table),
        ).rowcount
        == 1
    )


def mark_needs_backfill(connection: psycopg.Connection[Any], pipeline: str, table: str, kind: str, reason: str) -> None:
    """Mark the table; a mark it already has stays, unless it is the weaker kind EXISTING_ROWS or the same kind."""
    connection.execute(
        """
        UPDATE tidemark.tables
           SET needs_backfill = true, backfill_kind = %(kind)s, backfill_reason = %(reason)s,
               backfill_since = coalesce(backfill_since, clock_timestamp())
         WHERE pipeline = %(pipeline)s AND "table" = %(table)s
           AND (NOT needs_backfill OR backfill_kind IN (%(kind)s, %(weaker)s))
        """,
        {"pipeline": pipeline, "table": table, "kind": kind, "reason": reason, "weaker": EXISTING_ROWS},
    )


def clear_needs_backfill(connection: psycopg.Connection[Any], pipeline: str, table: str) -> None:
    """Take the mark away, and with it the count of holes."""
    connection.execute(
        """
        UPDATE tidemark.tables
           SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, backfill_since = NULL, holes = '{}'
         WHERE pipeline = %s AND "table" = %s
        """,
        (pipeline, table),
    )


def due(connection: psycopg.Connection[Any], pipeline: str, unpark_retry_s: float) -> set[str]:
    """The tables that a plan may hold: those not parked, and those parked after RETRY errors and
    not tried for `unpark_retry_s`."""
    rows = connection.execute(
        """
        SELECT "table" FROM tidemark.tables
         WHERE pipeline = %s
           AND (state <> 'parked' OR (error ->> 'move' = 'RETRY'
                                      AND coalesce(tried_at, state_since)
                                          < clock_timestamp() - make_interval(secs => %s)))
        """,
        (pipeline, unpark_retry_s),
    ).fetchall()
    return {table for (table,) in rows}


def versions(connection: psycopg.Connection[Any], pipeline: str, table: str) -> list[TableSchema]:
    """The table's schema versions, oldest first."""
    rows = connection.execute(
        'SELECT definition FROM tidemark.schema_versions WHERE pipeline = %s AND "table" = %s ORDER BY version',
        (pipeline, table),
    ).fetchall()
    return [TableSchema.from_json(definition) for (definition,) in rows]
