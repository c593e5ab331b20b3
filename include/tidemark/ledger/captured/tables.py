"""Stores each captured table's states, marks, error, schema versions and fingerprint.

`schema.table_life` has the states and transitions; every function here that changes a state is a `table_lives.step`.
Parked and deferred tables count as staged in R3's minimum (`applied_positions.confirmable`), so they do not hold the
slot back. Reasons and errors contain no row's value. No function here takes a lease: callers write inside a fenced
transaction (a batch by its lease, a result by its plan's row), or on a person's command (`unpark`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, LiteralString

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from tidemark.errors import Move
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import TableMark
from tidemark.formats.merge_result import Holes
from tidemark.ledger.captured import table_lives
from tidemark.ledger.connection import Ledger
from tidemark.schema import table_life
from tidemark.schema.fingerprint import Fingerprint, UncapturedColumn
from tidemark.schema.table import TableSchema
from tidemark.schema.table_life import TableLife

# Kinds of `needs_backfill`; that of coming back stands in `joins`, those of a changed fingerprint come with the
# mark. EXISTING_ROWS and HOLES give way to another: they end by themselves, when the table is seen empty or the holes
# are filled, and the target may differ otherwise than by them.
EXISTING_ROWS: Final = table_life.EXISTING_ROWS
GAP: Final = "gap"
# The target has changes that the source lost; `lost_keys` says of which rows, where that is known.
FORK: Final = "fork"
HOLES: Final = table_life.HOLES
# A backfill of some columns met rows that the target has not.
ROWS_LACKING: Final = "rows_lacking"
# Its Delta tables are built from staging, and no backfill is wanted: the merge that builds them takes the mark away.
REPLAYED: Final = "replayed"

# What a mark of that kind is in a table's life; any other kind is one that does not end by itself.
_MARKED: Final = {EXISTING_ROWS: "miss_rows", HOLES: "miss_values"}

_COLUMNS = (
    '"table", capture_state, merge_state, target_state, state_since, join_horizon, backfill_kind, backfill_reason, '
    "backfill_since, marks, error, error_at, failed_runs, holes, hole_keys, fingerprint, "
    "paused_by, lost_keys, columns_in_doubt, changed_at"
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table's row. `life` is its states, which the stages read.

    - `error` is the last failure, None after a success; `fingerprint` the JSON of `schema.fingerprint.Fingerprint`.
    - `marks` counts how often a backfill was required, even if an earlier mark was still there.
    - `holes` maps a column to the number of rows whose unchanged value is unknown; `hole_keys` has keys of these rows.
    - `paused_by` is who paused it.
    - `lost_keys` are the only rows that may differ, if that is known. Never log them.
    - `columns_in_doubt` are the numbers of the only columns that may differ in a marked table, None for any.
    - `changed_at` is when the newest captured change of the table committed, None without one.
    """

    table: str
    life: TableLife
    state_since: datetime
    join_horizon: int | None
    backfill_kind: str | None
    backfill_reason: str | None
    backfill_since: datetime | None
    marks: int
    error: ErrorRecord | None
    error_at: datetime | None
    failed_runs: int
    holes: dict[str, int]
    hole_keys: list[list[str]]
    fingerprint: dict[str, Any] | None
    paused_by: str | None = None
    lost_keys: list[list[str]] | None = field(default=None, repr=False)
    columns_in_doubt: list[int] | None = None
    changed_at: datetime | None = None

    @property
    def has_current(self) -> bool:
        """Whether it is more than history alone, as the last batch that was staged found it at the source; a table that
        no batch has met yet counts as any other."""
        looked_at = self.fingerprint
        return looked_at is None or bool(looked_at.get("key")) or looked_at.get("identity") == "full"

    @property
    def uncaptured(self) -> tuple[UncapturedColumn, ...]:
        """The columns that do not reach the lake as the source has them."""
        columns = (self.fingerprint or {}).get("uncaptured", ())
        return tuple(UncapturedColumn(column["name"], column["why"]) for column in columns)


def _row(
    *, error: dict[str, str] | None, capture_state: str, merge_state: str, target_state: str, **columns: Any
) -> TableRow:
    life = TableLife(capture_state, merge_state, target_state)
    return TableRow(**columns, life=life, error=None if error is None else ErrorRecord.from_json(error))


def all_of(ledger: Ledger) -> list[TableRow]:
    """Every table that was ever captured, by id."""
    with ledger.connection.cursor(row_factory=kwargs_row(_row)) as cursor:
        query = f'SELECT {_COLUMNS} FROM tidemark.tables WHERE pipeline = %s ORDER BY "table"'
        return cursor.execute(query.encode(), (ledger.pipeline,)).fetchall()


