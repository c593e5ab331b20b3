"""Decides, in bounded transactions, which staging, backfills and plans can go, and deletes their rows (R4, R5, R7).

    staged ──mark──► retired ──its files are deleted──► removed ──► no row

A batch is retired table by table, and only within the longest prefix of its generation's chain in which every batch

- was registered before the cutoff, and ends at or below the slot's confirmed position,
- is applied to every table it touches, unless that is parked or paused,
- has no transaction that a snapshot taken from now on may not see (its ids lie below `xmin`).

Within this prefix, a table keeps the batches that are not applied to it (if it is parked or paused). It also keeps the
evidence of its open backfill, of its claimed chunks that are not applied, and of unfinished sweeps: changes that their
snapshots may not include, and the batches that claimed the other chunks of a sweep.

Retired batches are never read again. A plan contains unapplied batches, and as evidence batches with a transaction that
a claim or sweep of the plan did not see, or with chunks of a swept backfill. Unapplied claims and sweeps are in the
ledger now. A later claim comes from a backfill that is open now, whose snapshot is older than those of its chunks, or
from a later backfill: `backfills.create` and `mark` exclude each other by the pipeline's row, and `create` refuses a
snapshot whose xmin is not above `retired_xid`. A snapshot above it includes every transaction below.

The newest retired row of each table and generation stays, and the newest with files: `batches.previous_ends` and
`schema_versions.merged` read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from tidemark.formats.retired_file import RetiredFile
from tidemark.ledger.captured import unfit_values
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.staged.snapshot_evidence import NeededEvidence
from tidemark.lsn import Lsn

# Of batch_tables, that one transaction retires: some 100,000 in five seconds.
MOST_ROWS: Final = 100_000


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """Batches below the prefix's end whose files a table keeps, and their size. `held`: because the table is parked
    or paused."""

    batches: int
    bytes: int
    held: bool


@dataclass(frozen=True, slots=True)
class RetiredPrefix:
    """`file` has the position up to which the generation is retired; `rows` are the rows that this call retired.
    `held_by` is the reason why the prefix ends before the cutoff, "" if it does not."""

    file: RetiredFile
    rows: int
    bytes: int
    kept: dict[str, KeptFiles]
    held_by: str


def numbers(ledger: Ledger) -> list[int]:
    """The generations with anything that is not retired or not removed yet, ascending; the open one is the last."""
    rows = ledger.execute(
        """
        SELECT number FROM tidemark.generations g
         WHERE pipeline = %(pipeline)s
           AND (number = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
                OR EXISTS (SELECT 1 FROM tidemark.batches b
                            WHERE b.pipeline = g.pipeline AND b.generation = g.number AND b.removed_at IS NULL))
         ORDER BY number
        """,
        {"pipeline": ledger.pipeline},
    )
    return [number for (number,) in rows]


def retired_lsn(ledger: Ledger, generation: int) -> Lsn | None:
    """The position below which the generation is retired, except for files that single tables keep."""
    return ledger.value(
        "SELECT retired_lsn FROM tidemark.generations WHERE pipeline = %s AND number = %s",
        (ledger.pipeline, generation),
    )


def mark(
    ledger: Ledger,
    lease: Lease,
    generation: int,
    *,
    cutoff: datetime,
    confirmed: Lsn | None = None,
    xmin: int | None = None,
) -> RetiredPrefix:
    """Retire what the generation no longer needs and registered before `cutoff`. Needs the lease `slot`.

    For the open generation `confirmed` is the slot's position and `xmin` that of a snapshot taken at the source under
    the same lease. Older generations need neither: nothing of them is sent or read again. Runs piece by piece: after a
    month without maintenance a single transaction would exceed the ledger's statement timeout every time.
    """
    rows, size = 0, 0
    while True:
        marked, is_all = _mark_some(ledger, lease, generation, cutoff, confirmed, xmin)
        rows, size = rows + marked.rows, size + marked.bytes
        if is_all:
            return replace(marked, rows=rows, bytes=size)


def _mark_some(
    ledger: Ledger, lease: Lease, generation: int, cutoff: datetime, confirmed: Lsn | None, xmin: int | None
) -> tuple[RetiredPrefix, bool]:
    """Retire about MOST_ROWS of the oldest rows; returns whether that was all."""
    with ledger.transaction():
        lease.check(ledger, SLOT)
        # Opening a backfill shares this row: its snapshot is seen below, or it sees what is retired here.
        ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR UPDATE", (ledger.pipeline,))
        whole, held_by = _prefix(ledger, generation, cutoff, confirmed, xmin)
        up_to = min(whole, _end_of_some(ledger, generation) or whole)
        pins = _pins(ledger, generation)
        retired = [_retire(ledger, generation, up_to, None, sorted(pins), NeededEvidence())]
        retired += [_retire(ledger, generation, up_to, table, [], pin) for table, pin in sorted(pins.items())]
        retire_whole_batches(ledger, generation, up_to)
        max_xid = max((xid for _, _, xid in retired if xid is not None), default=None)
        row = ledger.row(
            """
            UPDATE tidemark.generations SET retired_lsn = %s, retired_xid = greatest(retired_xid, %s)
             WHERE pipeline = %s AND number = %s RETURNING retired_xid
            """,
            (up_to, max_xid, ledger.pipeline, generation),
        )
        kept = _kept(ledger, generation, up_to)
        unfit = unfit_values.all_of(ledger)
    marked = RetiredPrefix(
        file=RetiredFile(ledger.pipeline, generation, up_to, row[0], tuple(sorted(kept)), unfit),
        rows=sum(rows for rows, _, _ in retired),
        bytes=sum(size for _, size, _ in retired),
        kept=kept,
        held_by=held_by,
    )
    return marked, up_to == whole


def retire_whole_batches(ledger: Ledger, generation: int, up_to: Lsn) -> None:
    """Retire each batch up to this position if all of its tables are retired."""
    ledger.execute(
        """
        UPDATE tidemark.batches b SET retired_at = clock_timestamp()
         WHERE pipeline = %s AND generation = %s AND end_lsn <= %s AND retired_at IS NULL
           AND NOT EXISTS (SELECT 1 FROM tidemark.batch_tables t
                            WHERE t.pipeline = b.pipeline AND t.generation = b.generation
                              AND t.end_lsn = b.end_lsn AND t.retired_at IS NULL)
        """,
        (ledger.pipeline, generation, up_to),
    )


def _end_of_some(ledger: Ledger, generation: int) -> Lsn | None:
    """The end of a batch up to which about MOST_ROWS are not retired; None if there are no more."""
    return ledger.value(
        """
        SELECT b.end_lsn FROM tidemark.batch_tables b
         WHERE b.pipeline = %(pipeline)s AND b.generation = %(generation)s
           AND b.end_lsn > (SELECT coalesce(g.retired_lsn, g.start_lsn) FROM tidemark.generations g
                             WHERE g.pipeline = %(pipeline)s AND g.number = %(generation)s)
         ORDER BY b.end_lsn OFFSET %(most)s LIMIT 1
        """,
        {"generation": generation, "most": MOST_ROWS},
    )


def _prefix(
    ledger: Ledger, generation: int, cutoff: datetime, confirmed: Lsn | None, xmin: int | None
) -> tuple[Lsn, str]:
    """The end of the prefix, never below its last end, and the reason if it is not the cutoff."""
    row = ledger.row(
        """
        SELECT g.staged_lsn, coalesce(g.retired_lsn, g.start_lsn),
               (SELECT min(start_lsn) FROM tidemark.batches b
                 WHERE b.pipeline = g.pipeline AND b.generation = g.number AND b.retired_at IS NULL
                   AND b.registered_at >= %(cutoff)s),
               (SELECT min(start_lsn) FROM tidemark.batches b
                 WHERE b.pipeline = g.pipeline AND b.generation = g.number AND b.retired_at IS NULL
                   AND b.end_lsn > %(confirmed)s::pg_lsn),
               (SELECT min(start_lsn) FROM tidemark.batch_tables b
                 WHERE b.pipeline = g.pipeline AND b.generation = g.number AND b.retired_at IS NULL
                   AND b.max_xid >= %(xmin)s::bigint),
               (SELECT min(u.start_lsn) FROM tidemark.unapplied u JOIN tidemark.tables t USING (pipeline, "table")
                 WHERE u.pipeline = g.pipeline AND u.generation = g.number AND t.state NOT IN ('parked', 'paused'))
          FROM tidemark.generations g WHERE g.pipeline = %(pipeline)s AND g.number = %(generation)s
        """,
        {
            "cutoff": cutoff,
            "confirmed": confirmed,
            "xmin": xmin,
            "generation": generation,
        },
    )
    staged, before, young, unconfirmed, unseen, unapplied = row
    by_age = staged if young is None else young
    causes = {
        "the slot is not confirmed beyond it": unconfirmed,
        "a transaction that began before is still open at the source": unseen,
        "a table that is neither parked nor paused has not taken what follows": unapplied,
    }
    cause, end = min(
        ((cause, lsn) for cause, lsn in causes.items() if lsn is not None),
        key=lambda pair: pair[1],
        default=("", by_age),
    )
    if end >= by_age:
        cause, end = "", by_age
    return max(before, end), cause


def _pins(ledger: Ledger, generation: int) -> dict[str, NeededEvidence]:
    """Applied batches that a table still needs."""
    pins: dict[str, NeededEvidence] = {}
    opened = ledger.execute(
        """
        SELECT "table", backfill, mode, snapshot, snapshot_lsn FROM tidemark.backfills
         WHERE pipeline = %s AND generation = %s AND state = 'open'
        """,
        (ledger.pipeline, generation),
    )
    for table, backfill, mode, snapshot, snapshot_lsn in opened:
        pin = pins.setdefault(table, NeededEvidence())
        pin.add_snapshot(snapshot)
        pin.swept.add(backfill)
        if mode == "exported_snapshot":
            # The slot whose snapshot is exported is made later, so its consistent point lies above.
            pin.add_point(Lsn(0) if snapshot_lsn is None else snapshot_lsn)
    unapplied = ledger.execute(
        """
        SELECT "table", claims, sweeps FROM tidemark.unapplied
         WHERE pipeline = %s AND generation = %s AND (claims <> '[]' OR sweeps <> '[]')
        """,
        (ledger.pipeline, generation),
    )
    for table, claims, sweeps in unapplied:
        pin = pins.setdefault(table, NeededEvidence())
        for claim in claims:
            point = claim["consistent_point"]
            pin.add_chunk(claim["snapshot"], None if point is None else Lsn.parse(point))
        for sweep in sweeps:
            pin.add_snapshot(sweep["snapshot"])
            pin.swept.add(sweep["backfill"])
    return pins


def _retire(
    ledger: Ledger, generation: int, up_to: Lsn, table: str | None, other_tables: Sequence[str], pin: NeededEvidence
) -> tuple[int, int, int | None]:
    """Rows, bytes and the highest transaction id that are retired of `table`, or of all but `other_tables`."""
    row = ledger.row(
        """
        WITH done AS (
            UPDATE tidemark.batch_tables b SET retired_at = clock_timestamp()
              FROM tidemark.positions p
             WHERE b.pipeline = %(pipeline)s AND b.generation = %(generation)s AND b.end_lsn <= %(up_to)s
               AND b.retired_at IS NULL
               AND (%(table)s::text IS NULL OR b."table" = %(table)s) AND b."table" <> ALL(%(others)s)
               AND (p.pipeline, p.generation, p."table") = (b.pipeline, b.generation, b."table")
               AND p.applied_lsn >= b.end_lsn
               AND (b.max_xid >= %(xmin)s::bigint) IS NOT TRUE
               AND (b.max_xid IS NOT NULL AND b.end_lsn > %(point)s::pg_lsn) IS NOT TRUE
               AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(b.claims) c WHERE c ->> 'backfill' = ANY(%(swept)s))
            RETURNING b.bytes, b.max_xid)
        SELECT count(*), coalesce(sum(bytes), 0)::bigint, max(max_xid) FROM done
        """,
        {
            "generation": generation,
            "up_to": up_to,
            "table": table,
            "others": list(other_tables),
            "xmin": pin.xmin,
            "point": pin.point,
            "swept": sorted(pin.swept),
        },
    )
    return row[0], row[1], row[2]


def _kept(ledger: Ledger, generation: int, up_to: Lsn) -> dict[str, KeptFiles]:
    rows = ledger.execute(
        """
        SELECT b."table", count(*), sum(b.bytes)::bigint, t.state IN ('parked', 'paused')
          FROM tidemark.batch_tables b JOIN tidemark.tables t USING (pipeline, "table")
         WHERE b.pipeline = %s AND b.generation = %s AND b.end_lsn <= %s AND b.retired_at IS NULL
         GROUP BY b."table", t.state
        """,
        (ledger.pipeline, generation, up_to),
    )
    return {table: KeptFiles(count, size, held) for table, count, size, held in rows}


# --- removing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetiredBatch:
    """A batch with files to remove: all of its files, or those of some tables (`paths`)."""

    end_lsn: Lsn
    manifest: str
    is_whole: bool
    paths: tuple[str, ...]


def to_remove(ledger: Ledger, generation: int, most: int) -> list[RetiredBatch]:
    """The oldest batches with retired files that are not removed, at most `most` of them. Files of a table that is
    replayed from them (`ledger.captured.replays`) stay until the whole batch is removed."""
    rows = ledger.execute(
        """
        SELECT b.end_lsn, b.manifest, b.retired_at IS NOT NULL,
               ARRAY(SELECT file ->> 'path'
                       FROM tidemark.batch_tables t CROSS JOIN LATERAL jsonb_array_elements(t.files) AS file
                      WHERE (t.pipeline, t.generation, t.end_lsn) = (b.pipeline, b.generation, b.end_lsn)
                        AND t.retired_at IS NOT NULL AND t.removed_at IS NULL
                        AND NOT EXISTS (
                            SELECT 1 FROM tidemark.batch_tables o
                             WHERE (o.pipeline, o.generation, o.end_lsn) = (b.pipeline, b.generation, b.end_lsn)
                               AND o."table" <> t."table" AND o.retired_at IS NULL
                               AND o.files @> jsonb_build_array(jsonb_build_object('path', file ->> 'path'))))
          FROM tidemark.batches b
          JOIN (SELECT end_lsn FROM tidemark.batches
                 WHERE pipeline = %(pipeline)s AND generation = %(generation)s
                   AND retired_at IS NOT NULL AND removed_at IS NULL
                UNION
                SELECT end_lsn FROM tidemark.batch_tables
                 WHERE pipeline = %(pipeline)s AND generation = %(generation)s
                   AND retired_at IS NOT NULL AND removed_at IS NULL
                 ORDER BY end_lsn LIMIT %(most)s) due USING (end_lsn)
         WHERE b.pipeline = %(pipeline)s AND b.generation = %(generation)s
         ORDER BY b.end_lsn
        """,
        {"generation": generation, "most": most},
    )
    return [RetiredBatch(end, manifest, whole, tuple(paths)) for end, manifest, whole, paths in rows]


def removed(ledger: Ledger, generation: int, removed_batches: Iterable[RetiredBatch]) -> None:
    """Record that these files are removed, and delete their rows."""
    ends = [batch.end_lsn for batch in removed_batches]
    whole = [batch.end_lsn for batch in removed_batches if batch.is_whole]
    with ledger.transaction():
        ledger.execute(
            """
            UPDATE tidemark.batch_tables SET removed_at = clock_timestamp()
             WHERE pipeline = %s AND generation = %s AND end_lsn = ANY(%s)
               AND retired_at IS NOT NULL AND removed_at IS NULL
            """,
            (ledger.pipeline, generation, ends),
        )
        ledger.execute(
            "UPDATE tidemark.batches SET removed_at = clock_timestamp() "
            "WHERE pipeline = %s AND generation = %s AND end_lsn = ANY(%s) AND retired_at IS NOT NULL",
            (ledger.pipeline, generation, whole),
        )
        # A newer one says the same of the table; what has no files says nothing of its version.
        ledger.execute(
            """
            DELETE FROM tidemark.batch_tables b
             WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND removed_at IS NOT NULL
               AND EXISTS (SELECT 1 FROM tidemark.batch_tables n
                            WHERE n.pipeline = b.pipeline AND n.generation = b.generation AND n."table" = b."table"
                              AND n.end_lsn > b.end_lsn AND n.retired_at IS NOT NULL
                              AND (n.files <> '[]' OR b.files = '[]'))
            """,
            {"generation": generation},
        )
        ledger.execute(
            """
            DELETE FROM tidemark.batches b
             WHERE pipeline = %s AND generation = %s AND removed_at IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM tidemark.batch_tables t
                                WHERE t.pipeline = b.pipeline AND t.generation = b.generation
                                  AND t.end_lsn = b.end_lsn)
            """,
            (ledger.pipeline, generation),
        )


def registered_below(ledger: Ledger, generation: int, lsn: Lsn) -> set[tuple[Lsn, str]]:
    """Start and attempt of the generation's batches below `lsn` whose folders exist."""
    rows = ledger.execute(
        """
        SELECT start_lsn, attempt FROM tidemark.batches
         WHERE pipeline = %s AND generation = %s AND start_lsn < %s AND removed_at IS NULL
        """,
        (ledger.pipeline, generation, lsn),
    )
    return {(start, attempt) for start, attempt in rows}


