"""Lists the pairs of Delta tables that another pair has replaced, until maintenance removes them.

    nothing waits ──note──► put aside ──begin_removal──► in part ──removed──► gone
    captured again: the row is deleted

A table without a successor is not put aside: its Delta tables may be the only copy of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg.rows import class_row

from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease, of_table
from tidemark.ledger.staged import batches
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema import table_life

_KEPT: Final = """
    a.removed_at IS NULL AND EXISTS (
    SELECT 1 FROM tidemark.tables t
     WHERE t.pipeline = a.pipeline AND t."table" = a."table" AND t.capture_state = 'forgotten')
"""


@dataclass(frozen=True, slots=True)
class PutAside:
    """`table` is its id, `name` its last name at the source. All of it lies below `lsn`, None if its end is
    unknown. `bytes` is the size of its Delta tables, None if no maintenance has measured it."""

    table: str
    name: str
    lsn: Lsn | None
    since: datetime
    bytes: int | None


def note(ledger: Ledger, table: str, name: TableName, lsn: Lsn | None) -> None:
    """Put the table aside from now on."""
    ledger.execute(
        """
        INSERT INTO tidemark.put_aside (pipeline, "table", name, lsn) VALUES (%s, %s, %s, %s)
        ON CONFLICT (pipeline, "table") DO UPDATE
           SET name = excluded.name, lsn = excluded.lsn, since = excluded.since, removing_since = NULL,
               removed_at = NULL
        """,
        (ledger.pipeline, table, str(name), lsn),
    )


def all_of(ledger: Ledger) -> tuple[PutAside, ...]:
    """The tables that are put aside, the oldest first."""
    query = f"""
        SELECT a."table", a.name, a.lsn, a.since,
               (SELECT sum(bytes)::bigint FROM tidemark.delta_tables d
                 WHERE d.pipeline = a.pipeline AND d."table" = a."table") AS bytes
          FROM tidemark.put_aside a WHERE a.pipeline = %s AND {_KEPT} ORDER BY a.since, a."table"
    """
    return tuple(ledger.records(class_row(PutAside), query.encode(), (ledger.pipeline,)))


def due(ledger: Ledger, before: datetime) -> list[str]:
    """The tables that were put aside before the given time, and those that are deleted in part."""
    query = f"""
        SELECT a."table" FROM tidemark.put_aside a
         WHERE a.pipeline = %s AND (a.since < %s OR a.removing_since IS NOT NULL) AND {_KEPT}
         ORDER BY a.since, a."table"
    """
    return [table for (table,) in ledger.execute(query.encode(), (ledger.pipeline, before))]


def begin_removal(ledger: Ledger, lease: Lease, table: str) -> bool:
    """Record that its Delta tables are about to be deleted. False if the table came back meanwhile, or if changes
    wait for it. Needs the table's lease."""
    with ledger.transaction():
        lease.check(ledger, of_table(table))
        tables.lock(ledger, [table])
        row = tables.one(ledger, table)
        if row is None or row.life.capture != table_life.FORGOTTEN or batches.unapplied_counts(ledger, [table]):
            return False
        begun = ledger.execute(
            "UPDATE tidemark.put_aside SET removing_since = coalesce(removing_since, clock_timestamp()) "
            'WHERE pipeline = %s AND "table" = %s AND removed_at IS NULL',
            (ledger.pipeline, table),
        )
    return begun.rowcount == 1


def removed(ledger: Ledger, table: str) -> None:
    """Record that its Delta tables are deleted."""
    with ledger.transaction():
        ledger.execute(
            'UPDATE tidemark.put_aside SET removed_at = clock_timestamp() WHERE pipeline = %s AND "table" = %s',
            (ledger.pipeline, table),
        )
        ledger.execute(
            'DELETE FROM tidemark.delta_tables WHERE pipeline = %s AND "table" = %s', (ledger.pipeline, table)
        )