def one(ledger: Ledger, table: str) -> TableRow | None:
    """The table's row, None if it was never captured."""
    with ledger.connection.cursor(row_factory=kwargs_row(_row)) as cursor:
        query = f'SELECT {_COLUMNS} FROM tidemark.tables WHERE pipeline = %s AND "table" = %s'
        return cursor.execute(query.encode(), (ledger.pipeline, table)).fetchone()


def last_columns(ledger: Ledger) -> dict[int, int]:
    """The highest number of a column that the last reading found in each captured table, by the relation's OID."""
    rows = ledger.execute(
        """
        SELECT (fingerprint ->> 'relation_oid')::bigint, (fingerprint ->> 'last_attnum')::int FROM tidemark.tables
         WHERE pipeline = %s AND capture_state IN ('joining', 'captured') AND fingerprint IS NOT NULL
        """,
        (ledger.pipeline,),
    )
    return dict(rows.fetchall())


def add(ledger: Ledger, *names: str) -> None:
    """Make sure that the tables have a row each; an existing one stays as it is."""
    ledger.execute(
        'INSERT INTO tidemark.tables (pipeline, "table") SELECT %s, unnest(%s::text[]) ON CONFLICT DO NOTHING',
        (ledger.pipeline, sorted(set(names))),
    )


def remove_unused(ledger: Ledger, names: Iterable[str]) -> None:
    """Remove the rows of those of these tables of which nothing was ever read or staged."""
    ledger.execute(
        """
        WITH unused AS (
            DELETE FROM tidemark.tables t WHERE pipeline = %(pipeline)s AND "table" = ANY(%(tables)s)
               AND NOT EXISTS (SELECT FROM tidemark.schema_versions v
                                WHERE (v.pipeline, v."table") = (t.pipeline, t."table"))
               AND NOT EXISTS (SELECT FROM tidemark.batch_tables b
                                WHERE (b.pipeline, b."table") = (t.pipeline, t."table"))
               AND NOT EXISTS (SELECT FROM tidemark.backfills f
                                WHERE (f.pipeline, f."table") = (t.pipeline, t."table"))
            RETURNING t."table")
        DELETE FROM tidemark.positions p USING unused u WHERE p.pipeline = %(pipeline)s AND p."table" = u."table"
        """,
        {"tables": sorted(set(names))},
    )


def lock(ledger: Ledger, names: Iterable[str]) -> None:
    """Lock the rows of these tables, in one order for all, until the caller's transaction ends."""
    ledger.execute(
        'SELECT 1 FROM tidemark.tables WHERE pipeline = %s AND "table" = ANY(%s) ORDER BY "table" FOR UPDATE',
        (ledger.pipeline, sorted(set(names))),
    )


def keep_fingerprints(ledger: Ledger, fingerprints: Mapping[str, Fingerprint]) -> None:
    """Keep the fingerprints, by table, that the newest registered batch was staged under."""
    add(ledger, *fingerprints)
    ledger.execute(
        """
        UPDATE tidemark.tables t SET fingerprint = f.fingerprint
          FROM unnest(%s::text[], %s::jsonb[]) AS f ("table", fingerprint)
         WHERE t.pipeline = %s AND t."table" = f."table" AND t.fingerprint IS DISTINCT FROM f.fingerprint
        """,
        (list(fingerprints), [Jsonb(fingerprint.to_json()) for fingerprint in fingerprints.values()], ledger.pipeline),
    )


def note_changes(ledger: Ledger, committed_at: Mapping[str, str | None]) -> None:
    """A batch has changes of these tables, and the last of each committed then."""
    ledger.execute(
        """
        UPDATE tidemark.tables t SET changed_at = greatest(t.changed_at, f.committed_at)
          FROM unnest(%s::text[], %s::timestamptz[]) AS f ("table", committed_at)
         WHERE t.pipeline = %s AND t."table" = f."table"
        """,
        (list(committed_at), list(committed_at.values()), ledger.pipeline),
    )


def mark(ledger: Ledger, table_mark: TableMark) -> None:
    """Give the table what the drain found out about it."""
    add(ledger, table_mark.table)
    if table_mark.state == "parked":
        park(ledger, table_mark.table, ErrorRecord(table_mark.kind, table_mark.move, table_mark.message))
    else:
        mark_needs_backfill(ledger, table_mark.table, table_mark.kind, table_mark.message, table_mark.columns)


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
    row = ledger.execute(
        'SELECT merge_state FROM tidemark.tables WHERE pipeline = %s AND "table" = %s FOR UPDATE',
        (ledger.pipeline, table),
    ).fetchone()
    return None if row is None else str(row[0])


def unpark(ledger: Ledger, table: str) -> bool:
    """Let the next run apply all of the table's batches in order. False if the table is not parked or not known."""
    return _merge_again(ledger, table, "unpark", (table_life.PARKED, table_life.RETRIED))


