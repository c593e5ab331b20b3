"""Reads and adds the rows of captured tables, and keeps each one's fingerprint. Reads their schema versions.

`schema.table_life` has three state machines of a table. The module `joins` writes the states of `capture`,
`merge_states` those of `merge`, and `backfill_marks` those of `target`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.connection import Ledger
from tidemark.schema.fingerprint import Fingerprint, PartitionPrint, UncapturedColumn
from tidemark.schema.table import TableSchema
from tidemark.schema.table_life import TableLife

_COLUMNS = (
    '"table", capture_state, merge_state, target_state, state_since, join_horizon, backfill_kind, backfill_reason, '
    "backfill_since, marks, error, error_at, failed_runs, holes, hole_keys, fingerprint::text AS looked_at, "
    "paused_by, lost_keys, columns_in_doubt, changed_at"
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table's row. `life` is its states, which the stages read.

    - `error` is the last failure, None after a success.
    - `looked_at` is the text of `fingerprint`, since a stage reads all rows and few of the fingerprints.
    - `marks` counts how often a backfill was required, even if an earlier mark was still there.
    - `holes` maps a column to the number of rows whose unchanged value is unknown; `hole_keys` has keys of these rows.
    - `paused_by` is who paused it.
    - `lost_keys` are the only rows that may differ, if that is known. Never log them.
    - `columns_in_doubt` are the numbers of the only columns that may differ in a marked table, None for any.
    - `changed_at` is when the newest captured change of the table committed, None without one.
    """

    table: str
    life: TableLife
    state_since: datetime
    join_horizon: int | None
    backfill_kind: str | None
    backfill_reason: str | None
    backfill_since: datetime | None
    marks: int
    error: ErrorRecord | None
    error_at: datetime | None
    failed_runs: int
    holes: dict[str, int]
    hole_keys: list[list[str]]
    looked_at: str | None = field(repr=False)
    paused_by: str | None = None
    lost_keys: list[list[str]] | None = field(default=None, repr=False)
    columns_in_doubt: list[int] | None = None
    changed_at: datetime | None = None

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """The JSON of `schema.fingerprint.Fingerprint`, None before the table was looked at."""
        return None if self.looked_at is None else json.loads(self.looked_at)

    @property
    def has_current(self) -> bool:
        """Whether it is more than history alone, as the last batch that was staged found it at the source; a table that
        no batch has met yet counts as any other."""
        fingerprint = self.fingerprint
        return fingerprint is None or bool(fingerprint.get("key")) or fingerprint.get("identity") == "full"

    @property
    def uncaptured(self) -> tuple[UncapturedColumn, ...]:
        """The columns that do not reach the lake as the source has them."""
        columns = (self.fingerprint or {}).get("uncaptured", ())
        return tuple(UncapturedColumn(column["name"], column["why"]) for column in columns)


@dataclass(frozen=True, slots=True)
class LastReading:
    """The parts of a table's fingerprint that change if its rows change and no change in the stream shows it."""

    last_attnum: int
    relfilenode: int
    partitions: tuple[PartitionPrint, ...]


def _row(
    *, error: dict[str, str] | None, capture_state: str, merge_state: str, target_state: str, **columns: Any
) -> TableRow:
    life = TableLife(capture_state, merge_state, target_state)
    return TableRow(**columns, life=life, error=None if error is None else ErrorRecord.from_json(error))


def all_of(ledger: Ledger) -> list[TableRow]:
    """Every table that was ever captured, by id."""
    query = f'SELECT {_COLUMNS} FROM tidemark.tables WHERE pipeline = %s ORDER BY "table"'
    return ledger.records(kwargs_row(_row), query.encode(), (ledger.pipeline,))


def one(ledger: Ledger, table: str) -> TableRow | None:
    """The table's row, None if it was never captured."""
    query = f'SELECT {_COLUMNS} FROM tidemark.tables WHERE pipeline = %s AND "table" = %s'
    return next(iter(ledger.records(kwargs_row(_row), query.encode(), (ledger.pipeline, table))), None)


def last_readings(ledger: Ledger) -> dict[int, LastReading]:
    """The last reading of each captured table, by the relation's OID."""
    rows = ledger.execute(
        """
        SELECT (fingerprint ->> 'relation_oid')::bigint, (fingerprint ->> 'last_attnum')::int,
               (fingerprint ->> 'relfilenode')::bigint, fingerprint -> 'partitions' FROM tidemark.tables
         WHERE pipeline = %s AND capture_state IN ('joining', 'captured') AND fingerprint IS NOT NULL
        """,
        (ledger.pipeline,),
    )
    return {
        oid: LastReading(last_attnum, relfilenode, tuple(map(PartitionPrint.from_json, partitions)))
        for oid, last_attnum, relfilenode, partitions in rows
    }


