"""Writes the states of a table's merge: merging, deferred, paused, parked, retried.

`schema.table_life`, machine `merge`, has the transitions. Parked and deferred tables count as staged in R3's minimum
(`applied_positions.confirmable`), so they do not hold the slot back. Errors contain no row's value. No function here
takes a lease: callers write inside a fenced transaction (a batch by its lease, a result by its plan's row), or on a
person's command (`unpark`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from tidemark.errors import Move
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_result import Holes
from tidemark.ledger.captured import backfill_marks, table_lives
from tidemark.ledger.connection import Ledger
from tidemark.schema import table_life


def park(ledger: Ledger, table: str, error: ErrorRecord) -> bool:
    """Suspend the table's merge with the error. True if it was not parked before, which is when the pipeline's notifier
    fires (R6). A parked table takes a newer error unless that one is RETRY and its own is not."""
    event = "park_for_retry" if error.move == Move.RETRY else "park"
    with table_lives.step(ledger, "merge", event, [table]):
        before = _merge_state(ledger, table)
        if before in (table_life.PARKED, table_life.PAUSED) and error.move == Move.RETRY:
            return False
        ledger.execute(
            """
            UPDATE tidemark.tables
               SET state = 'parked', paused_by = NULL, error = %s, error_at = clock_timestamp(),
                   state_since = CASE WHEN state = 'parked' THEN state_since ELSE clock_timestamp() END
             WHERE pipeline = %s AND "table" = %s
            """,
            (Jsonb(error.to_json()), ledger.pipeline, table),
        )
        return before not in (table_life.PARKED, table_life.RETRIED)


def _merge_state(ledger: Ledger, table: str) -> str | None:
    return ledger.value(
        'SELECT merge_state FROM tidemark.tables WHERE pipeline = %s AND "table" = %s FOR UPDATE',
        (ledger.pipeline, table),
    )


def unpark(ledger: Ledger, table: str) -> bool:
    """Let the next run apply all of the table's batches in order. False if the table is not parked or not known."""
    return _merge_again(ledger, table, "unpark", (table_life.PARKED, table_life.RETRIED))


def pause(ledger: Ledger, table: str, who: str) -> bool:
    """Let no plan hold the table until somebody resumes it; a plan that holds it already is carried out. `who` asked
    for it. False if it is paused already. Raises TableLifeBroken for a parked table."""
    with ledger.transaction():
        if _merge_state(ledger, table) == table_life.PAUSED:
            return False
        _set_without_error(ledger, table, "pause", table_life.PAUSED, who)
    return True


def resume(ledger: Ledger, table: str) -> bool:
    """Let the next run apply all of the table's batches in order. False if the table is not paused."""
    return _merge_again(ledger, table, "resume", (table_life.PAUSED,))


def _merge_again(ledger: Ledger, table: str, event: str, states: Collection[str]) -> bool:
    """End one of these states of the merge. False if the table is in none of them."""
    with ledger.transaction():
        if _merge_state(ledger, table) not in states:
            return False
        _set_without_error(ledger, table, event, table_life.MERGING, None)
    return True


def _set_without_error(ledger: Ledger, table: str, event: str, state: str, paused_by: str | None) -> None:
    """Set the state of the merge, and forget the error; failed runs are counted anew."""
    with table_lives.step(ledger, "merge", event, [table]):
        ledger.execute(
            """
            UPDATE tidemark.tables
               SET state = %s, state_since = clock_timestamp(), paused_by = %s, error = NULL, error_at = NULL,
                   failed_runs = 0, tried_at = NULL
             WHERE pipeline = %s AND "table" = %s
            """,
            (state, paused_by, ledger.pipeline, table),
        )


def failed(ledger: Ledger, table: str, error: ErrorRecord, *, park_after: int) -> bool:
    """Record an error of the table's own result (R6): parked at once if its move is not RETRY, after `park_after`
    failed runs in a row if it is. True if this parked it."""
    retry = error.move == Move.RETRY
    with ledger.transaction():
        with table_lives.step(ledger, "merge", "fail", [table]):
            row = ledger.execute(
                """
                UPDATE tidemark.tables
                   SET failed_runs = failed_runs + 1, tried_at = clock_timestamp(), error_at = clock_timestamp(),
                       error = CASE merge_state WHEN 'parked' THEN error
                                                WHEN 'retried' THEN CASE WHEN %(retry)s THEN %(error)s ELSE error END
                                                ELSE %(error)s END
                 WHERE pipeline = %(pipeline)s AND "table" = %(table)s
                RETURNING failed_runs
                """,
                {"error": Jsonb(error.to_json()), "retry": retry, "pipeline": ledger.pipeline, "table": table},
            ).fetchone()
        assert row is not None
        return False if retry and row[0] < park_after else park(ledger, table, error)


