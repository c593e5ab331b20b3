"""Opens the backfills that a form or the ledger requests, with their ranges, in the ledger (R7).

    settle    generation open · slot continues it · tables captured · filter, keys and mode tried at the source
    wait      for the end of all transactions that began before a table joined the stream (join horizon)
    open      per table: an open backfill is continued if mode, filter, columns and keys are equal and the key has the
              order of its ranges; otherwise a new one is opened

Nothing is opened before all checks have passed. If the same run plans again, it returns the recorded backfills.
PostgreSQL samples and compares the bounds of ranges in the key's order. The first range has no lower bound and the last
one no upper bound. A table without a key is one range. The backfill's snapshot, which the sweep needs, is taken before
the first chunk. All reads are short READ ONLY transactions (R9).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.backfill import backfill_checks, read_sessions
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.backfill.chunk_reading import KEY_REORDERED
from tidemark.backfill.named_tables import matching_tables, unknown_table
from tidemark.backfill.range_planning import RANGES_PER_READER, chosen_keys, ranges_of, ranges_of_keys
from tidemark.errors import (
    BackfillIsOpen,
    BackfillIsRead,
    BackfillRefused,
    BackfillTablesUnknown,
    CaptureNotBegun,
    JoinHorizonBlocked,
    ReadFailed,
    ReadRefused,
    TidemarkError,
)
from tidemark.failpoints import reach
from tidemark.findings import listed
from tidemark.ledger import migrations, pipeline_files
from tidemark.ledger.captured import joins, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill, KeyOrder, Mode, Range
from tidemark.lsn import WalPoint
from tidemark.postgres import postgres_session
from tidemark.run import Run
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.catalogue.transaction_visibility import await_horizon, current_snapshot
from tidemark.source.rows import key_ranges
from tidemark.source.rows.key_ranges import TableToRead
from tidemark.source.wal.wal_messages import make_durable
from tidemark.wait_log import Wait
from tidemark.wording import counted, duration, moment

log = logging.getLogger(__name__)

NOT_PUBLISHED: Final = "it is not in the publication"

# Longer than a lease lasts, so that the run can continue the backfill of a reader that was killed.
READER_WAIT_S: Final = 75.0


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
class _TableRequest:
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


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A backfill that can be opened. `wal_point` is the source's WAL point when the table was read. With `unreadable`,
    the backfill is closed at once with this error."""

    table_request: _TableRequest
    snapshot: str
    wal_point: WalPoint
    estimated_rows: int
    sweeps: bool
    key_order: KeyOrder
    ranges: tuple[Range, ...]
    unreadable: TidemarkError | None = None


def plan(
    run: Run,
    *,
    request: BackfillRequest,
    reader_wait_s: float = READER_WAIT_S,
) -> list[Backfill]:
    """Open the requested backfills. Returns the run's open backfills by table; empty if none is needed.

    Raises CaptureNotBegun, BackfillTablesUnknown, RowFilterInvalid, BackfillRefused, BackfillIsOpen, BackfillIsRead or
    JoinHorizonBlocked. Then the only open backfills of the run are those of an earlier try.
    """
    config = run.config
    with (
        open_ledger(run.ledger, config.pipeline, config.application_name) as book,
        read_sessions.connect(run.source, config) as source_conn,
        postgres_session.outages(),
    ):
        migrations.require(book.connection)
        pipeline_files.require(book, config.digest)
        return _BackfillPlanner(run, source_conn, book, request, reader_wait_s).plan()


