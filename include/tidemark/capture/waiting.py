"""Decides whether a run has anything to do, from the ledger and the source.

The ledger is read first, since that is cheap. Growth of the source's WAL is not enough: an idle server writes
checkpoints and snapshots, and other pipelines write heartbeats and the ledger. So every run would look busy, and its
own writes would wake the others. Only the slot's decoding proves that WAL has nothing for this pipeline. So the slot is
peeked for the first transaction above `staged` that the publication has. Nothing is consumed. Heartbeats and other
messages do not count. If peeking would cost too much, the run counts as having work.

An added column, a rewrite by ALTER TABLE, and a partition that is attached, detached, dropped or truncated are in no
change. So columns, storage and partitions in the catalogue are compared with those of the last run. Source: PostgreSQL
documentation, 9.28.6, pg_logical_slot_peek_binary_changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.capture import complete_tables, deferral
from tidemark.capture.continuity.generation import still_continues
from tidemark.capture.deferral import DueTables
from tidemark.config import PipelineConfig
from tidemark.errors import GenerationStale, TidemarkError
from tidemark.findings import listed
from tidemark.ledger import migrations
from tidemark.ledger.captured import tables
from tidemark.ledger.captured.tables import LastReading
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import chunks
from tidemark.ledger.staged import applied_positions, batches, generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session
from tidemark.run import utc_now
from tidemark.source.catalogue import catalog
from tidemark.source.wal import slot as slots
from tidemark.source.wal.slot import Server, SlotState
from tidemark.source.wal.slot_server import at_slot
from tidemark.wording import counted, duration, plural

# Bytes of WAL that a peek may read: above `staged`, and in all from the LSN where the slot's decoding must begin. A
# drain would read the latter twice, since it streams and then confirm moves the slot.
PEEK_BYTES: Final = 16 * 2**20
PEEK_FROM_RESTART_BYTES: Final = 2**30
PEEK_TIMEOUT_S: Final = 15


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whether a run has work. `reason` is a sentence for the log in both cases."""

    waiting: bool
    reason: str


def changes_waiting(
    config: PipelineConfig,
    *,
    source: str,
    ledger: str,
    all_of_them: bool = False,
    now: Callable[[], datetime] = utc_now,
) -> Waiting:
    """Check once, without waiting. A wrong slot or generation counts as work: the drain reports it. A deferred table is
    no work before it is due, unless the run merges `all_of_them`. `now` is the clock of the drains, by which a
    heartbeat was written."""
    with open_ledger(ledger, config.pipeline) as book:
        migrations.require(book.connection)
        generation = generations.current(book)
        if generation is None:
            return Waiting(True, "no generation is open yet")
        due = deferral.due_tables(book, config, now(), all_of_them=all_of_them)
        reason = _in_ledger(book, config, generation, due, now())
        confirmable = applied_positions.confirmable(book)
        last_readings = tables.last_readings(book)
    if reason is not None:
        return Waiting(True, reason)
    if config.slot != generation.slot:
        # Peeking would make the slot busy for a moment, and it may be somebody else's.
        return Waiting(True, f'the pipeline file names the slot "{config.slot}", staged is "{generation.slot}"')
    with postgres_session.connect(
        source,
        application_name=config.application_name,
        statement_timeout_s=PEEK_TIMEOUT_S,
    ) as connection:
        try:
            slot, confirmed_lsn = slots.usable(connection, config.slot)
            server = slots.read_server(connection)
        except TidemarkError as wrong:
            return Waiting(True, f"the drain has something to say: {wrong}")
        if confirmable > confirmed_lsn:
            return Waiting(True, f"applied up to {confirmable}, confirmed up to {confirmed_lsn}")
        reason = _at_source(connection, config, generation, server, slot) or altered_table(connection, last_readings)
    if reason is not None:
        return Waiting(True, reason)
    return Waiting(False, f"nothing above {generation.staged_lsn}{due.clause}")


