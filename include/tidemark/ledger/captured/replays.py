"""Records replays from staging: which rows are copied from the present history, and which batches are applied again.

    retired, or one of these │ applied once more          │ its own
    ─────────────────────────┼────────────────────────────┼───────────────►  staged
    taken over from history  base                         begun_lsn

Everything up to the `base` counts as applied to the new table (`positions.begun_lsn`); its first merge copies these
rows from the live history. The ledger's rows of later batches are copied to its id. From then on it is an ordinary
table with unapplied batches. The manifest records the replay, so a rebuilt ledger copies the same rows.

The base is the end of the last batch that cannot be applied by itself: it is retired, was passed over, claims merged
chunks (their evidence may be removed), follows an older definition, or is the first one of the newest definition. All
later batches follow one definition and are applied in order. Chunks of a verify are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from tidemark.formats.manifest import BatchManifest
from tidemark.formats.merge_plan import HistoryBase
from tidemark.ledger.captured import backfill_marks, joins, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import positions
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.strict_json import to_builtins

# What a mark that ends by itself becomes: that of the table before is not this one's to end.
_CARRIED = "what it was built of lacked rows or values"


@dataclass(frozen=True, slots=True)
class ReplayableStaging:
    """The staging of a table in the open generation: everything up to `base` has to be copied from history, and the
    later `batches` can be applied again."""

    base: Lsn
    batches: int


def staged(ledger: Ledger, generation: int, table: str) -> ReplayableStaging:
    """Of a table of which nothing is known, all that is staged has to be taken over."""
    rows = ledger.execute(
        """
        SELECT b.end_lsn, b.retired_at IS NOT NULL,
               b.end_lsn <= coalesce((SELECT p.begun_lsn FROM tidemark.positions p
                                       WHERE p.pipeline = b.pipeline AND p.generation = b.generation
                                         AND p."table" = b."table"), '0/0'),
               EXISTS (SELECT 1 FROM jsonb_array_elements(b.claims || b.sweeps) AS c
                        WHERE coalesce(c ->> 'purpose', 'fill') <> 'verify'),
               ARRAY(SELECT DISTINCT (f ->> 'schema_version')::int FROM jsonb_array_elements(b.files) AS f)
          FROM tidemark.batch_tables b
         WHERE b.pipeline = %s AND b.generation = %s AND b."table" = %s ORDER BY b.end_lsn
        """,
        (ledger.pipeline, generation, table),
    ).fetchall()
    newest = max((version for *_, versions in rows for version in versions), default=0)
    base, behind, follows_newest = None, 0, False
    for end, is_retired, is_passed_over, claims, versions in rows:
        may_be_applied = not (is_retired or is_passed_over or claims) and set(versions) <= {newest}
        if versions:
            may_be_applied = may_be_applied and follows_newest
            follows_newest = versions == [newest]
        base, behind = (base, behind + bool(versions)) if may_be_applied else (end, 0)
    return ReplayableStaging(base or _staged_lsn(ledger, generation), behind)


def _staged_lsn(ledger: Ledger, generation: int) -> Lsn:
    ((staged_lsn,),) = ledger.execute(
        "SELECT staged_lsn FROM tidemark.generations WHERE pipeline = %s AND number = %s", (ledger.pipeline, generation)
    )
    return Lsn(staged_lsn)


def begin(ledger: Ledger, manifest: BatchManifest, table: str, before: str) -> Lsn:
    """Make `table` a copy of the other one: its join, definitions, fingerprint and marks. The staged batches wait
    for it. Returns its base. Both rows are locked."""
    base = staged(ledger, manifest.generation, before).base
    values = {
        "table": table,
        "name": Jsonb(to_builtins(TableName.parse(table))),
        "before": before,
        "generation": manifest.generation,
        "base": base,
    }
    joins.take_over(ledger, table, before)
    ledger.execute(
        """
        UPDATE tidemark.tables t SET fingerprint = b.fingerprint
          FROM tidemark.tables b
         WHERE t.pipeline = %(pipeline)s AND t."table" = %(table)s
           AND b.pipeline = %(pipeline)s AND b."table" = %(before)s
        """,
        values,
    )
    ledger.execute(
        """
        INSERT INTO tidemark.schema_versions AS known
               (pipeline, generation, start_lsn, "table", version, definition, streamed)
        SELECT pipeline, generation, start_lsn, %(table)s, version,
               jsonb_set(definition, '{table}', %(name)s), streamed
          FROM tidemark.schema_versions WHERE pipeline = %(pipeline)s AND "table" = %(before)s
        ON CONFLICT (pipeline, "table", version) DO UPDATE
           SET generation = excluded.generation, start_lsn = excluded.start_lsn, streamed = excluded.streamed
        """,
        values,
    )
    ledger.execute(
        """
        INSERT INTO tidemark.batch_tables
               (pipeline, generation, start_lsn, end_lsn, "table", files, counts, converted, unchanged, moved, changes,
                bytes, max_xid)
        SELECT pipeline, generation, start_lsn, end_lsn, %(table)s, files, counts, converted, unchanged, moved, changes,
               bytes, max_xid
          FROM tidemark.batch_tables
         WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND "table" = %(before)s
           AND end_lsn > %(base)s::pg_lsn AND files <> '[]'
        ON CONFLICT DO NOTHING
        """,
        values,
    )
    positions.start_at(ledger, manifest.generation, table, base)
    row = tables.one(ledger, before)
    if row is not None and row.life.needs_backfill:
        kind, reason = row.backfill_kind or backfill_marks.GAP, row.backfill_reason or ""
        if kind in (backfill_marks.HOLES, backfill_marks.EXISTING_ROWS):
            kind, reason = backfill_marks.GAP, f"{_CARRIED}: {reason}"
        backfill_marks.mark(ledger, table, kind, reason)
    return base


def bases(ledger: Ledger) -> dict[str, HistoryBase]:
    """By table, the base of those that are only recorded as begun."""
    rows = ledger.execute(
        """
        SELECT s."table", s.before, s.base_generation, s.base_lsn FROM tidemark.shapes s
          JOIN tidemark.positions p
               ON p.pipeline = s.pipeline AND p.generation = s.base_generation AND p."table" = s."table"
         WHERE s.pipeline = %s AND s.begun_lsn IS NOT NULL AND p.applied_lsn = s.base_lsn AND p.begun_lsn = s.base_lsn
        """,
        (ledger.pipeline,),
    )
    return {table: HistoryBase(before, generation, lsn) for table, before, generation, lsn in rows}


def waiting(ledger: Ledger) -> set[str]:
    """The tables whose base is not merged yet into the table that it is copied from."""
    rows = ledger.execute(
        """
        SELECT s."table" FROM tidemark.shapes s
         WHERE s.pipeline = %s AND s.base_lsn IS NOT NULL AND s.placed_at IS NULL
           AND EXISTS (SELECT 1 FROM tidemark.unapplied u
                        WHERE u.pipeline = s.pipeline AND u."table" = s.before
                          AND (u.generation, u.end_lsn) <= (s.base_generation, s.base_lsn))
        """,
        (ledger.pipeline,),
    )
    return {table for (table,) in rows}


def unplaced(ledger: Ledger) -> dict[str, str]:
    """By the replaced table, the new tables that readers do not use yet."""
    rows = ledger.execute(
        'SELECT before, "table" FROM tidemark.shapes '
        "WHERE pipeline = %s AND base_lsn IS NOT NULL AND placed_at IS NULL "
        'AND "table" NOT IN (SELECT before FROM tidemark.shapes WHERE pipeline = %s AND begun_lsn IS NOT NULL)',
        (ledger.pipeline, ledger.pipeline),
    )
    return dict(rows.fetchall())


def why_not(ledger: Ledger, generation: int, table: str) -> str | None:
    """The reason why a table cannot be replayed now, half a sentence; None if it can."""
    row = tables.one(ledger, table)
    if row is None or not row.life.can_be_read:
        return "is not captured, or its join is not judged yet"
    if row.life.needs_backfill:
        return "needs a backfill, which builds on what is there and brings what it lacks"
    there = staged(ledger, generation, table)
    unapplied = ledger.execute(
        'SELECT generation, end_lsn FROM tidemark.unapplied WHERE pipeline = %s AND "table" = %s',
        (ledger.pipeline, table),
    ).fetchall()
    if any(number < generation for number, _ in unapplied):
        return "has changes of an older generation that are not merged yet"
    if not there.batches:
        return f"has no batch in staging that can be applied once more: up to {there.base} history is taken over"
    if any(end_lsn <= there.base for _, end_lsn in unapplied):
        return f"is not merged up to {there.base} yet, up to where its history has to be taken over"
    return None


def end(ledger: Ledger) -> None:
    """Clear the marks of tables that are built: everything that was staged before they began is applied to them."""
    rows = ledger.execute(
        """
        SELECT t."table" FROM tidemark.tables t
          JOIN tidemark.shapes s ON s.pipeline = t.pipeline AND s."table" = t."table" AND s.begun_lsn IS NOT NULL
          JOIN tidemark.positions p
               ON p.pipeline = s.pipeline AND p.generation = s.base_generation AND p."table" = s."table"
         WHERE t.pipeline = %s AND t.backfill_kind = %s AND p.applied_lsn > s.base_lsn
           AND NOT EXISTS (SELECT 1 FROM tidemark.unapplied u
                            WHERE u.pipeline = s.pipeline AND u."table" = s."table"
                              AND (u.generation, u.end_lsn) <= (s.base_generation, s.begun_lsn))
        """,
        (ledger.pipeline, backfill_marks.REPLAYED),
    ).fetchall()
    for (table,) in rows:
        backfill_marks.clear(ledger, table)
        backfill_marks.mark_holes(ledger, table)