# --- backfills and plans ----------------------------------------------------------------------------------------------


def ended_backfills(ledger: Ledger, cutoff: datetime) -> list[str]:
    """The backfills that ended before `cutoff` and have chunks in no batch that is not retired."""
    rows = ledger.execute(
        """
        SELECT b.backfill FROM tidemark.backfills b
         WHERE b.pipeline = %(pipeline)s AND b.state <> 'open' AND b.ended_at < %(cutoff)s AND b.removed_at IS NULL
           AND b.backfill NOT IN (
               SELECT c ->> 'backfill'
                 FROM tidemark.batch_tables t CROSS JOIN LATERAL jsonb_array_elements(t.claims) AS c
                WHERE t.pipeline = %(pipeline)s AND t.retired_at IS NULL AND t.claims <> '[]')
         ORDER BY b.ended_at, b.backfill
        """,
        {"cutoff": cutoff},
    )
    return [backfill for (backfill,) in rows]


def backfill_removed(ledger: Ledger, backfill: str) -> None:
    """Record that the backfill's files are removed, and delete its rows, unless it is the newest of its table or
    the newest with claimed rows (`chunks.has_read_rows` needs that)."""
    with ledger.transaction():
        ledger.execute(
            "UPDATE tidemark.backfills SET removed_at = clock_timestamp() WHERE pipeline = %s AND backfill = %s",
            (ledger.pipeline, backfill),
        )
        ledger.execute(
            "DELETE FROM tidemark.leases WHERE pipeline = %s AND starts_with(name, 'range:' || %s || ':') "
            "AND expires_at < clock_timestamp()",
            (ledger.pipeline, backfill),
        )
        claimed = """EXISTS (SELECT 1 FROM tidemark.chunks c WHERE c.pipeline = {0}.pipeline
                              AND c.backfill = {0}.backfill AND c.rows > 0 AND c.claimed_lsn IS NOT NULL)"""
        query = f"""
            SELECT b.backfill FROM tidemark.backfills b
             WHERE b.pipeline = %s AND b.removed_at IS NOT NULL
               AND EXISTS (SELECT 1 FROM tidemark.backfills n
                            WHERE n.pipeline = b.pipeline AND n."table" = b."table"
                              AND (n.opened_at, n.backfill) > (b.opened_at, b.backfill)
                              AND ({claimed.format("n")} OR NOT {claimed.format("b")}))
            """
        gone = [name for (name,) in ledger.execute(query.encode(), (ledger.pipeline,))]
        for table in ("chunks", "ranges", "backfills"):
            statement = f"DELETE FROM tidemark.{table} WHERE pipeline = %s AND backfill = ANY(%s)"
            ledger.execute(statement.encode(), (ledger.pipeline, gone))


