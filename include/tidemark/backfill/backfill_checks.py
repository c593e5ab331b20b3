"""Checks the generation, and each table under its lock, before a backfill or a verify is opened.

sessions    the sessions of a planning run, at the ledger and at the source
settled     the open generation, if the slot continues it
published   the tables that are captured at the source now, by id
locked      one table under the lock and settings of a chunk: its snapshot and its columns; tries a row filter
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.backfill import read_sessions
from tidemark.capture.continuity import generation
from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.errors import BackfillRefused, CaptureNotBegun, GenerationStale, ReadFailed, ReadRefused, VerifyRefused
from tidemark.findings import listed
from tidemark.ledger import migrations, pipeline_files
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.staged import generations
from tidemark.ledger.staged.generations import Generation
from tidemark.postgres import postgres_session
from tidemark.postgres.postgres_session import one_row
from tidemark.run import Run
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.catalogue.table_locks import lock_bounded
from tidemark.source.rows import key_ranges, row_filter
from tidemark.source.rows.key_ranges import TableToRead

CHANGED_MEANWHILE: Final = "it changed at the source while it was read"


@dataclass(frozen=True, slots=True)
class LockedTable:
    """The result of `locked`. `snapshot` is PostgreSQL's `pg_current_snapshot()` under the lock."""

    snapshot: str
    to_read: TableToRead


@contextmanager
def sessions(run: Run) -> Iterator[tuple[Ledger, psycopg.Connection[Any]]]:
    """The sessions of a planning run at the ledger and at the source. The ledger must have this version of the file."""
    config = run.config
    with (
        open_ledger(run.ledger, config.pipeline, config.application_name) as book,
        read_sessions.connect(run.source, config) as source,
        postgres_session.outages(),
    ):
        migrations.require(book.connection)
        pipeline_files.require(book, config.digest)
        yield book, source


def new_id(now: datetime) -> str:
    """The id of a backfill or verify that is opened now."""
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def generation_ended(config: PipelineConfig, table: str) -> CaptureNotBegun:
    """The error of a backfill or verify that could not be opened, because its generation is not open any more."""
    reason = "its generation has ended, or continues on another timeline"
    return CaptureNotBegun(tables=table, pipeline=config.pipeline, reason=reason)


def settled(
    config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger, named: Sequence[str]
) -> Generation:
    """The open generation, if the slot continues it. `named` are the form's tables. Raises CaptureNotBegun."""
    subject = listed(named) if named else "its tables"
    opened = generations.current(ledger)
    if opened is None:
        raise CaptureNotBegun(
            tables=subject, pipeline=config.pipeline, reason="its slot was never read, no generation is open"
        )
    try:
        generation.still_continues(source, opened)
    except GenerationStale as stale:
        raise CaptureNotBegun(
            tables=subject, pipeline=config.pipeline, reason=str(stale.facts["difference"])
        ) from stale
    return opened


def published(config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger) -> dict[str, CapturedTable]:
    """The tables that the pipeline file and the publication capture now, by id."""
    table_ids = TableIds(config, ledger, generations.required(ledger).system_identifier)
    with lock_bounded(source, config.bounds.lock_timeout_s, "the published tables"):
        return {str(table.table): table for table in table_ids.with_ids(catalog.captured_tables(source, config))}


def not_published(config: PipelineConfig, source: psycopg.Connection[Any]) -> set[str]:
    """The names of tables that match the pipeline file and are not in the publication, or not yet."""
    with lock_bounded(source, config.bounds.lock_timeout_s, "the published tables"):
        return {str(table.name) for table in catalog.captured_tables(source, config) if not table.published}


@contextmanager
def locked(
    config: PipelineConfig,
    source: psycopg.Connection[Any],
    captured: CapturedTable,
    filter_text: str | None,
    refused: type[BackfillRefused | VerifyRefused],
) -> Iterator[LockedTable]:
    """Lock the table against ALTER TABLE, in one transaction with the settings of a chunk. With a row filter, the
    block runs under the bounds of row filters. Raises ReadRefused, ReadFailed, RowFilterInvalid, and `refused` if
    the table has changed since the catalogue was read."""
    table = captured.name
    filtered: AbstractContextManager[None] = nullcontext()
    try:
        with lock_bounded(source, config.bounds.lock_timeout_s, str(table)), source.transaction():
            for setting in read_sessions.CHUNK_SETTINGS:
                source.execute(setting)
            name = sql.Identifier(table.schema, table.name)
            source.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(name))
            locked_now = "SELECT pg_current_snapshot()::text, to_regclass(%s)::oid, now()"
            snapshot, oid, moment = one_row(source, locked_now, (name.as_string(None),))
            if oid != captured.relation_oid:
                raise refused(table=table, reason=CHANGED_MEANWHILE)  # another table has this name by now
            condition = None
            if filter_text is not None:
                condition = row_filter.condition(source, captured, filter_text, moment)
                filtered = read_sessions.filtered(source, table, read_sessions.TRY_FILTER_S)
            to_read = key_ranges.table_to_read(source, captured, condition)
            with filtered:
                if condition is not None:
                    key_ranges.try_conditions(source, to_read)
                yield LockedTable(snapshot, to_read)
    except psycopg.errors.InsufficientPrivilege as denied:
        raise ReadRefused(table=table, detail=denied.diag.message_primary or "a right is missing") from denied
    except (psycopg.errors.UndefinedTable, LookupError):
        raise refused(table=table, reason=CHANGED_MEANWHILE) from None
    except psycopg.Error as failed:
        if not postgres_session.is_of_the_statement(failed):
            raise
        raise ReadFailed(table=table, detail=f"SQLSTATE {failed.sqlstate}") from failed
