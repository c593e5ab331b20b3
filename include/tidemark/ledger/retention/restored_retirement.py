"""Applies retired.json to a ledger that was restored from before a clean-up of staging (R4, R7).

`retirement.mark` wrote the file before anything was deleted. An older copy of the ledger still refers to the deleted
files: by lower positions and by open backfills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidemark.formats.retired_file import RetiredFile
from tidemark.ledger.captured import unfit_values
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.reading import backfills
from tidemark.ledger.retention import retirement
from tidemark.ledger.staged import positions
from tidemark.lsn import Lsn

RESTORED: Final = "the ledger was restored from before staging was cleaned up, and with it what this backfill rests on"


def is_applied(ledger: Ledger, file: RetiredFile) -> bool:
    """Whether the ledger has what retired.json says, as far as it goes itself. A copy from between two clean-ups may
    know where they end, and not that a table let go of what it kept below."""
    return ledger.holds(
        """
        SELECT retired_lsn >= least(%(up_to)s::pg_lsn, staged_lsn)
               AND coalesce(retired_xid, -1) >= coalesce(%(max_xid)s::bigint, -1)
               AND NOT EXISTS (SELECT 1 FROM tidemark.batch_tables b
                                WHERE b.pipeline = g.pipeline AND b.generation = g.number
                                  AND b.end_lsn <= %(up_to)s::pg_lsn AND b.retired_at IS NULL
                                  AND b."table" <> ALL(%(kept)s))
          FROM tidemark.generations g WHERE pipeline = %(pipeline)s AND number = %(generation)s
        """,
        {
            "up_to": file.up_to,
            "max_xid": file.max_xid,
            "kept": list(file.kept),
            "generation": file.generation,
        },
    )


def apply(
    ledger: Ledger, lease: Lease, file: RetiredFile, is_gone: Callable[[list[str]], bool], *, was_behind: bool = False
) -> bool:
    """Take over from retired.json what a restored ledger lacks. False if it lacks nothing. Needs the lease `slot`.

    `is_gone` returns whether a batch's files, by their paths, are gone. A ledger that `was_behind` staging just now is
    compared with the files themselves: some files that a table keeps may be gone.

    Retired batches were applied, so positions rise. Open backfills are closed: they may have ended since, and their
    evidence may be gone with it. Read again from the beginning, they depend on present files only.
    """
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR UPDATE", (ledger.pipeline,))
        row = ledger.execute(
            "SELECT staged_lsn FROM tidemark.generations WHERE pipeline = %s AND number = %s",
            (ledger.pipeline, file.generation),
        ).fetchone()
        if row is None:
            return False
        is_known = is_applied(ledger, file)
        if is_known and not was_behind:
            return False
        up_to = min(file.up_to, row[0])
        gone = _removed_batches(ledger, file, up_to, is_gone)
        if is_known and not gone:
            return False
        _apply_rows(ledger, file, up_to, gone)
        unfit_values.restore(ledger, file.unfit)
        ledger.execute(
            """
            UPDATE tidemark.generations
               SET retired_lsn = greatest(retired_lsn, %s), retired_xid = greatest(retired_xid, %s)
             WHERE pipeline = %s AND number = %s
            """,
            (up_to, file.max_xid, ledger.pipeline, file.generation),
        )
        for backfill in backfills.all_open(ledger):
            if backfill.generation == file.generation:
                backfills.close(ledger, backfill.backfill, RESTORED)
    return True


def _removed_batches(
    ledger: Ledger, file: RetiredFile, up_to: Lsn, is_gone: Callable[[list[str]], bool]
) -> list[tuple[str, Lsn]]:
    """Table and end of the batches whose files are gone, of the tables that keep some."""
    below = ledger.execute(
        """
        SELECT b."table", b.end_lsn, b.files, b.claims FROM tidemark.batch_tables b
         WHERE b.pipeline = %s AND b.generation = %s AND b.end_lsn <= %s AND b."table" = ANY(%s)
           AND b.retired_at IS NULL ORDER BY b.end_lsn
        """,
        (ledger.pipeline, file.generation, up_to, list(file.kept)),
    ).fetchall()
    return [
        (table, end)
        for table, end, files, claims in below
        if is_gone([f["path"] for f in (*files, *(f for claim in claims for f in claim["files"]))])
    ]


def _apply_rows(ledger: Ledger, file: RetiredFile, up_to: Lsn, gone: Sequence[tuple[str, Lsn]]) -> None:
    values: dict[str, Any] = {
        "generation": file.generation,
        "up_to": up_to,
        "kept": list(file.kept),
        "gone_tables": [table for table, _ in gone],
        "gone_ends": [str(end) for _, end in gone],
    }
    rows = ledger.execute(
        """
        SELECT DISTINCT "table" FROM tidemark.batch_tables
         WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND end_lsn <= %(up_to)s
           AND "table" <> ALL(%(kept)s)
        """,
        values,
    )
    # The ends of what is gone ascend, so of each table the last one counts.
    reached = {table: up_to for (table,) in rows} | dict(gone)
    positions.rise(ledger, file.generation, {table: (lsn, lsn) for table, lsn in reached.items()})
    ledger.execute(
        """
        UPDATE tidemark.batch_tables SET retired_at = clock_timestamp()
         WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND end_lsn <= %(up_to)s AND retired_at IS NULL
           AND ("table" <> ALL(%(kept)s)
                OR ("table", end_lsn) IN (SELECT * FROM unnest(%(gone_tables)s::text[],
                                                               %(gone_ends)s::text[]::pg_lsn[])))
        """,
        values,
    )
    retirement.retire_whole_batches(ledger, file.generation, up_to)