def needed_backfills(ledger: Ledger) -> set[str]:
    """The backfills whose files exist, and those with chunks in a batch that is not retired."""
    rows = ledger.execute(
        """
        SELECT backfill FROM tidemark.backfills WHERE pipeline = %(pipeline)s AND removed_at IS NULL
        UNION
        SELECT c ->> 'backfill' FROM tidemark.batch_tables t CROSS JOIN LATERAL jsonb_array_elements(t.claims) AS c
         WHERE t.pipeline = %(pipeline)s AND t.retired_at IS NULL AND t.claims <> '[]'
        """,
        {"pipeline": ledger.pipeline},
    )
    return {backfill for (backfill,) in rows}


def ended_plans(ledger: Ledger, cutoff: datetime, most: int) -> list[str]:
    """The oldest plans from before `cutoff` that nobody waits for and whose batches are all retired."""
    rows = ledger.execute(
        """
        SELECT p.plan FROM tidemark.plans p
          JOIN tidemark.generations g ON g.pipeline = p.pipeline AND g.number = p.generation
         WHERE p.pipeline = %s AND p.created_at < %s AND (p.ingested_at IS NOT NULL OR p.abandoned_at IS NOT NULL)
           AND NOT EXISTS (SELECT 1 FROM jsonb_each_text(p.tables) AS t
                            WHERE g.retired_lsn IS NULL OR t.value::pg_lsn > g.retired_lsn)
         ORDER BY p.created_at, p.plan LIMIT %s
        """,
        (ledger.pipeline, cutoff, most),
    )
    return [plan for (plan,) in rows]


