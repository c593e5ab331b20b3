"""Stores the guards of columns by relation and attnum (`schema.guards`), and the column names of the last comparison.

The drain and the readers of a backfill write guards, each in a transaction that locks the row, so no guard is lost.
Only a drain replaces the stored column names, after it staged every change that they did not include.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from tidemark.formats.snapshot import Snapshot
from tidemark.ledger.connection import Ledger
from tidemark.schema.guards import Guard, Guards, Rows


@dataclass(frozen=True, slots=True)
class GuardedColumns:
    """`snapshot` is None if `rows` do not come from an earlier reading."""

    table: str
    timeline: int
    snapshot: Snapshot | None
    rows: Rows
    guards: dict[int, Guard]


def all_of(ledger: Ledger, system_identifier: str) -> dict[int, GuardedColumns]:
    """Relation OID -> its guards, of every relation that ever had any."""
    rows = ledger.execute(
        'SELECT relation_oid, "table", timeline, snapshot, rows, guards FROM tidemark.guards '
        "WHERE pipeline = %s AND system_identifier = %s",
        (ledger.pipeline, system_identifier),
    ).fetchall()
    return {oid: _guarded(*facts) for oid, *facts in rows}


def change(
    ledger: Ledger,
    system_identifier: str,
    relation_oid: int,
    table: str,
    timeline: int,
    how: Callable[[Guards], dict[int, Guard]],
) -> dict[int, Guard]:
    """Replace the ledger's present guards by the result of `how`; returns the new guards."""
    with ledger.transaction():
        ledger.insert(
            "guards",
            or_nothing=True,
            system_identifier=system_identifier,
            relation_oid=relation_oid,
            table=table,
            timeline=timeline,
            guards=Jsonb({}),
        )
        row = ledger.row(
            "SELECT guards FROM tidemark.guards "
            "WHERE pipeline = %s AND system_identifier = %s AND relation_oid = %s FOR UPDATE",
            (ledger.pipeline, system_identifier, relation_oid),
        )
        before = _guards(row[0])
        changed = how(before)
        if changed != before:
            ledger.execute(
                "UPDATE tidemark.guards SET guards = %s "
                "WHERE pipeline = %s AND system_identifier = %s AND relation_oid = %s",
                (_json(changed), ledger.pipeline, system_identifier, relation_oid),
            )
    return changed


def carry(ledger: Ledger, before: str, after: str, timeline: int) -> None:
    """Guard the same columns on the system that `pg_upgrade` made, which keeps OIDs and column numbers. The old
    system's reading cannot be compared there."""
    ledger.execute(
        """
        INSERT INTO tidemark.guards (pipeline, system_identifier, relation_oid, "table", timeline, guards)
        SELECT pipeline, %s, relation_oid, "table", %s, guards FROM tidemark.guards
         WHERE pipeline = %s AND system_identifier = %s
        ON CONFLICT (pipeline, system_identifier, relation_oid) DO UPDATE SET guards = excluded.guards
        """,
        (after, timeline, ledger.pipeline, before),
    )


def keep_columns(
    ledger: Ledger,
    system_identifier: str,
    relation_oid: int,
    reading: GuardedColumns,
) -> None:
    """Store `reading` as the earlier reading of the next drain. Guards of columns that it no longer has are deleted."""
    gone = [str(attnum) for attnum in reading.guards if attnum not in reading.rows]
    ledger.execute(
        """
        UPDATE tidemark.guards SET "table" = %s, timeline = %s, snapshot = %s, rows = %s, guards = guards - %s::text[]
         WHERE pipeline = %s AND system_identifier = %s AND relation_oid = %s
        """,
        (
            reading.table,
            reading.timeline,
            None if reading.snapshot is None else str(reading.snapshot),
            Jsonb({str(attnum): list(row) for attnum, row in reading.rows.items()}),
            gone,
            ledger.pipeline,
            system_identifier,
            relation_oid,
        ),
    )


def _guarded(
    table: str, timeline: int, snapshot: str | None, rows: dict[str, Any], guards: dict[str, Any]
) -> GuardedColumns:
    return GuardedColumns(
        table,
        timeline,
        None if snapshot is None else Snapshot.parse(snapshot),
        {int(attnum): (name, xmin) for attnum, (name, xmin) in rows.items()},
        _guards(guards),
    )


def _guards(raw: dict[str, Any]) -> dict[int, Guard]:
    return {int(attnum): Guard(**guard) for attnum, guard in raw.items()}


def _json(guards: Guards) -> Jsonb:
    return Jsonb({str(attnum): guard.to_json() for attnum, guard in guards.items()})
