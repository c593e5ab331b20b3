"""Where a pipeline stands, read from source, ledger and lake -> `Status`, and what of it needs somebody.

Each of the three may be out of reach: that is said, and the rest is shown. What is said first is what somebody has to
do; how the tables stand is a count, and a list where it is asked for (`capture.status_text`). Positions are R3's three:
staged, applied per table, confirmed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import psycopg

from tidemark import postgres_session
from tidemark.capture.parked import ways_on
from tidemark.config import PipelineConfig
from tidemark.errors import TidemarkError
from tidemark.formats import layout
from tidemark.ledger import migrations, overview
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.overview import PipelineStatus, TableStatus
from tidemark.names import TableName
from tidemark.schedule import longest_gap_s
from tidemark.schema import table_life
from tidemark.source.inspection import slot_findings
from tidemark.source.slot import SlotState, read_slot, usable
from tidemark.staging.store import Store
from tidemark.wording import counted

STATEMENT_TIMEOUT_S: Final = 30

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Need:
    """Something for somebody to do. Needs of the same `kind` and `group` are said together; `ways` are what to do next,
    with the commands to type."""

    kind: str
    group: str
    message: str
    table: str = ""
    since: datetime | None = None
    ways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """`ledger` is None before the first generation was opened, or where it cannot be read, as `unseen` then says: per
    database or lake, why. `slot_needs` is what is wrong with the slot."""

    config: PipelineConfig
    ledger: PipelineStatus | None
    slot: SlotState | None
    unseen: dict[str, str]
    slot_needs: tuple[str, ...]
    now: datetime

    @property
    def tables(self) -> tuple[TableStatus, ...]:
        return () if self.ledger is None else self.ledger.tables

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*self._of_pipeline(), *self._of_tables())

    @property
    def needs_somebody(self) -> bool:
        return bool(self.needs)

    def state_of(self, table: TableStatus) -> str:
        """In a word or two; "ok" for a table at rest."""
        row = table.row
        if not row.life.is_captured:
            return "not captured"
        if row.life.is_parked:
            return "parked"
        if row.life.is_paused:
            return "paused"
        if row.failed_runs:
            return f"failed {counted(row.failed_runs, 'run')}"
        if row.life.needs_backfill:
            return "being backfilled" if table.table in self._being_read() else "needs a backfill"
        if table.waiting_batches:
            return "behind"
        return "deferred" if row.life.merge == table_life.DEFERRED else "ok"

    def _being_read(self) -> frozenset[str]:
        """Tables whose open backfill somebody reads, or that waits only for its merge."""
        if self.ledger is None:
            return frozenset()
        return frozenset(
            backfill.progress.table
            for backfill in self.ledger.backfills
            if backfill.purpose == "fill"
            and (backfill.read_by is not None or backfill.progress.ranges_done == backfill.progress.ranges)
        )

    def _of_pipeline(self) -> Iterator[Need]:
        for what, why in self.unseen.items():
            yield Need("cannot be seen", what, f"The {what} cannot be seen: {why}")
        for message in self.slot_needs:
            yield Need("slot", message, message)
        last = self._last_staged()
        if last is not None:
            dag = f"{self.config.pipeline}_capture"
            message = f"Nothing was staged since {shown_time(last)}: {dag} does not run, or its runs fail."
            yield Need("no run", "", message, ways=(f"To see why: tidemark preflight {self.config.path}",))

    def _last_staged(self) -> datetime | None:
        """When the last run registered its heartbeat, if by the schedule that is too long ago. An idle pipeline writes
        one every `heartbeat_s`, and one run may fail."""
        gap_s = longest_gap_s(self.config.schedule)
        if self.ledger is None or gap_s is None:
            return None
        last = self.ledger.generation.heartbeat_at or self.ledger.generation.opened_at
        bounds = self.config.bounds
        longest = timedelta(seconds=2 * max(gap_s, bounds.heartbeat_s) + bounds.run_s)
        return last if self.now - last > longest else None

    def _of_tables(self) -> Iterator[Need]:
        for entry in () if self.ledger is None else self.ledger.table_errors:
            kind = "not captured" if entry.barred else "has an error"
            group = ", ".join(sorted({error.check for error in entry.errors}))
            yield Need(kind, group, entry.message, readable(entry.table), entry.since)
        for table in self.tables:
            row = table.row
            if not row.life.is_captured:
                continue
            name = readable(row.table)
            if row.life.is_parked and row.error is not None:
                kind, message = row.error.kind, row.error.message
                ways = tuple(ways_on(self.config, row.table, row.error))
                yield Need("parked", kind, message, name, row.state_since, ways)
            if row.life.needs_backfill and not self.config.auto_backfill and row.table not in self._being_read():
                reason = row.backfill_reason or ""
                yield Need("needs a backfill", reason, reason, name, row.backfill_since)
            if table.differences:
                way = f"Trigger {self.config.pipeline}_verify with this table, share 1 and repair"
                yield Need("differs", "", f"It is not what its source is. {table.differences}", name, ways=(way,))


def read_status(
    config: PipelineConfig,
    *,
    source: str | TidemarkError,
    ledger: str | TidemarkError,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Status:
    """Read source, ledger and lake; never raises for one that cannot be read. In place of a connection string there may
    be the error that looking it up came to."""
    unseen: dict[str, str] = {}
    slot, slot_needs = _asked(unseen, "source", partial(_slot, config, source)) or (None, ())
    ledger_status = _asked(unseen, "ledger", partial(_ledger, config, ledger))
    _asked(unseen, "lake", partial(_lake, config, ledger_status is not None))
    return Status(config, ledger_status, slot, unseen, slot_needs, now())


def _asked(unseen: dict[str, str], subject: str, look: Callable[[], Seen]) -> Seen | None:
    try:
        return look()
    except TidemarkError as error:
        unseen[subject] = str(error)
    except psycopg.Error as failed:
        unseen[subject] = f"{type(failed).__name__}, SQLSTATE {failed.sqlstate}"
    except OSError as failed:
        unseen[subject] = f"{type(failed).__name__}, {failed.strerror}"
    except Exception as failed:  # each object store has its own, and here all of them mean the same
        unseen[subject] = type(failed).__name__
    return None


def _conninfo(resolved: str | TidemarkError) -> str:
    if isinstance(resolved, TidemarkError):
        raise resolved
    return resolved


def _slot(config: PipelineConfig, source: str | TidemarkError) -> tuple[SlotState | None, tuple[str, ...]]:
    with postgres_session.connect(
        _conninfo(source), application_name=config.application_name, statement_timeout_s=STATEMENT_TIMEOUT_S
    ) as session:
        slot = read_slot(session, config.slot)
        try:
            usable(session, config.slot)
        except TidemarkError as wrong:
            return slot, (str(wrong),)
    assert slot is not None
    needs = [f"{finding.message}. {finding.remedy}." for finding in slot_findings(slot)]
    if slot.retained_bytes > config.bounds.wal_valve_bytes:
        mebibytes = slot.retained_bytes // 2**20
        needs.append(f'Slot "{slot.name}" keeps {mebibytes} MiB of WAL, more than wal_valve_bytes. Let the drain run.')
    return slot, tuple(needs)


def _ledger(config: PipelineConfig, ledger: str | TidemarkError) -> PipelineStatus | None:
    with open_ledger(_conninfo(ledger), config.pipeline) as book:
        migrations.require(book.connection)
        return overview.read(book)


def _lake(config: PipelineConfig, is_begun: bool) -> None:
    """The staging of a pipeline with a generation is never empty: generation.json stays."""
    if not Store(config.lake, config.lake_access).list(layout.staging_root(config.pipeline)) and is_begun:
        raise FileNotFoundError(errno.ENOENT, f"{config.lake} has no staging of the pipeline")


def readable(table: str) -> str:
    name = TableName.parse(table)
    return f"{name.schema}.{name.name}"


def shown_time(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