def plans_removed(ledger: Ledger, names: Sequence[str]) -> None:
    """Delete the rows of plans whose files are removed."""
    ledger.execute("DELETE FROM tidemark.plans WHERE pipeline = %s AND plan = ANY(%s)", (ledger.pipeline, list(names)))


# --- the last run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastMaintenance:
    """The results of the last run for staging and ledger, and for the Delta tables; {} before the first run."""

    ended_at: datetime
    retired: dict[str, Any]
    tables: dict[str, Any]


def last(ledger: Ledger) -> LastMaintenance | None:
    """The pipeline's last maintenance, None before the first."""
    row = ledger.execute(
        "SELECT ended_at, coalesce(retired, '{}'), coalesce(tables, '{}') FROM tidemark.maintenance "
        "WHERE pipeline = %s",
        (ledger.pipeline,),
    ).fetchone()
    return None if row is None else LastMaintenance(*row)


def note(ledger: Ledger, *, retired: dict[str, Any] | None = None, tables: dict[str, Any] | None = None) -> None:
    """Record the results of a maintenance; a part that is None keeps its last value."""
    ledger.execute(
        """
        INSERT INTO tidemark.maintenance AS last (pipeline, ended_at, retired, tables)
        VALUES (%s, clock_timestamp(), %s, %s)
        ON CONFLICT (pipeline) DO UPDATE
           SET ended_at = excluded.ended_at, retired = coalesce(excluded.retired, last.retired),
               tables = coalesce(excluded.tables, last.tables)
        """,
        (
            ledger.pipeline,
            None if retired is None else Jsonb(retired),
            None if tables is None else Jsonb(tables),
        ),
    )
