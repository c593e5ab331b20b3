"""Selects the tables that a backfill run reads, and how it reads each: as the form says, or as the ledger requires.

    the form names tables     each must be captured and published now, and fit the mode, keys and columns of the form
    the form names none       the tables of `backfill_requests`, and tables whose open backfill has unread ranges

Nothing is written here. A table that the ledger requires and that cannot be read now is logged and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.backfill import backfill_checks
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.backfill.named_tables import matching_tables, unknown_table
from tidemark.errors import BackfillRefused, BackfillTablesUnknown, CaptureNotBegun
from tidemark.findings import listed
from tidemark.ledger.captured import backfill_marks, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Mode
from tidemark.run import Run
from tidemark.source.catalogue.catalog import CapturedTable

log = logging.getLogger(__name__)

NOT_PUBLISHED: Final = "it is not in the publication"


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """The fields of the backfill DAG's form. Without `tables`, the run opens the backfills that the ledger requires.

    - `tables` are names or patterns as in the pipeline file.
    - `keys` are for mode `keys`: per row a mapping from key column to value, or the values in the key's order, as
      PostgreSQL reads them.
    - `columns` are the columns to read besides the key, only for tables that the form names. Without any, all are read.
    """

    tables: tuple[str, ...] = ()
    row_filter: str | None = None
    chunk_rows: int | None = None
    mode: Mode = "chunks"
    keys: tuple[Mapping[str, Any] | Sequence[Any], ...] = ()
    replace: bool = False
    readers: int | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRequest:
    """One table's part of the request. `keys` are unchanged from the form or the ledger. `explicit`: the form names
    the table. `was_open`: the form does not name it, and this run continues its open backfill."""

    captured: CapturedTable
    row: TableRow
    mode: Mode
    row_filter: str | None
    keys: tuple[Mapping[str, Any] | Sequence[Any], ...]
    explicit: bool
    was_open: bool = False
    columns: tuple[int, ...] | None = None

    @property
    def table(self) -> str:
        return str(self.captured.table)

    @property
    def is_of_lost_keys(self) -> bool:
        """Whether the request reads the keys whose changes the source lost. Rows that the target has and the source
        lacks are removed."""
        return self.mode == "keys" and not self.explicit and self.row.lost_keys is not None


class BackfillSelection:
    """The selection of one run."""

    def __init__(self, run: Run, source: psycopg.Connection[Any], ledger: Ledger, request: BackfillRequest) -> None:
        self._run = run
        self._config = run.config
        self._source = source
        self._ledger = ledger
        self._request = request

    def select(self) -> list[TableRequest]:
        """The tables to read. Raises BackfillRefused, BackfillTablesUnknown or CaptureNotBegun."""
        request = self._request
        at_source = backfill_checks.published(self._config, self._source, self._ledger)
        rows = {row.table: row for row in tables.all_of(self._ledger)}
        if not request.tables:
            return self._requested_by_ledger(at_source, rows)
        if request.mode == "keys" and not request.keys:
            raise BackfillRefused(table=listed(request.tables), reason="mode keys needs keys")
        if request.mode != "keys" and request.keys:
            raise BackfillRefused(
                table=listed(request.tables), reason=f"keys are given, and the mode is {request.mode}"
            )
        named = self._named(at_source, rows)
        if request.mode == "keys" and len(named) > 1:
            raise BackfillRefused(table=listed(named), reason="keys are those of one table")
        return [
            TableRequest(
                at_source[table],
                rows[table],
                request.mode,
                request.row_filter,
                request.keys,
                True,
                columns=self._numbers(at_source[table]),
            )
            for table in named
        ]

    def _numbers(self, captured: CapturedTable) -> tuple[int, ...] | None:
        """The numbers of the columns that the form names; None if it names none. Raises BackfillRefused."""
        names = self._request.columns
        if not names:
            return None
        numbers = {c.name: c.attnum for c in captured.captured_columns}
        unknown = [name for name in names if name not in numbers]
        if unknown or not captured.key:
            reason = "it has no key, so it is read as a whole" if not unknown else f"it has no column {listed(unknown)}"
            raise BackfillRefused(table=str(captured.table), reason=reason)
        if of_key := [name for name in names if name in captured.key]:
            reason = f"{listed(of_key)} belongs to its key: a row with another key is found by reading all of it"
            raise BackfillRefused(table=str(captured.table), reason=reason)
        return tuple(sorted(numbers[name] for name in names))

    def _requested_by_ledger(
        self, at_source: dict[str, CapturedTable], rows: dict[str, TableRow]
    ) -> list[TableRequest]:
        """The backfills that the ledger requires, of tables that are captured now. Other tables are left to the
        capture."""
        request = self._request
        if request.row_filter is not None or request.keys or request.mode == "keys" or request.columns:
            reason = "a filter, keys and columns are those of tables that the form names"
            raise BackfillRefused(table="no table", reason=reason)
        was_open = [b for b in backfills.all_open(self._ledger) if b.purpose == "fill"]
        due = requested_tables(self._run)
        entries = {one.table: (one.mode, tuple(one.keys or ())) for one in due}
        columns = {one.table: one.columns for one in due}
        for backfill in was_open:
            # A reader with a live lease may have died: the planner waits for the end of its lease.
            if not chunks.all_read(self._ledger, backfill.backfill):
                entries.setdefault(backfill.table, (backfill.mode, ()))
        table_requests = []
        for table, (mode, keys) in sorted(entries.items()):
            row = rows.get(table)
            if row is None or not row.life.is_merged or _unfit(at_source.get(table), row) is not None:
                continue  # logged by `_log_omitted_tables`
            mode = mode if mode == "keys" else request.mode
            goes_on = any(backfill.table == table for backfill in was_open)
            captured = at_source[table]
            # All columns are read if the table has no key, because a row is then identified by all its values; if one
            # of the columns is gone; or if one is in the key, because the target may have the row under another key.
            numbers = columns.get(table) if captured.key and mode != "keys" else None
            besides = {column.attnum for column in captured.captured_columns if column.name not in captured.key}
            numbers = None if numbers is None or not besides.issuperset(numbers) else numbers
            table_requests.append(
                TableRequest(captured, row, mode, None, keys, explicit=False, was_open=goes_on, columns=numbers)
            )
        self._log_omitted_tables(at_source, rows, nothing_else=not table_requests)
        return table_requests

    def _log_omitted_tables(
        self, at_source: dict[str, CapturedTable], rows: dict[str, TableRow], *, nothing_else: bool
    ) -> None:
        """Log the tables that need a backfill and cannot have one now.

        Raises CaptureNotBegun if there is `nothing_else` and such a table waits for a capture run, for example after
        `unpark --anew`: otherwise a successful run that did nothing would hide it.
        """
        waiting = {}
        for table, row in rows.items():
            if not (row.life.is_captured and row.life.needs_backfill):
                continue
            unfit = _unfit(at_source.get(table), row)
            if not row.life.is_merged:
                state = "parked" if row.life.is_parked else "paused"
                log.warning("%s needs a backfill and is left out: it is %s", table, state)
            elif unfit is not None:
                waiting[table] = unfit
        if not waiting:
            return
        refused = CaptureNotBegun(
            tables=listed(waiting), pipeline=self._config.pipeline, reason=next(iter(waiting.values()))
        )
        if nothing_else:
            raise refused
        log.warning("%s", refused)

    def _named(self, at_source: dict[str, CapturedTable], rows: dict[str, TableRow]) -> list[str]:
        """The ids of the tables that the form names, each once."""
        named: dict[str, None] = {}
        problems, not_captured = [], {}
        for text in self._request.tables:
            # After two tables swapped names, the id of one is the name of the other: both match.
            matches = matching_tables(text, {table: captured.name for table, captured in at_source.items()})
            fit = [t for t in matches if _unfit(at_source[t], rows.get(t)) is None]
            if fit:
                named.update(dict.fromkeys(fit))
            elif matches:
                not_captured[text] = _unfit(at_source[matches[0]], rows.get(matches[0])) or ""
            elif text in backfill_checks.not_published(self._config, self._source):
                not_captured[text] = NOT_PUBLISHED
            else:
                problems.append(unknown_table(text, at_source, self._request.tables))
        if problems:
            raise BackfillTablesUnknown(pipeline=self._config.pipeline, problems=", ".join(problems))
        if not_captured:
            raise CaptureNotBegun(
                tables=listed(not_captured), pipeline=self._config.pipeline, reason=next(iter(not_captured.values()))
            )
        return list(named)


def _unfit(captured: CapturedTable | None, row: TableRow | None) -> str | None:
    """The reason why the table cannot be read now, half a sentence; None if it can."""
    if captured is None or not captured.published:
        return NOT_PUBLISHED
    if row is None or not row.life.can_be_read:
        if row is not None and row.life.is_captured and row.backfill_kind == backfill_marks.BEGUN_ANEW:
            return "it begins anew, and no capture run has been through since"
        return "the capture has not seen it join the publication"
    return None
