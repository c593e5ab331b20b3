"""Stores the sizes of each table's Delta tables, as of the last merge or maintenance: one row per table and kind.

The page reads sizes only here, because reading them from a thousand Delta tables would be slow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from tidemark.formats.compaction_plan import Kind, TableCompaction
from tidemark.formats.merge_result import DeltaSize, TableResult
from tidemark.ledger.connection import Ledger


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """`rows` is None if its log does not have the number. The size is as of `sized_at`. `seen_at` is the last time
    a maintenance found the table in the lake, None before."""

    kind: Kind
    files: int
    bytes: int
    rows: int | None
    sized_at: datetime
    seen_at: datetime | None


def keep(ledger: Ledger, seen: Iterable[TableCompaction]) -> None:
    """Store what a maintenance read of each table; what it could not read stays unchanged."""
    rows = [one for one in seen if one.bytes is not None]
    ledger.execute(
        """
        INSERT INTO tidemark.delta_tables AS known (pipeline, "table", kind, files, bytes, rows, seen_at)
        SELECT %s, s."table", s.kind, s.files, s.bytes, s.rows, clock_timestamp()
          FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
               AS s ("table", kind, files, bytes, rows)
        ON CONFLICT (pipeline, "table", kind) DO UPDATE
           SET files = excluded.files, bytes = excluded.bytes, rows = coalesce(excluded.rows, known.rows),
               sized_at = clock_timestamp(), seen_at = clock_timestamp()
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


def keep_merged(ledger: Ledger, results: Iterable[TableResult], first: Collection[str]) -> None:
    """Store the sizes after merges. If a merge did not have the table's number of rows, the rows that it added are
    added to the stored number; in the `first` merge of a table they are all rows."""
    sizes = [(result, size) for result in results for size in result.sizes]
    if not sizes:
        return
    ledger.execute(
        """
        WITH merged AS (
            SELECT s.*, s."table" = ANY(%s) AS is_first
              FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
                   AS s ("table", kind, files, bytes, rows, added)),
        updated AS (
            UPDATE tidemark.delta_tables known
               SET files = m.files, bytes = m.bytes, rows = coalesce(m.rows, known.rows + m.added),
                   sized_at = clock_timestamp()
              FROM merged m
             WHERE known.pipeline = %s AND known."table" = m."table" AND known.kind = m.kind)
        INSERT INTO tidemark.delta_tables (pipeline, "table", kind, files, bytes, rows)
        SELECT %s, "table", kind, files, bytes, coalesce(rows, CASE WHEN is_first THEN added END) FROM merged
        ON CONFLICT DO NOTHING
        """,
        (
            list(first),
            [result.table for result, _ in sizes],
            [size.kind for _, size in sizes],
            [size.files for _, size in sizes],
            [size.bytes for _, size in sizes],
            [size.rows for _, size in sizes],
            [_added(result, size) for result, size in sizes],
            ledger.pipeline,
            ledger.pipeline,
        ),
    )


def _added(result: TableResult, size: DeltaSize) -> int | None:
    """The number of rows that the merge added; None if it replaced all rows."""
    counts = result.rows
    if size.kind == "current" and "truncated" in counts:
        return None
    return counts.get("history", 0) if size.kind == "history" else counts.get("inserted", 0) - counts.get("deleted", 0)


def all_of(ledger: Ledger) -> dict[str, tuple[DeltaTable, ...]]:
    """The Delta tables by table, current before history."""
    rows = ledger.execute(
        'SELECT "table", kind, files, bytes, rows, sized_at, seen_at FROM tidemark.delta_tables WHERE pipeline = %s '
        'ORDER BY "table", kind',
        (ledger.pipeline,),
    )
    by_table: dict[str, tuple[DeltaTable, ...]] = {}
    for table, *rest in rows:
        by_table[table] = (*by_table.get(table, ()), DeltaTable(*rest))
    return by_table