def succeeded(ledger: Ledger, merged: Mapping[str, Holes | None]) -> None:
    """Record that these tables were merged: the counter of each is 0 again, a park that came from RETRY errors ends.
    With each is what its target holds of holes now, None if the merge says nothing of it."""
    with ledger.transaction():
        with table_lives.step(ledger, "merge", "merge", merged):
            rows = ledger.execute(
                """
                UPDATE tidemark.tables
                   SET failed_runs = 0, tried_at = clock_timestamp(),
                       state = CASE merge_state WHEN 'retried' THEN 'merging' ELSE state END,
                       state_since = CASE merge_state WHEN 'retried' THEN clock_timestamp() ELSE state_since END,
                       error = CASE merge_state WHEN 'parked' THEN error END,
                       error_at = CASE merge_state WHEN 'parked' THEN error_at END
                 WHERE pipeline = %s AND "table" = ANY(%s)
                RETURNING "table", holes <> '{}' OR target_state = 'holes'
                """,
                (ledger.pipeline, list(merged)),
            ).fetchall()
        had_holes = dict(rows)
        for table, holes in merged.items():
            if holes is not None and (had_holes[table] or any(holes.columns.values())):
                backfill_marks.keep_holes(ledger, table, holes)


def due(ledger: Ledger, unpark_retry_s: float) -> set[str]:
    """The tables that a plan may hold: those not parked, and those parked after RETRY errors and
    not tried for `unpark_retry_s`."""
    rows = ledger.execute(
        """
        SELECT "table" FROM tidemark.tables
         WHERE pipeline = %s
           AND (merge_state IN ('merging', 'deferred')
                OR (merge_state = 'retried' AND capture_state <> 'forgotten'
                    AND coalesce(tried_at, state_since)
                        NOT BETWEEN clock_timestamp() - make_interval(secs => %s) AND clock_timestamp()))
        """,
        (ledger.pipeline, unpark_retry_s),
    ).fetchall()
    return {table for (table,) in rows}


def deferred(ledger: Ledger) -> set[str]:
    """The tables that may wait: deferred, and their last merge did not fail."""
    query = 'SELECT "table" FROM tidemark.tables WHERE pipeline = %s AND merge_state = %s AND failed_runs = 0'
    return {table for (table,) in ledger.execute(query, (ledger.pipeline, table_life.DEFERRED))}


def defer(ledger: Ledger, merged: Collection[str] = ()) -> None:
    """Merge less often, by choice, every table for which nothing waits now, and the tables that were just `merged`."""
    _choose(
        ledger,
        "defer",
        """
        SELECT "table" FROM tidemark.tables t
         WHERE pipeline = %s AND merge_state = 'merging'
           AND ("table" = ANY(%s) OR NOT EXISTS (
               SELECT 1 FROM tidemark.unapplied u WHERE u.pipeline = t.pipeline AND u."table" = t."table"))
        """,
        table_life.DEFERRED,
        sorted(merged),
    )


def merge_always(ledger: Ledger) -> None:
    """The opposite: merge every table with each plan."""
    query = """SELECT "table" FROM tidemark.tables WHERE pipeline = %s AND merge_state = 'deferred'"""
    _choose(ledger, "merge_always", query, table_life.MERGING)


def _choose(ledger: Ledger, event: str, which: LiteralString, state: str, *values: Any) -> None:
    with ledger.transaction():
        rows = ledger.execute(f"""{which} ORDER BY "table" FOR UPDATE""", (ledger.pipeline, *values))
        names = [table for (table,) in rows]
        if not names:
            return
        with table_lives.step(ledger, "merge", event, names):
            ledger.execute(
                "UPDATE tidemark.tables SET state = %s, state_since = clock_timestamp() "
                'WHERE pipeline = %s AND "table" = ANY(%s)',
                (state, ledger.pipeline, names),
            )
