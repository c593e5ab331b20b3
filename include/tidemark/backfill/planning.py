"""Opens the backfills that a form or the ledger requests, with their ranges, in the ledger (R7).

    settle    generation open · slot continues it · tables captured · filter, keys and mode tried at the source
    wait      for the end of all transactions that began before a table joined the stream or was marked (join horizon)
    open      per table: an open backfill is continued if mode, filter, columns and keys are equal and the key has the
              order of its ranges; otherwise a new one is opened

Nothing is opened before all checks have passed. If the same run plans again, it returns the recorded backfills.
PostgreSQL samples and compares the bounds of ranges in the key's order. The first range has no lower bound and the last
one no upper bound. A table without a key is one range. The backfill's snapshot, which the sweep needs, is taken before
the first chunk. All reads are short READ ONLY transactions (R9).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.backfill import backfill_checks
from tidemark.backfill.backfill_tables import BackfillRequest, BackfillSelection, TableRequest
from tidemark.backfill.chunk_reading import KEY_REORDERED
from tidemark.backfill.range_planning import RANGES_PER_READER, chosen_keys, ranges_of, ranges_of_keys
from tidemark.errors import (
    BackfillIsOpen,
    BackfillIsRead,
    BackfillRefused,
    JoinHorizonBlocked,
    ReadFailed,
    ReadRefused,
    TidemarkError,
)
from tidemark.failpoints import reach
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill, KeyOrder, Range
from tidemark.lsn import WalPoint
from tidemark.run import Run
from tidemark.source.catalogue.transaction_visibility import await_horizon, current_snapshot, snapshot_xmin
from tidemark.source.rows import key_ranges
from tidemark.source.rows.key_ranges import TableToRead
from tidemark.source.wal.wal_messages import make_durable
from tidemark.wait_log import Wait
from tidemark.wording import counted, duration, moment

log = logging.getLogger(__name__)

# Longer than a lease lasts, so that the run can continue the backfill of a reader that was killed.
READER_WAIT_S: Final = 75.0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A backfill that can be opened. `wal_point` is the source's WAL point when the table was read. With `unreadable`,
    the backfill is closed at once with this error."""

    table_request: TableRequest
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
    JoinHorizonBlocked. Then the only open backfills of the run are those of an earlier try. Raises JoinHorizonAhead if
    a table is marked meanwhile.
    """
    with backfill_checks.sessions(run) as (book, source):
        return _BackfillPlanner(run, source, book, request, reader_wait_s).plan()


def _horizon(table_request: TableRequest) -> int:
    return table_request.row.join_horizon or 0


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
        table_requests = BackfillSelection(self._run, self._source, self._ledger, request).select()
        own = {b.table: b for b in backfills.of_run(self._ledger, self._run.run_id) if b.state != "closed"}
        to_open = [one for one in table_requests if one.table not in own and not self._continues_open(one)]
        prepared = [ready for one in self._await_horizon(to_open) if (ready := self._prepare(one)) is not None]
        reach("plan.before_open")
        for ready in prepared:
            self._open(opened, ready)
        return [b for b in backfills.of_run(self._ledger, self._run.run_id) if b.state == "open"]

    def _open(self, generation: int, ready: _Prepared) -> None:
        """Open the backfill in place of one that it replaces. Another run may have opened one meanwhile: then this run
        continues that one."""
        table_request, config = ready.table_request, self._config
        backfill = Backfill(
            pipeline=config.pipeline,
            backfill=backfill_checks.new_id(self._run.now()),
            table=table_request.table,
            generation=generation,
            mode=table_request.mode,
            row_filter=table_request.row_filter,
            chunk_rows=self._request.chunk_rows or config.bounds.chunk_rows,
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
        if not created and not self._continues_open(table_request):
            raise backfill_checks.generation_ended(config, backfill.table)
        reach("plan.after_open")
        log.info(
            "Backfill %s of %s: about %s in %s",
            backfill.backfill,
            backfill.table,
            counted(ready.estimated_rows, "row"),
            counted(len(ready.ranges), "range"),
        )

    # --- an open backfill ---------------------------------------------------------------------------------------------

    def _continues_open(self, table_request: TableRequest) -> bool:
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

    def _difference(self, backfill: Backfill, table_request: TableRequest) -> str | None:
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

    def _has_another_order(self, backfill: Backfill, table_request: TableRequest) -> bool:
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

    def _close_replaced(self, table_request: TableRequest) -> None:
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

    def _await_horizon(self, table_requests: list[TableRequest]) -> list[TableRequest]:
        """Wait until the transactions that were in flight when the tables joined, or were marked, have ended. Until
        then, their changes may be neither visible to a chunk nor in the stream. Returns the tables for which they have.
        Raises JoinHorizonBlocked when the time is up and there is none, or the form names one of the others."""
        if not table_requests:
            return []
        last = max(table_requests, key=_horizon)
        seconds = self._config.bounds.join_wait_s
        blockers = await_horizon(self._source, _horizon(last), seconds, f"the join or the mark of {last.table}")
        if not blockers:
            return table_requests
        xmin = snapshot_xmin(self._source)
        free = [one for one in table_requests if _horizon(one) <= xmin]
        blocked = JoinHorizonBlocked(table=last.table, waited=duration(seconds), blockers="; ".join(blockers))
        if not free or any(one.explicit for one in table_requests if one not in free):
            raise blocked
        log.warning("%s", blocked)
        return free

    # --- ranges -------------------------------------------------------------------------------------------------------

    def _prepare(self, table_request: TableRequest) -> _Prepared | None:
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

    def _inspect(self, table_request: TableRequest) -> _Prepared:
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

    def _refuse_unfit(self, table_request: TableRequest) -> None:
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