def add(ledger: Ledger, *names: str) -> None:
    """Make sure that the tables have a row each; an existing one stays as it is."""
    ledger.execute(
        'INSERT INTO tidemark.tables (pipeline, "table") SELECT %s, unnest(%s::text[]) ON CONFLICT DO NOTHING',
        (ledger.pipeline, sorted(set(names))),
    )


def remove_unused(ledger: Ledger, names: Iterable[str]) -> None:
    """Remove the rows of those of these tables of which nothing was ever read or staged."""
    ledger.execute(
        """
        WITH unused AS (
            DELETE FROM tidemark.tables t WHERE pipeline = %(pipeline)s AND "table" = ANY(%(tables)s)
               AND NOT EXISTS (SELECT FROM tidemark.schema_versions v
                                WHERE (v.pipeline, v."table") = (t.pipeline, t."table"))
               AND NOT EXISTS (SELECT FROM tidemark.batch_tables b
                                WHERE (b.pipeline, b."table") = (t.pipeline, t."table"))
               AND NOT EXISTS (SELECT FROM tidemark.backfills f
                                WHERE (f.pipeline, f."table") = (t.pipeline, t."table"))
            RETURNING t."table")
        DELETE FROM tidemark.positions p USING unused u WHERE p.pipeline = %(pipeline)s AND p."table" = u."table"
        """,
        {"tables": sorted(set(names))},
    )


def lock(ledger: Ledger, names: Iterable[str]) -> None:
    """Lock the rows of these tables, in one order for all, until the caller's transaction ends."""
    ledger.execute(
        'SELECT 1 FROM tidemark.tables WHERE pipeline = %s AND "table" = ANY(%s) ORDER BY "table" FOR UPDATE',
        (ledger.pipeline, sorted(set(names))),
    )


def keep_fingerprints(ledger: Ledger, fingerprints: Mapping[str, Fingerprint]) -> None:
    """Keep the fingerprints, by table, that the newest registered batch was staged under."""
    add(ledger, *fingerprints)
    ledger.execute(
        """
        UPDATE tidemark.tables t SET fingerprint = f.fingerprint
          FROM unnest(%s::text[], %s::jsonb[]) AS f ("table", fingerprint)
         WHERE t.pipeline = %s AND t."table" = f."table" AND t.fingerprint IS DISTINCT FROM f.fingerprint
        """,
        (list(fingerprints), [Jsonb(fingerprint.to_json()) for fingerprint in fingerprints.values()], ledger.pipeline),
    )


def note_changes(ledger: Ledger, committed_at: Mapping[str, str | None]) -> None:
    """A batch has changes of these tables, and the last of each committed then."""
    ledger.execute(
        """
        UPDATE tidemark.tables t SET changed_at = greatest(t.changed_at, f.committed_at)
          FROM unnest(%s::text[], %s::timestamptz[]) AS f ("table", committed_at)
         WHERE t.pipeline = %s AND t."table" = f."table"
        """,
        (list(committed_at), list(committed_at.values()), ledger.pipeline),
    )


def any_joining(ledger: Ledger) -> bool:
    """Whether a table joined in the stream, which preflight has not judged yet."""
    return ledger.holds(
        "SELECT 1 FROM tidemark.tables WHERE pipeline = %s AND capture_state = 'joining'", (ledger.pipeline,)
    )


def versions_of(
    ledger: Ledger, names: Iterable[str] | None, *, only_streamed: bool = False
) -> dict[str, list[TableSchema]]:
    """The schema versions of these tables (None: all), oldest first; without those that have none."""
    chosen = None if names is None else sorted(names)
    rows = ledger.execute(
        'SELECT "table", definition FROM tidemark.schema_versions WHERE pipeline = %s '
        'AND (%s::text[] IS NULL OR "table" = ANY(%s)) AND (streamed OR NOT %s) ORDER BY "table", version',
        (ledger.pipeline, chosen, chosen, only_streamed),
    )
    by_table: dict[str, list[TableSchema]] = {}
    for table, definition in rows:
        by_table.setdefault(table, []).append(TableSchema.from_json(definition))
    return by_table


def versions(ledger: Ledger, table: str) -> list[TableSchema]:
    """The table's schema versions, oldest first."""
    return versions_of(ledger, [table]).get(table, [])
