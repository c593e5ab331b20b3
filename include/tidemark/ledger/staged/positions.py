"""Stores the applied position of each table, as Delta's commits returned it: rows of `positions`.

Positions are end LSNs read back from Delta (`txnVersion`), per generation; here they only rise, so a late result
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tidemark.ledger.connection import Ledger
from tidemark.lsn import Lsn


@dataclass(frozen=True, slots=True)
class TablePosition:
    """`applied_lsn` is the lower of the two, None until both tables exist. For a table without identity, which has
    no `current`, history's position counts for both. `risen_at` is the last rise of either."""

    table: str
    history_lsn: Lsn | None
    current_lsn: Lsn | None
    applied_lsn: Lsn | None
    risen_at: datetime


@dataclass(frozen=True, slots=True)
class PositionRise:
    """The applied position of a table before and after its two positions were raised."""

    before: Lsn | None
    after: Lsn | None


def rise(
    ledger: Ledger, generation: int, reached: Mapping[str, tuple[Lsn | None, Lsn | None]]
) -> dict[str, PositionRise]:
    """Raise the positions in history and current of each table to these, if they are higher."""
    values = {
        "generation": generation,
        "tables": list(reached),
        "history": [None if lsn is None else str(lsn) for lsn, _ in reached.values()],
        "current": [None if lsn is None else str(lsn) for _, lsn in reached.values()],
    }
    with ledger.transaction():
        ledger.execute(
            'INSERT INTO tidemark.positions (pipeline, generation, "table") '
            'SELECT %(pipeline)s, %(generation)s, f."table" FROM unnest(%(tables)s::text[]) AS f ("table") '
            'ORDER BY f."table" ON CONFLICT DO NOTHING',
            values,
        )
        rows = ledger.execute(
            """
            WITH known AS (
                 SELECT "table", applied_lsn FROM tidemark.positions
                  WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND "table" = ANY(%(tables)s)
                  ORDER BY "table" FOR UPDATE)
            UPDATE tidemark.positions p
               SET history_lsn = greatest(p.history_lsn, f.history_lsn),
                   current_lsn = greatest(p.current_lsn, f.current_lsn),
                   risen_at = CASE WHEN f.history_lsn > p.history_lsn OR f.current_lsn > p.current_lsn
                                   THEN clock_timestamp() ELSE p.risen_at END
              FROM unnest(%(tables)s::text[], %(history)s::text[]::pg_lsn[], %(current)s::text[]::pg_lsn[])
                   AS f ("table", history_lsn, current_lsn)
              JOIN known USING ("table")
             WHERE p.pipeline = %(pipeline)s AND p.generation = %(generation)s AND p."table" = f."table"
            RETURNING p."table", known.applied_lsn, p.applied_lsn
            """,
            values,
        ).fetchall()
    return {table: PositionRise(before, after) for table, before, after in rows}


def skip_staged(ledger: Ledger, table: str) -> None:
    """Count all staged changes of the table, in every generation, as applied, although no Delta table has them."""
    ledger.execute(
        """
        INSERT INTO tidemark.positions AS known
               (pipeline, generation, "table", history_lsn, current_lsn, begun_lsn)
        SELECT pipeline, number, %s, staged_lsn, staged_lsn, staged_lsn FROM tidemark.generations WHERE pipeline = %s
        ON CONFLICT (pipeline, generation, "table") DO UPDATE
           SET history_lsn = excluded.history_lsn, current_lsn = excluded.current_lsn,
               begun_lsn = excluded.begun_lsn, risen_at = clock_timestamp()
        """,
        (table, ledger.pipeline),
    )


def start_at(ledger: Ledger, generation: int, table: str, lsn: Lsn) -> None:
    """Count everything below the position, and all older generations, as applied: it is copied from another table.
    A higher position stays."""
    ledger.execute(
        """
        INSERT INTO tidemark.positions (pipeline, generation, "table", history_lsn, current_lsn, begun_lsn)
        VALUES (%(pipeline)s, %(generation)s, %(table)s, %(lsn)s, %(lsn)s, %(lsn)s)
        ON CONFLICT (pipeline, generation, "table") DO NOTHING
        """,
        {"generation": generation, "table": table, "lsn": lsn},
    )


def last_risen(ledger: Ledger) -> dict[str, datetime]:
    """The time of each table's last merge, in any generation."""
    rows = ledger.execute(
        'SELECT "table", max(risen_at) FROM tidemark.positions WHERE pipeline = %s GROUP BY "table"', (ledger.pipeline,)
    )
    return dict(rows.fetchall())


def all_of(ledger: Ledger, generation: int) -> dict[str, TablePosition]:
    """The positions of this generation's tables."""
    rows = ledger.execute(
        'SELECT "table", history_lsn, current_lsn, applied_lsn, risen_at FROM tidemark.positions '
        "WHERE pipeline = %s AND generation = %s",
        (ledger.pipeline, generation),
    ).fetchall()
    return {row[0]: TablePosition(*row) for row in rows}
