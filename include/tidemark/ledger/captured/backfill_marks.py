"""Marks tables whose target lacks rows or values, and takes the marks away (R8, R11).

`schema.table_life`, machine `target`, has the transitions. A mark has a kind and a reason; a backfill ends it. Reasons
contain no row's value. Callers write inside a fenced transaction, as for `merge_states`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from psycopg.types.json import Jsonb

from tidemark.formats.merge_result import Holes
from tidemark.ledger.captured import table_lives, tables
from tidemark.ledger.connection import Ledger
from tidemark.schema import table_life

# Kinds of marks; those of a changed fingerprint come with the mark. EXISTING_ROWS and HOLES give way to another: they
# end by themselves, when the table is seen empty or the holes are filled, and the target may differ otherwise than by
# them.
EXISTING_ROWS: Final = table_life.EXISTING_ROWS
# It comes back into the pipeline file or the publication.
REJOINED: Final = "rejoined"
# It starts anew, in Delta tables of the first shape that arrives.
BEGUN_ANEW: Final = "begun_anew"
GAP: Final = "gap"
# The target has changes that the source has lost. `lost_keys` lists their rows if they are known.
FORK: Final = "fork"
HOLES: Final = table_life.HOLES
# A backfill of some columns met rows that the target has not.
ROWS_LACKING: Final = "rows_lacking"
# Its Delta tables are built from staging, and no backfill is wanted: the merge that builds them takes the mark away.
REPLAYED: Final = "replayed"

# What a mark of that kind is in a table's life; any other kind is one that does not end by itself.
_MARKED: Final = {EXISTING_ROWS: "miss_rows", HOLES: "miss_values"}


def mark(
    ledger: Ledger, table: str, kind: str, reason: str, columns: Collection[int] = (), *, horizon: int | None = None
) -> None:
    """Mark the table. A mark it already has stays, unless it is of the same kind or a weaker one: HOLES gives way to
    any other, EXISTING_ROWS to all but HOLES, REPLAYED to all but these two. `marks` rises in any case, so that no
    backfill that was opened before takes the mark away. After any mark but HOLES, any row may be wrong; in these
    `columns` alone, if there are any, and no mark from before says more.

    `horizon` is a transaction id from after the mark's cause. A transaction that was open then may be neither in the
    stream nor visible to a backfill, or may be in the stream with rows that the table does not have any more. So the
    next backfill waits for it, as for the join horizon."""
    weaker = [] if kind == HOLES else [HOLES, EXISTING_ROWS]
    if kind not in (HOLES, EXISTING_ROWS):
        weaker.append(REPLAYED)
    with table_lives.step(ledger, "target", _MARKED.get(kind, "need_backfill"), [table]):
        ledger.execute(
            """
            UPDATE tidemark.tables
               SET needs_backfill = true, marks = marks + 1,
                   join_horizon = CASE WHEN join_horizon IS NOT NULL
                                       THEN greatest(join_horizon, %(horizon)s::bigint) END,
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
                "horizon": horizon,
            },
        )


def rename(ledger: Ledger, table: str, kind: str, reason: str) -> None:
    """Replace the kind and the reason of a mark. A table without a mark gets none."""
    with table_lives.step(ledger, "target", "need_backfill", [table]):
        ledger.execute(
            "UPDATE tidemark.tables SET backfill_kind = %s, backfill_reason = %s "
            'WHERE pipeline = %s AND "table" = %s AND needs_backfill',
            (kind, reason, ledger.pipeline, table),
        )


def clear(ledger: Ledger, table: str, event: str = "backfill") -> None:
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


def mark_lost(ledger: Ledger, table: str, reason: str, keys: Sequence[Sequence[str]] | None) -> None:
    """The target has changes of these keys (None: of any) that the source lost. Of a table that needed a backfill of
    all its rows before, that stays so."""
    tables.add(ledger, table)
    row = tables.one(ledger, table)
    assert row is not None
    lost = None
    if keys is not None and row.life.target in (table_life.COMPLETE, table_life.HOLES):
        lost = [list(key) for key in keys]
    elif keys is not None and row.lost_keys is not None:
        lost = [list(key) for key in dict.fromkeys(tuple(key) for key in (*row.lost_keys, *keys))]
    mark(ledger, table, FORK, reason)
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


def keep_holes(ledger: Ledger, table: str, holes: Holes) -> None:
    """Record the rows of the target whose unchanged values are unknown. Marks the table, or ends its mark for them."""
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
        clear(ledger, table, "fill_holes")


def mark_holes(ledger: Ledger, table: str) -> None:
    """Mark the table where it has holes and no open backfill, which may fill them: what is left when that ends is
    marked then."""
    holes = ledger.value(
        """
        SELECT holes FROM tidemark.tables t
         WHERE pipeline = %s AND "table" = %s AND holes <> '{}'
           AND NOT EXISTS (SELECT 1 FROM tidemark.backfills b
                            WHERE b.pipeline = t.pipeline AND b."table" = t."table" AND b.state = 'open'
                              AND b.purpose = 'fill')
        """,
        (ledger.pipeline, table),
    )
    if holes is not None:
        listed = ", ".join(f"{count} in {column}" for column, count in sorted(holes.items()))
        reason = f"unchanged values whose base is known nowhere: {listed}"
        mark(ledger, table, HOLES, reason)


def with_holes(ledger: Ledger) -> set[str]:
    """The tables whose target was last seen with holes."""
    query = """SELECT "table" FROM tidemark.tables WHERE pipeline = %s AND holes <> '{}'"""
    return {table for (table,) in ledger.execute(query, (ledger.pipeline,))}


def restarted(ledger: Ledger) -> set[str]:
    """The tables that start anew and have nothing staged or merged since. Their Delta tables are created in the
    first shape that arrives."""
    rows = ledger.execute(
        """
        SELECT t."table" FROM tidemark.tables t
         WHERE t.pipeline = %s AND t.needs_backfill AND t.backfill_kind = %s
           AND NOT EXISTS (SELECT 1 FROM tidemark.unapplied u
                            WHERE u.pipeline = t.pipeline AND u."table" = t."table")
           -- Of what is merged the batches may be forgotten.
           AND NOT EXISTS (SELECT 1 FROM tidemark.positions p
                            WHERE p.pipeline = t.pipeline AND p."table" = t."table"
                              AND (p.history_lsn, p.current_lsn) IS DISTINCT FROM (p.begun_lsn, p.begun_lsn))
        """,
        (ledger.pipeline, BEGUN_ANEW),
    )
    return {table for (table,) in rows}
