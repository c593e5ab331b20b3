"""Where a pipeline stands, read from slot and ledger -> `Status`, whose `str()` is what a terminal shows.

Positions are R3's three: staged, applied per table, confirmed. A source that cannot be reached is said, and the rest
shown: most of it is in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from tidemark import postgres_session as source_sessions
from tidemark.config import PipelineConfig
from tidemark.errors import TidemarkError
from tidemark.formats import layout
from tidemark.ledger import connection as ledger_sessions
from tidemark.ledger import joins, migrations, overview, tables
from tidemark.ledger.overview import OpenBackfill, PipelineStatus, TableStatus
from tidemark.ledger.tables import TableRow
from tidemark.names import TableName
from tidemark.source.slot import SlotState, read_slot
from tidemark.staging.store import Store
from tidemark.wording import counted


@dataclass(frozen=True, slots=True)
class Status:
    """`ledger` is None before the first generation was opened; `trouble` says why the source could not be asked."""

    config: PipelineConfig
    ledger: PipelineStatus | None
    slot: SlotState | None
    trouble: str | None

    @property
    def needs_somebody(self) -> bool:
        """A table parked or marked, or a slot that is not there."""
        return (
            self.trouble is not None
            or self.slot is None
            or (self.ledger is not None and bool(self.ledger.table_errors))
            or any(row.captured and (row.state == "parked" or row.needs_backfill or row.holes) for row in self.rows)
        )

    @property
    def rows(self) -> tuple[TableRow, ...]:
        return () if self.ledger is None else tuple(table.row for table in self.ledger.tables)

    def __str__(self) -> str:
        lines = [
            f"pipeline {self.config.pipeline}",
            f"  slot        {self._slot()}",
            f"  generation  {self._generation()}",
        ]
        header = ("table", "state", "applied", "waiting", "needs")
        body = [] if self.ledger is None else [_line(table) for table in self.ledger.tables]
        if body:
            lines += ["", *_aligned([header, *body])]
        for backfill in () if self.ledger is None else self.ledger.backfills:
            lines += ["", *_backfill(backfill)]
        for row in self.rows:
            if row.state != "parked" and row.error is not None:
                lines += ["", f"{_shown(row)} failed at {_time(row.error_at)}: {row.error.get('message', '')}"]
            if row.state == "parked" and row.error is not None:
                lines += ["", f"{_shown(row)} is parked since {_time(row.state_since)}: {row.error.get('message', '')}"]
                lines += [f"  then: python -m tidemark unpark {self.config.path} {_shown(row)}"]
        for found in () if self.ledger is None else self.ledger.table_errors:
            what = "is not captured" if found.barred else "has an error"
            lines += ["", f"{_readable(found.table)} {what} since {_time(found.since)}: {found.message}"]
        return "\n".join(lines)

    def _slot(self) -> str:
        if self.trouble is not None:
            return self.trouble
        if self.slot is None:
            return f'"{self.config.slot}" does not exist; preflight creates it'
        retained = self.slot.retained_bytes / 2**20
        keeps = f"keeps {retained:.0f} MiB of WAL ({self.slot.wal_status})"
        return f'"{self.slot.name}" confirmed {self.slot.confirmed_lsn}, {keeps}'

    def _generation(self) -> str:
        if self.ledger is None:
            return "none yet; the first preflight opens one"
        generation = self.ledger.generation
        heartbeat = "" if generation.heartbeat_at is None else f", heartbeat {_time(generation.heartbeat_at)}"
        held = ", ".join(sorted(self.ledger.held_back_by))
        confirmable = f", {self.ledger.confirmable_lsn} may be confirmed (held back by {held})" if held else ""
        return f"{generation.number}, staged {generation.staged_lsn}{confirmable}{heartbeat}"


def read_status(config: PipelineConfig, *, source: str, ledger: str) -> Status:
    """Read both databases. Raises LedgerNotReady and the ledger's connection errors; the source's become `trouble`."""
    slot, trouble = None, None
    try:
        with source_sessions.connect(
            source, application_name=config.application_name, statement_timeout_s=30
        ) as session:
            slot = read_slot(session, config.slot)
    except TidemarkError as known:
        trouble = str(known)
    with ledger_sessions.connect(ledger) as connection:
        migrations.require(connection)
        return Status(config=config, ledger=overview.read(connection, config.pipeline), slot=slot, trouble=trouble)


def unpark(config: PipelineConfig, table: str, *, ledger: str, anew: bool = False) -> tuple[str, bool]:
    """Un-park a table given as its id or as `schema.table`; what to say, and whether something was done. With `anew`
    it begins with empty Delta tables, which must be gone, and passes over what is staged of it."""
    with ledger_sessions.connect(ledger) as connection:
        migrations.require(connection)
        known = {row.table: row for row in tables.all_of(connection, config.pipeline)}
        shown = {_shown(row): row.table for row in known.values()}
        table_id = table if table in known else shown.get(table)
        if table_id is None:
            return (
                f"Pipeline {config.pipeline} has no table {table}; it has {', '.join(sorted(shown)) or 'none yet'}.",
                False,
            )
        if known[table_id].state != "parked":
            return f"{table} is not parked (it is {known[table_id].state}).", False
        if anew:
            return _begin_anew(config, connection, table_id)
        tables.unpark(connection, config.pipeline, table_id)
        return f"{table} is no longer parked; the next run applies all of its staged batches in order.", True


def _begin_anew(config: PipelineConfig, connection: psycopg.Connection[Any], table: str) -> tuple[str, bool]:
    """The lake is looked at: beside tables that are still there, nothing can begin anew."""
    name = TableName.parse(table)
    folders = (layout.history_table(config.pipeline, name), layout.current_table(config.pipeline, name))
    store = Store(config.lake)
    there = [folder for folder in folders if store.list(f"{folder}/_delta_log")]
    if there:
        return f"Nothing was done. First remove {' and '.join(there)} from {config.lake}.", False
    if not joins.begin_anew(connection, config.pipeline, table):
        return f"{_readable(table)} is not parked.", False
    return (
        f"{_readable(table)} begins anew. Once a run of {config.pipeline}_capture is through, trigger "
        f"{config.pipeline}_backfill for it.",
        True,
    )


def _line(table: TableStatus) -> tuple[str, str, str, str, str]:
    waiting = "-"
    if table.waiting_batches:
        waiting = f"{counted(table.waiting_changes, 'change')} in {counted(table.waiting_batches, 'batch')}"
    return _shown(table.row), _state(table.row), str(table.applied_lsn), waiting, _needs(table.row)


def _shown(row: TableRow) -> str:
    return _readable(row.table)


def _readable(table: str) -> str:
    name = TableName.parse(table)
    return f"{name.schema}.{name.name}"


def _backfill(backfill: OpenBackfill) -> list[str]:
    """The bounds of what is filled are values of rows; a terminal is no place for them."""
    now = backfill.progress
    reader = (
        f"read by {backfill.read_by}" if backfill.read_by else f"nobody reads it, last at {_time(backfill.active_at)}"
    )
    lines = [
        f"backfill {now.backfill} of {_readable(now.table)}, open since {_time(backfill.opened_at)}, {reader}",
        f"  {now}",
    ]
    if backfill.filled:
        ranges = ", ".join(str(number) for number in sorted({stretch.range for stretch in backfill.filled}))
        lines.append(f"  filled: {counted(len(backfill.filled), 'stretch')}, in range {ranges}")
    return lines


def _state(row: TableRow) -> str:
    if not row.captured:
        return f"{row.state}, not captured"
    return f"{row.state} ({row.failed_runs} failed)" if row.failed_runs else row.state


def _needs(row: TableRow) -> str:
    needs = []
    if row.needs_backfill:
        needs.append(f"a backfill: {row.backfill_reason}")
    if row.holes:
        needs.append(f"values of {', '.join(sorted(row.holes))} ({sum(row.holes.values())})")
    return "; ".join(needs) or "-"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _time(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