def _in_ledger(
    book: Ledger, config: PipelineConfig, generation: Generation, due: DueTables, now: datetime
) -> str | None:
    """The work that the ledger alone shows; None if there is none."""
    counts = batches.unapplied_counts(book, due.tables)
    if counts:
        number = sum(counts.values())
        return f"{counted(number, 'batch')} {plural(number, 'is')} not applied to {listed(counts)}"
    if whole := complete_tables.awaiting_their_name(book):
        return f"{listed(sorted(whole))} {plural(len(whole), 'is')} whole, and readers do not see it by its name yet"
    unclaimed = chunks.unclaimed_ids(book)
    if unclaimed:
        number = len(unclaimed)
        of = listed(sorted(set(unclaimed.values())))
        return f"{counted(number, 'chunk')} of {of} {plural(number, 'is')} not claimed"
    if generation.heartbeat_at is None:
        return "nothing was staged yet: this is the first run"
    longest = timedelta(seconds=config.bounds.heartbeat_s)
    if now - generation.heartbeat_at > longest:
        return f"the last heartbeat is older than {duration(config.bounds.heartbeat_s)}"
    if generation.heartbeat_at - now > longest:
        return "the last heartbeat lies ahead: a clock was put back since"
    return None


def _at_source(
    connection: psycopg.Connection[Any],
    config: PipelineConfig,
    generation: Generation,
    server: Server,
    slot: SlotState,
) -> str | None:
    """The reason why there may be changes above `staged`; None if there certainly are none."""
    try:
        still_continues(connection, generation)
    except GenerationStale as stale:
        return str(stale)
    staged_lsn = generation.staged_lsn
    ahead_bytes = server.flush_lsn - staged_lsn
    if ahead_bytes <= 0:
        return None
    unread = f"the source wrote {counted(ahead_bytes, 'byte')} of WAL above {staged_lsn}"
    restart_lsn = slot.restart_lsn or Lsn(0)
    if ahead_bytes > PEEK_BYTES or server.flush_lsn - restart_lsn > PEEK_FROM_RESTART_BYTES:
        return unread
    try:
        row = (
            at_slot(connection, config.slot)
            .execute(
                """
            SELECT 1 FROM pg_logical_slot_peek_binary_changes(
                %s, NULL, 1, 'proto_version', '1', 'publication_names', %s, 'messages', 'false')
             WHERE lsn >= %s::pg_lsn LIMIT 1
            """,
                (config.slot, sql.Identifier(config.publication).as_string(connection), str(staged_lsn)),
            )
            .fetchone()
        )
    except psycopg.Error:
        # The slot is in use, too slow, or cannot be decoded: the drain reports which.
        return unread
    return None if row is None else f"{unread}, and the publication's tables changed in it"


def altered_table(connection: psycopg.Connection[Any], last_readings: Mapping[int, LastReading]) -> str | None:
    """A sentence that names a table with more columns, other storage or other partitions than its last reading has;
    None if there is none."""
    altered = connection.execute(
        """
        SELECT c.oid::regclass::text, c.relnatts > seen.columns FROM pg_class c
          JOIN unnest(%s::oid[], %s::int[], %s::oid[]) AS seen (oid, columns, file) ON seen.oid = c.oid
         WHERE c.relnatts > seen.columns OR coalesce(pg_relation_filenode(c.oid), 0) <> seen.file ORDER BY 1 LIMIT 1
        """,
        (
            list(last_readings),
            [reading.last_attnum for reading in last_readings.values()],
            [reading.relfilenode for reading in last_readings.values()],
        ),
    ).fetchone()
    if altered is not None:
        table, has_more_columns = altered
        return f"{table} has {'columns' if has_more_columns else 'storage'} that no run saw"
    leaves = catalog.leaves(connection, list(last_readings))
    other = [oid for oid, reading in last_readings.items() if tuple(leaves.get(oid, ())) != reading.partitions]
    # A root that was dropped has no partitions either, and is no work.
    root = connection.execute(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE c.oid = ANY (%s::oid[]) ORDER BY 1 LIMIT 1", (other,)
    ).fetchone()
    return None if root is None else f"{root[0]} has partitions that no run saw, or lost some"
