"""Reads where a pipeline stands from source, ledger and lake -> `Status`, with the findings that need a person.

Each of the three may be out of reach: the status says so, and has the rest. `observe.health` judges what is wrong, and
that stands first. Tables are counted, and listed on demand (`observe.status_text`). Positions are R3's three: staged,
applied per table, confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import psycopg

from tidemark.capture import deferral, lake_folder
from tidemark.capture.continuity import ownership
from tidemark.config import PipelineConfig
from tidemark.errors import SlotMissing, TidemarkError
from tidemark.formats import layout
from tidemark.ledger import migrations
from tidemark.ledger.captured.put_aside import PutAside
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.leases import of_table
from tidemark.ledger.observations import overview
from tidemark.ledger.observations.overview import PipelineStatus, TableStatus
from tidemark.observe import health
from tidemark.observe.health import Health
from tidemark.postgres import postgres_session
from tidemark.run import utc_now
from tidemark.source.wal.slot import SlotState, read_slot, usable
from tidemark.source.wal.slot_server import system_identifier
from tidemark.storage.store import Store

STATEMENT_TIMEOUT_S: Final = 30

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one pipeline. `ledger` is None before the first generation was opened, or if the ledger cannot
    be read. `unseen` has the reason for each database or lake that cannot be read. `unusable` is the reason why no
    drain may read the slot."""

    config: PipelineConfig
    ledger: PipelineStatus | None
    slot: SlotState | None
    unusable: TidemarkError | None
    unseen: dict[str, str]
    now: datetime

    @property
    def tables(self) -> tuple[TableStatus, ...]:
        return () if self.ledger is None else self.ledger.tables

    @property
    def health(self) -> Health:
        return health.judge(
            self.config, self.ledger, now=self.now, slot=self.slot, unusable=self.unusable, unseen=self.unseen
        )

    def due_at(self, table: TableStatus) -> datetime | None:
        """When a table that waits by choice is due by the clock; None if it does not wait, or is due."""
        return deferral.waits_until(self.config, table, self.now)

    @property
    def put_aside(self) -> tuple[PutAside, ...]:
        return () if self.ledger is None else self.ledger.put_aside

    def removed_from(self, pair: PutAside) -> datetime | None:
        """The time from which maintenance removes the Delta tables that were put aside; None if it never does."""
        days = self.config.maintenance.put_aside_days
        return None if days is None else pair.since + timedelta(days=days)

    def held_by(self, table: TableStatus) -> str | None:
        """The holder of the lease of a table with waiting changes: a merge leaves such a table to the next one."""
        if self.ledger is None or table.backlog is None:
            return None
        return self.ledger.leases.get(of_table(table.table))


def read_status(
    config: PipelineConfig,
    *,
    source: str | TidemarkError,
    ledger: str | TidemarkError,
    now: Callable[[], datetime] = utc_now,
    of_lake: bool = True,
) -> Status:
    """Read source, ledger and lake; never raises if one of them cannot be read. In place of a connection string the
    argument may be the error with which its lookup failed. Without `of_lake` the lake is not read."""
    unseen: dict[str, str] = {}
    ledger_status = _read_or_note(unseen, "ledger", partial(_ledger, config, ledger))
    is_new = ledger_status is None and "ledger" not in unseen
    read = partial(_slot, config, source, ledger_status, is_new=is_new)
    slot, unusable = _read_or_note(unseen, "source", read) or (None, None)
    if of_lake:
        _read_or_note(unseen, "lake", partial(_lake, config, ledger_status))
    return Status(config, ledger_status, slot, unusable, unseen, now())


def _read_or_note(unseen: dict[str, str], subject: str, read: Callable[[], Seen]) -> Seen | None:
    try:
        return read()
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


def _slot(
    config: PipelineConfig, source: str | TidemarkError, ledger: PipelineStatus | None, *, is_new: bool
) -> tuple[SlotState | None, TidemarkError | None]:
    """The slot, and the reason why no drain may read it. A slot of another server is not the pipeline's until a
    person confirms it. The slot of a pipeline that `is_new` does not exist yet."""
    with postgres_session.connect(
        _conninfo(source), application_name=config.application_name, statement_timeout_s=STATEMENT_TIMEOUT_S
    ) as session:
        slot = read_slot(session, config.slot)
        try:
            usable(session, config.slot)
        except SlotMissing as missing:
            return None, None if is_new else missing
        except TidemarkError as wrong:
            return slot, wrong
        if ledger is not None and system_identifier(session) != ledger.generation.system_identifier:
            return slot, ownership.unknown(config, session, slot)
    return slot, None


def _ledger(config: PipelineConfig, ledger: str | TidemarkError) -> PipelineStatus | None:
    with open_ledger(_conninfo(ledger), config.pipeline) as book:
        if migrations.pending(book.connection).before is None:
            return None  # the first preflight makes the schema
        migrations.require(book.connection)
        return overview.read(book)


def _lake(config: PipelineConfig, ledger: PipelineStatus | None) -> None:
    store = Store(config.lake, config.lake_access)
    if ledger is None:
        store.list(layout.staging_root(config.pipeline))
    else:
        lake_folder.require(config, store, ledger.generation)
