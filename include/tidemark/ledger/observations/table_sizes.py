"""Stores the sizes of each table's Delta tables, as of the last maintenance: one row per table and kind.

The page reads sizes only here, because reading them from a thousand Delta tables would be slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tidemark.formats.upkeep_plan import Kind, TableUpkeep
from tidemark.ledger.connection import Ledger


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """`rows` are None if its log says nothing of them."""

    kind: Kind
    files: int
    bytes: int
    rows: int | None
    seen_at: datetime


def keep(ledger: Ledger, seen: Iterable[TableUpkeep]) -> None:
    """Keep what a maintenance saw last of each of these; what it could not look at stays as it was."""
    rows = [one for one in seen if one.bytes is not None]
    ledger.execute(
        """
        INSERT INTO tidemark.delta_tables AS known (pipeline, "table", kind, files, bytes, rows)
        SELECT %s, s."table", s.kind, s.files, s.bytes, s.rows
          FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
               AS s ("table", kind, files, bytes, rows)
        ON CONFLICT (pipeline, "table", kind) DO UPDATE
           SET files = excluded.files, bytes = excluded.bytes, rows = coalesce(excluded.rows, known.rows),
               seen_at = clock_timestamp()
        """,
        (
            ledger.pipeline,
            [one.table for one in rows],
            [one.kind for one in rows],
            [one.files_after for one in rows],
            [one.bytes for one in rows],
            [one.rows for one in rows],
        ),
    )


def all_of(ledger: Ledger) -> dict[str, tuple[DeltaTable, ...]]:
    """By table, current before history."""
    rows = ledger.execute(
        'SELECT "table", kind, files, bytes, rows, seen_at FROM tidemark.delta_tables WHERE pipeline = %s '
        'ORDER BY "table", kind',
        (ledger.pipeline,),
    )
    by_table: dict[str, tuple[DeltaTable, ...]] = {}
    for table, *rest in rows:
        by_table[table] = (*by_table.get(table, ()), DeltaTable(*rest))
    return by_table