def pause(ledger: Ledger, table: str, who: str) -> bool:
    """Let no plan hold the table until somebody resumes it; a plan that holds it already is carried out. `who` asked
    for it. False if it is paused already. Raises TableLifeBroken for a parked table."""
    with ledger.transaction():
        if _merge_state(ledger, table) == table_life.PAUSED:
            return False
        with table_lives.step(ledger, "merge", "pause", [table]):
            ledger.execute(
                """
                UPDATE tidemark.tables
                   SET state = 'paused', state_since = clock_timestamp(), paused_by = %s, error = NULL, error_at = NULL,
                       failed_runs = 0, tried_at = NULL
                 WHERE pipeline = %s AND "table" = %s
                """,
                (who, ledger.pipeline, table),
            )
    return True


def resume(ledger: Ledger, table: str) -> bool:
    """Let the next run apply all of the table's batches in order. False if the table is not paused."""
    return _merge_again(ledger, table, "resume", (table_life.PAUSED,))


def _merge_again(ledger: Ledger, table: str, event: str, states: Collection[str]) -> bool:
    """End one of these states of the merge; failed runs are counted anew. False if the table is in none of them."""
    with ledger.transaction():
        if _merge_state(ledger, table) not in states:
            return False
        with table_lives.step(ledger, "merge", event, [table]):
            ledger.execute(
                """
                UPDATE tidemark.tables
                   SET state = 'merging', state_since = clock_timestamp(), paused_by = NULL, error = NULL,
                       error_at = NULL, failed_runs = 0, tried_at = NULL
                 WHERE pipeline = %s AND "table" = %s
                """,
                (ledger.pipeline, table),
            )
    return True


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
                _keep_holes(ledger, table, holes)


def _keep_holes(ledger: Ledger, table: str, holes: Holes) -> None:
    counts = {column: count for column, count in holes.columns.items() if count}
    keys = [list(key) for key in holes.keys] if counts else []
    row = ledger.execute(
        """
        UPDATE tidemark.tables SET holes = %s, hole_keys = %s WHERE pipeline = %s AND "table" = %s
        RETURNING target_state
        """,
        (Jsonb(counts), Jsonb(keys), ledger.pipeline, table),
    ).fetchone()
    if counts:
        mark_holes(ledger, table)
    elif row is not None and row[0] == table_life.HOLES:
        clear_needs_backfill(ledger, table, "fill_holes")


def mark_holes(ledger: Ledger, table: str) -> None:
    """Mark the table where it has holes and no open backfill, which may fill them: what is left when that ends is
    marked then."""
    row = ledger.execute(
        """
        SELECT holes FROM tidemark.tables t
         WHERE pipeline = %s AND "table" = %s AND holes <> '{}'
           AND NOT EXISTS (SELECT 1 FROM tidemark.backfills b
                            WHERE b.pipeline = t.pipeline AND b."table" = t."table" AND b.state = 'open'
                              AND b.purpose = 'fill')
        """,
        (ledger.pipeline, table),
    ).fetchone()
    if row is not None:
        listed = ", ".join(f"{count} in {column}" for column, count in sorted(row[0].items()))
        reason = f"unchanged values whose base is known nowhere: {listed}"
        mark_needs_backfill(ledger, table, HOLES, reason)


def mark_needs_backfill(ledger: Ledger, table: str, kind: str, reason: str, columns: Collection[int] = ()) -> None:
    """Mark the table. A mark it already has stays, unless it is of the same kind or a weaker one: HOLES gives way to
    any other, EXISTING_ROWS to all but HOLES, REPLAYED to all but these two. `marks` rises in any case, so that no
    backfill that was opened before takes the mark away. After any mark but HOLES, any row may be wrong; in these
    `columns` alone, if there are any, and no mark from before says more."""
    weaker = [] if kind == HOLES else [HOLES, EXISTING_ROWS]
    if kind not in (HOLES, EXISTING_ROWS):
        weaker.append(REPLAYED)
    with table_lives.step(ledger, "target", _MARKED.get(kind, "need_backfill"), [table]):
        ledger.execute(
            """
            UPDATE tidemark.tables
               SET needs_backfill = true, marks = marks + 1,
                   columns_in_doubt = CASE WHEN %(kind)s = 'holes' THEN columns_in_doubt
                                           WHEN %(columns)s::int[] <> '{}'
                                                AND (had_none OR columns_in_doubt IS NOT NULL)
                                           THEN (SELECT array_agg(DISTINCT number ORDER BY number)
                                                   FROM unnest(%(columns)s::int[] || columns_in_doubt) AS number) END,
                   lost_keys = CASE WHEN %(kind)s = 'holes' THEN lost_keys END,
                   backfill_since = coalesce(backfill_since, clock_timestamp()),
                   backfill_kind = CASE WHEN gives_way THEN %(kind)s ELSE backfill_kind END,
                   backfill_reason = CASE WHEN gives_way THEN %(reason)s ELSE backfill_reason END
              FROM (SELECT NOT needs_backfill OR backfill_kind = %(kind)s
                           OR backfill_kind = ANY(%(weaker)s::text[]) AS gives_way,
                           NOT needs_backfill OR backfill_kind = 'holes' AS had_none
                      FROM tidemark.tables WHERE pipeline = %(pipeline)s AND "table" = %(table)s FOR UPDATE) marked
             WHERE pipeline = %(pipeline)s AND "table" = %(table)s
            """,
            {
                "table": table,
                "kind": kind,
                "reason": reason,
                "weaker": weaker,
                "columns": sorted(set(columns)),
            },
        )


