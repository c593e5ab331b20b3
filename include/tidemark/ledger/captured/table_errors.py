"""Stores the last preflight's errors of single tables, until a later preflight has none (R6).

    no error ──keep──► barred (not captured, or it leaves) or not (captured all the same) ──keep──► no error

The drain skips a barred table that is not captured, so the slot retains no WAL for it. It has no row in `tables`, or
`captured` is false there. When its error is gone it joins, and needs a backfill unless it is empty. A barred table that
is still captured is staged until preflight lets it leave under the lease `slot`, which no drain holds at that time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from psycopg.types.json import Jsonb

from tidemark.findings import Bars, sentence
from tidemark.ledger.connection import Ledger


@dataclass(frozen=True, slots=True)
class TableError:
    """One error as preflight words it; `bars` is what the table may not do because of it."""

    check: str
    message: str
    remedy: str
    bars: Bars


@dataclass(frozen=True, slots=True)
class TableErrors:
    """A table's errors; `barred` if the table is not captured because of them."""

    table: str
    errors: tuple[TableError, ...]
    barred: bool
    since: datetime

    @property
    def message(self) -> str:
        return " ".join(f"{sentence(error.message)} {sentence(error.remedy)}".strip() for error in self.errors)


def keep(
    ledger: Ledger,
    errors: Mapping[str, Sequence[TableError]],
    barred: Collection[str],
) -> None:
    """Store the pipeline's tables with errors, and delete all others. Unchanged rows are not written again."""
    with ledger.transaction():
        ledger.execute(
            'DELETE FROM tidemark.table_errors WHERE pipeline = %s AND NOT "table" = ANY(%s)',
            (ledger.pipeline, list(errors)),
        )
        for table, own in sorted(errors.items()):
            ledger.execute(
                """
                INSERT INTO tidemark.table_errors AS known (pipeline, "table", errors, barred) VALUES (%s, %s, %s, %s)
                ON CONFLICT (pipeline, "table") DO UPDATE SET errors = excluded.errors, barred = excluded.barred
                 WHERE (known.errors, known.barred) IS DISTINCT FROM (excluded.errors, excluded.barred)
                """,
                (ledger.pipeline, table, Jsonb([asdict(error) for error in own]), table in barred),
            )


def all_of(ledger: Ledger) -> list[TableErrors]:
    """Every table with an error, by id."""
    rows = ledger.execute(
        'SELECT "table", errors, barred, since FROM tidemark.table_errors WHERE pipeline = %s ORDER BY "table"',
        (ledger.pipeline,),
    ).fetchall()
    return [
        TableErrors(table, tuple(TableError(**one) for one in errors), barred, since)
        for table, errors, barred, since in rows
    ]


def passed_over(ledger: Ledger) -> frozenset[str]:
    """The tables whose changes a drain does not stage: barred by an error, and not captured. Call it under the
    lease `slot`, since tables join and leave only under it."""
    rows = ledger.execute(
        """
        SELECT "table" FROM tidemark.table_errors e
         WHERE pipeline = %s AND barred
           AND NOT EXISTS (SELECT FROM tidemark.tables t
                            WHERE t.pipeline = e.pipeline AND t."table" = e."table"
                              AND t.capture_state IN ('joining', 'captured'))
        """,
        (ledger.pipeline,),
    ).fetchall()
    return frozenset(table for (table,) in rows)
