"""What the ledger knows of each captured table: state, marks, error, schema versions, fingerprint.

    merging ──park──► parked ──unpark──► merging          (deferred: by choice, merged less often)

`needs_backfill` is a mark beside the state: a table may be merging and need one. A state never holds back what is staged: parked
and deferred tables count as staged in R3's minimum (`positions.confirmable`). Reasons and errors hold no row's value.
Functions without a lease in their signature only ever record facts that any task may find out; those with one check it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from tidemark.schema.table import TableSchema

State = Literal["merging", "deferred", "parked"]

_COLUMNS = (
    '"table", state, state_since, captured, join_horizon, needs_backfill, backfill_kind, backfill_reason, backfill_since, '
    "error, error_at, failed_runs, tried_at, notified_at, holes, fingerprint"
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """`error` is {"kind", "move", "message"} of the last failure, None after a success; `captured` is False while the table
    is not in the publication or the file; `fingerprint` is the JSON of `schema.fingerprint.Fingerprint`."""

    table: str
    state: State
    state_since: datetime
    captured: bool
    join_horizon: int | None
    needs_backfill: bool
    backfill_kind: str | None
    backfill_reason: str | None
    backfill_since: datetime | None
    error: dict[str, str] | None
    error_at: datetime | None
    failed_runs: int
    tried_at: datetime | None
    notified_at: datetime | None
    holes: dict[str, int]
    fingerprint: dict[str, Any] | None


def all_of(connection: psycopg.Connection[Any], pipeline: str) -> list[TableRow]:
    """Every table that was ever captured, by id."""
    ...


def one(connection: psycopg.Connection[Any], pipeline: str, table: str) -> TableRow | None: ...


def add(connection: psycopg.Connection[Any], pipeline: str, table: str) -> None:
    """Make sure that the table has a row; an existing one stays as it is."""
    ...


def park(connection: psycopg.Connection[Any], pipeline: str, table: str, error: dict[str, str]) -> bool:
    """Suspend the table's merge with `error` = {"kind", "move", "message"}. True if it was not parked before, which is when the
    pipeline's notifier fires (R6)."""
    ...


def unpark(connection: psycopg.Connection[Any], pipeline: str, table: str) -> bool:
    """Let the next run apply all of the table's batches in order. False where the table is not parked or not known."""
    ...


def failed(
    connection: psycopg.Connection[Any], pipeline: str, table: str, error: dict[str, str], *, park_after: int
) -> bool:
    """Record an error of the table's own result (R6): parked at once where its move is not RETRY, after `park_after` failed runs
    in a row where it is. True if this parked it."""
    ...


def succeeded(connection: psycopg.Connection[Any], pipeline: str, table: str, holes: dict[str, int]) -> None:
    """Record that the table was merged: its counter is 0 again, a park that came from RETRY errors ends, `holes` (unchanged
    values whose base is known nowhere, per column) are added up and mark the table as needing a backfill."""
    ...


def mark_needs_backfill(connection: psycopg.Connection[Any], pipeline: str, table: str, kind: str, reason: str) -> None:
    """Mark the table; a mark it already has stays, unless it is the weaker kind "existing_rows"."""
    ...


def clear_needs_backfill(connection: psycopg.Connection[Any], pipeline: str, table: str) -> None: ...


def due(connection: psycopg.Connection[Any], pipeline: str, unpark_retry_s: float) -> set[str]:
    """The tables that a plan may hold: those not parked, and those parked after RETRY errors and not tried for
    `unpark_retry_s`."""
    ...


def versions(connection: psycopg.Connection[Any], pipeline: str, table: str) -> list[TableSchema]:
    """The table's schema versions, oldest first."""
    ...