def rename_mark(ledger: Ledger, table: str, kind: str, reason: str) -> None:
    """The table is marked already: whatever it was marked for, this is said of it from here on."""
    with table_lives.step(ledger, "target", "need_backfill", [table]):
        ledger.execute(
            "UPDATE tidemark.tables SET backfill_kind = %s, backfill_reason = %s "
            'WHERE pipeline = %s AND "table" = %s AND needs_backfill',
            (kind, reason, ledger.pipeline, table),
        )


def mark_lost(ledger: Ledger, table: str, reason: str, keys: Sequence[Sequence[str]] | None) -> None:
    """The target has changes of these keys (None: of any) that the source lost. Of a table that needed a backfill of
    all its rows before, that stays so."""
    add(ledger, table)
    row = one(ledger, table)
    assert row is not None
    lost = None
    if keys is not None and row.life.target in (table_life.COMPLETE, table_life.HOLES):
        lost = [list(key) for key in keys]
    elif keys is not None and row.lost_keys is not None:
        lost = [list(key) for key in dict.fromkeys(tuple(key) for key in (*row.lost_keys, *keys))]
    mark_needs_backfill(ledger, table, FORK, reason)
    ledger.execute(
        'UPDATE tidemark.tables SET lost_keys = %s WHERE pipeline = %s AND "table" = %s',
        (None if lost is None else Jsonb(lost), ledger.pipeline, table),
    )


def spread_lost(ledger: Ledger, names: Iterable[str]) -> None:
    """In these tables keys moved and took values along that the stream did not send: what the target has of a lost
    change may stand under any key now, until all rows are read."""
    ledger.execute(
        "UPDATE tidemark.tables SET lost_keys = NULL, marks = marks + 1 "
        'WHERE pipeline = %s AND "table" = ANY(%s) AND lost_keys IS NOT NULL',
        (ledger.pipeline, sorted(names)),
    )


def clear_needs_backfill(ledger: Ledger, table: str, event: str = "backfill") -> None:
    """Take the mark away, for the event that brought what was missing."""
    with table_lives.step(ledger, "target", event, [table]):
        ledger.execute(
            """
            UPDATE tidemark.tables
               SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, backfill_since = NULL,
                   lost_keys = NULL, columns_in_doubt = NULL
             WHERE pipeline = %s AND "table" = %s
            """,
            (ledger.pipeline, table),
        )


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


def any_joining(ledger: Ledger) -> bool:
    """Whether a table joined in the stream, which preflight has not judged yet."""
    return ledger.holds(
        "SELECT 1 FROM tidemark.tables WHERE pipeline = %s AND capture_state = 'joining'", (ledger.pipeline,)
    )


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


def with_holes(ledger: Ledger) -> set[str]:
    """The tables whose target was last seen with holes."""
    query = """SELECT "table" FROM tidemark.tables WHERE pipeline = %s AND holes <> '{}'"""
    return {table for (table,) in ledger.execute(query, (ledger.pipeline,))}


def versions_of(
    ledger: Ledger, names: Iterable[str] | None, *, only_streamed: bool = False
) -> dict[str, list[TableSchema]]:
    """The schema versions of these tables (None: all), oldest first; without those that have none."""
    tables = None if names is None else sorted(names)
    rows = ledger.execute(
        'SELECT "table", definition FROM tidemark.schema_versions WHERE pipeline = %s '
        'AND (%s::text[] IS NULL OR "table" = ANY(%s)) AND (streamed OR NOT %s) ORDER BY "table", version',
        (ledger.pipeline, tables, tables, only_streamed),
    )
    by_table: dict[str, list[TableSchema]] = {}
    for table, definition in rows:
        by_table.setdefault(table, []).append(TableSchema.from_json(definition))
    return by_table


def versions(ledger: Ledger, table: str) -> list[TableSchema]:
    """The table's schema versions, oldest first."""
    return versions_of(ledger, [table]).get(table, [])