class _BackfillPlanner:
    def __init__(
        self,
        run: Run,
        source: psycopg.Connection[Any],
        ledger: Ledger,
        request: BackfillRequest,
        reader_wait_s: float,
    ) -> None:
        self._run = run
        self._config = run.config
        self._source = source
        self._ledger = ledger
        self._request = request
        self._wait_ends = run.clock() + reader_wait_s
        self._reordered: dict[str, str] = {}  # table -> its open backfill, whose ranges have another order

    def plan(self) -> list[Backfill]:
        config, request = self._config, self._request
        opened = backfill_checks.settled(config, self._source, self._ledger, request.tables).number
        for closed in backfills.close_idle(self._ledger, config.bounds.backfill_idle_s):
            log.warning("Closed the backfill %s of %s: %s", closed.backfill, closed.table, closed.state_reason)
        table_requests = self._table_requests()
        own = {b.table: b for b in backfills.of_run(self._ledger, self._run.run_id) if b.state != "closed"}
        to_open: list[_TableRequest] = []
        for table_request in table_requests:
            if table_request.table not in own and not self._goes_on(table_request):
                to_open.append(table_request)
        self._await_horizon(to_open)
        prepared = [
            table_prepared for table_request in to_open if (table_prepared := self._prepare(table_request)) is not None
        ]
        reach("plan.before_open")
        for ready in prepared:
            table_request = ready.table_request
            backfill = Backfill(
                pipeline=config.pipeline,
                backfill=f"{self._run.now():%Y%m%dT%H%M%S}-{secrets.token_hex(4)}",
                table=table_request.table,
                generation=opened,
                mode=table_request.mode,
                row_filter=table_request.row_filter,
                chunk_rows=request.chunk_rows or config.bounds.chunk_rows,
                run_id=self._run.run_id,
                snapshot=ready.snapshot,
                timeline=ready.wal_point.timeline,
                snapshot_lsn=ready.wal_point.lsn,
                estimated_rows=ready.estimated_rows,
                sweeps=ready.sweeps,
                key_order=ready.key_order,
                columns=table_request.columns,
            )
            with self._ledger.transaction():
                self._close_replaced(table_request)
                created = backfills.create(self._ledger, backfill, ready.ranges)
                if created and ready.unreadable is not None:
                    backfills.close(self._ledger, backfill.backfill, str(ready.unreadable), unreadable=True)
            if not created and not self._goes_on(table_request):
                raise CaptureNotBegun(
                    tables=table_request.table,
                    pipeline=config.pipeline,
                    reason="its generation has ended, or continues on another timeline",
                )
            reach("plan.after_open")
            log.info(
                "Backfill %s of %s: about %s in %s",
                backfill.backfill,
                table_request.table,
                counted(ready.estimated_rows, "row"),
                counted(len(ready.ranges), "range"),
            )
        return [b for b in backfills.of_run(self._ledger, self._run.run_id) if b.state == "open"]

    # --- settle -------------------------------------------------------------------------------------------------------

    def _table_requests(self) -> list[_TableRequest]:
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
            _TableRequest(
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
    ) -> list[_TableRequest]:
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
            # A reader with a live lease may have died: `_goes_on` waits for the end of its lease.
            if not chunks.all_read(self._ledger, backfill.backfill):
                entries.setdefault(backfill.table, (backfill.mode, ()))
        table_requests = []
        for table, (mode, keys) in sorted(entries.items()):
            row = rows.get(table)
            if row is None or not row.life.is_merged or self._unfit(at_source.get(table), row) is not None:
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
                _TableRequest(captured, row, mode, None, keys, explicit=False, was_open=goes_on, columns=numbers)
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
            unfit = self._unfit(at_source.get(table), row)
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
            fit = [t for t in matches if self._unfit(at_source[t], rows.get(t)) is None]
            if fit:
                named.update(dict.fromkeys(fit))
            elif matches:
                not_captured[text] = self._unfit(at_source[matches[0]], rows.get(matches[0])) or ""
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

    def _unfit(self, captured: CapturedTable | None, row: TableRow | None) -> str | None:
        """The reason why the table cannot be read now, half a sentence; None if it can."""
        if captured is None or not captured.published:
            return NOT_PUBLISHED
        if row is None or not row.life.can_be_read:
            if row is not None and row.life.is_captured and row.backfill_kind == joins.BEGUN_ANEW:
                return "it begins anew, and no capture run has been through since"
            return "the capture has not seen it join the publication"
        return None

    # --- an open backfill ---------------------------------------------------------------------------------------------

    def _goes_on(self, table_request: _TableRequest) -> bool:
        """Whether nothing needs to be opened, because the table's open backfill is assigned to this run. False if
        there is none, or if the run replaces it. Raises BackfillIsOpen or BackfillIsRead if the form names the
        table."""
        backfill = backfills.open_of(self._ledger, table_request.table)
        if backfill is None:
            # An open backfill has ended meanwhile: the next run derives what the table still needs.
            return table_request.was_open and table_request.table not in self._reordered
        if backfill.run_id == self._run.run_id:
            return True
        if self._request.replace and table_request.explicit:
            return False
        try:
            difference = self._difference(backfill, table_request) if table_request.explicit else None
            if difference is not None:
                raise BackfillIsOpen(
                    table=table_request.table, backfill=backfill.backfill, run_id=backfill.run_id, difference=difference
                )
            self._await_readers(backfill)
            reordered = self._has_another_order(backfill, table_request)
        except TidemarkError as refused:
            if table_request.explicit:
                raise
            log.warning("%s", refused)
            return True
        if reordered:
            if table_request.explicit or backfill.reads_all_rows:
                self._reordered[table_request.table] = backfill.backfill
                return False
            self._close(backfill, KEY_REORDERED)
            return True
        log.info("Going on with the backfill %s of %s", backfill.backfill, table_request.table)
        return backfills.adopt(self._ledger, backfill.backfill, self._run.run_id) or not table_request.explicit

    def _difference(self, backfill: Backfill, table_request: _TableRequest) -> str | None:
        """The first difference between the open backfill and the request, half a sentence; None if there is none."""
        if backfill.mode != table_request.mode:
            return f"its mode is {backfill.mode}"
        if backfill.row_filter != table_request.row_filter:
            return "its row filter is another one"
        if backfill.columns != table_request.columns:
            return "it reads other columns"
        if backfill.mode == "keys":
            ranges = chunks.ranges_of(self._ledger, backfill.backfill)
            chosen = chosen_keys(self._source, table_request.captured, table_request.keys)
            if {key for key_range in ranges for key in key_range.keys or ()} != set(chosen):
                return "it reads other keys"
        return None

    def _has_another_order(self, backfill: Backfill, table_request: _TableRequest) -> bool:
        """Whether the backfill has unread ranges and the order of the key has changed since, so that these ranges
        are invalid."""
        if chunks.all_read(self._ledger, backfill.backfill):
            return False
        try:
            with self._source.transaction():
                now = key_ranges.table_to_read(self._source, table_request.captured).key_order
        except LookupError:
            raise BackfillRefused(table=table_request.table, reason=backfill_checks.CHANGED_MEANWHILE) from None
        return now != backfill.key_order

    def _await_readers(self, backfill: Backfill) -> None:
        """Wait until no reader of the backfill has a live lease. The lease of a reader that was killed expires.
        Raises BackfillIsRead when the time is up."""
        wait = Wait(max(0.0, self._wait_ends - self._run.clock()), clock=self._run.clock)
        while (lease := chunks.live_reader(self._ledger, backfill.backfill)) is not None:
            reader, until = lease
            reason = f"the backfill {backfill.backfill} of {backfill.table}: its reader {reader} may have died; "
            reason += f"if so, its lease ends at {moment(until)}"
            if not wait.pause(lambda reason=reason: reason):  # type: ignore[misc]
                raise BackfillIsRead(
                    table=backfill.table, backfill=backfill.backfill, run_id=backfill.run_id, reader=reader
                )
        wait.log_end()

    def _close_replaced(self, table_request: _TableRequest) -> None:
        """Close the table's open backfill if this run replaces it."""
        backfill = backfills.open_of(self._ledger, table_request.table)
        if backfill is None or backfill.run_id == self._run.run_id:
            return
        if self._request.replace and table_request.explicit:
            self._close(backfill, f"replaced by run {self._run.run_id}")
        elif self._reordered.get(table_request.table) == backfill.backfill:
            self._close(backfill, f"{KEY_REORDERED}; run {self._run.run_id} begins anew")

    def _close(self, backfill: Backfill, reason: str) -> None:
        log.warning("Closed the backfill %s of %s: %s", backfill.backfill, backfill.table, reason)
        backfills.close(self._ledger, backfill.backfill, reason)

    # --- wait ---------------------------------------------------------------------------------------------------------

    def _await_horizon(self, table_requests: list[_TableRequest]) -> None:
        """Wait until the transactions that were in flight when the tables joined have ended. Until then, their changes
        are neither visible to a chunk nor in the stream. Raises JoinHorizonBlocked when the time is up."""
        if not table_requests:
            return
        last = max(table_requests, key=lambda table_request: table_request.row.join_horizon or 0)
        horizon, seconds = last.row.join_horizon or 0, self._config.bounds.join_wait_s
        blockers = await_horizon(self._source, horizon, seconds, f"the capture of {last.table}")
        if blockers:
            raise JoinHorizonBlocked(table=last.table, waited=duration(seconds), blockers="; ".join(blockers))

    # --- ranges -------------------------------------------------------------------------------------------------------

    def _prepare(self, table_request: _TableRequest) -> _Prepared | None:
        """Read from the source what the table's backfill needs; None if it is refused and the form does not name it.

        A table that PostgreSQL cannot read gets a backfill that is closed at once, so that the run's report names it
        and the other tables are read. If the form names only this table, the error is raised.
        """
        try:
            return self._inspect(table_request)
        except (ReadFailed, ReadRefused) as unreadable:
            if table_request.explicit and len(self._request.tables) == 1:
                raise
            log.warning("%s", unreadable)
            wal_point, snapshot = make_durable(self._source), current_snapshot(self._source)
            return _Prepared(table_request, snapshot, wal_point, 0, False, [], (Range(),), unreadable)
        except TidemarkError as refused:
            if table_request.explicit:
                raise
            log.warning("%s", refused)
            return None

    def _inspect(self, table_request: _TableRequest) -> _Prepared:
        self._refuse_unfit(table_request)
        by_keys = table_request.mode == "keys"
        keys = chosen_keys(self._source, table_request.captured, table_request.keys) if by_keys else []
        with backfill_checks.locked(
            self._config, self._source, table_request.captured, table_request.row_filter, BackfillRefused
        ) as locked:
            to_read = locked.to_read
            if by_keys:
                alike = key_ranges.equal_keys(self._source, to_read.key, keys)
                estimated, ranges = len(alike), ranges_of_keys(alike)
            else:
                estimated = key_ranges.estimated_rows(self._source, to_read)
                ranges = self._ranges(to_read, estimated)
        wal_point = make_durable(self._source)
        sweeps = bool(table_request.captured.key) and (
            table_request.is_of_lost_keys if by_keys else table_request.row_filter is None
        )
        sweeps = sweeps and table_request.columns is None
        return _Prepared(table_request, locked.snapshot, wal_point, estimated, sweeps, to_read.key_order, ranges)

    def _refuse_unfit(self, table_request: _TableRequest) -> None:
        """Raises BackfillRefused if the table could not be merged, or cannot be read as requested."""
        captured, row = table_request.captured, table_request.row
        if row.life.is_parked or row.life.is_paused:
            why = f"parked ({'' if row.error is None else row.error.kind})" if row.life.is_parked else "paused"
            end = "end its park" if row.life.is_parked else "resume it"
            raise BackfillRefused(
                table=table_request.table, reason=f"it is {why}, so what is read could not be merged; first {end}"
            )
        if captured.key:
            return
        reason = None
        if table_request.mode == "keys":
            reason = "it has no key"
        elif table_request.row_filter is not None:
            reason = "it has no key, so it is read as a whole, without a row filter"
        elif (
            captured.identity != "full"
            and not self._request.replace
            and chunks.has_read_rows(self._ledger, table_request.table)
        ):
            reason = (
                "it has no replica identity, and its history has the rows of a backfill already: a column that was "
                "altered since would make every row count as new. If its history was removed from the lake, say so "
                "with `replace`"
            )
        if reason is not None:
            raise BackfillRefused(table=table_request.table, reason=reason)

    def _ranges(self, to_read: TableToRead, estimated: int) -> tuple[Range, ...]:
        request, bounds = self._request, self._config.bounds
        most = RANGES_PER_READER * (request.readers or bounds.readers)
        chunk_rows = request.chunk_rows or bounds.chunk_rows
        return ranges_of(self._source, to_read, min(most, estimated // chunk_rows))
