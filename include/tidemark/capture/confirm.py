"""Moves the slot's confirmed position up to the LSN that all tables have applied, as the ledger records it (R3).

The position is `applied_positions.confirmable`, computed from batches and from Delta's ingested positions. A task's
state does not count: a task that was marked successful by hand confirms nothing. The slot is read first, because
pg_replication_slot_advance raises below the slot's position and clamps above the end of the WAL. A slot at or beyond
the position is left alone. A connection of its own moves the slot, and its position is read back. It is an error if the
server forgot the call, or if the slot does not move although nothing holds it. Source: PostgreSQL documentation, 9.28.6
"Replication Management Functions".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark import failpoints
from tidemark.capture.continuity.generation import still_continues
from tidemark.capture.deferral import apply_deferral
from tidemark.config import PipelineConfig
from tidemark.errors import ConfirmFailed, GenerationStale
from tidemark.ledger import leases, migrations
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.staged import applied_positions, generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session
from tidemark.run import Run
from tidemark.source.wal import slot as slots
from tidemark.source.wal.slot_server import at_slot
from tidemark.source.wal.slot_use import take_when_free
from tidemark.wait_log import logged_wait

log = logging.getLogger(__name__)

# The time for which a slot may stay active before it counts as in use.
BUSY_WAIT_S: Final = 30.0
# Moving a slot reads the WAL from the start of its oldest open transaction, however long ago that was. So the limit
# grows with the WAL that the slot retains. A move that is cancelled moves nothing, and the next one starts over.
ADVANCE_TIMEOUT_S: Final = 900
SLOWEST_BYTES_PER_S: Final = 20 * 2**20


@dataclass(frozen=True, slots=True)
class ConfirmResult:
    """The slot's confirmed LSN before and after, the staged LSN, and the merging tables that hold the slot back."""

    before: Lsn
    after: Lsn
    staged: Lsn
    held_back_by: tuple[str, ...]


def confirm(run: Run, *, busy_wait_s: float = BUSY_WAIT_S, wait_s: float = 0.0) -> ConfirmResult:
    """Confirm up to the LSN that is applied everywhere, as the ledger has it. Takes the lease `slot`, for which it
    waits up to `wait_s`. Raises `GenerationMissing`, `GenerationStale`, `ConfirmFailed`, `SlotBusy`, `LeaseTaken`
    or a slot's error."""
    with (
        leases.hold(run.ledger, run.pipeline, SLOT, run.holder, wait_s=wait_s) as lease,
        open_ledger(run.ledger, run.pipeline) as book,
    ):
        migrations.require(book.connection)
        apply_deferral(book, run.config)
        with book.transaction():
            book.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            generation = generations.required(book)
            position = applied_positions.confirmable(book)
            held_back_by = tuple(applied_positions.held_back_by(book))
        failpoints.reach("confirm.before_confirm")
        before, after = _move(run, book, lease, generation, position, busy_wait_s)
        failpoints.reach("confirm.after_confirm")
    return ConfirmResult(before, after, generation.staged_lsn, held_back_by)


def confirm_up_to_staged(run: Run, *, lease: Lease) -> ConfirmResult:
    """The valve (R3): confirm up to the staged LSN, applied or not. The drain calls it under its own lease `slot`."""
    with open_ledger(run.ledger, run.pipeline) as book:
        generation = generations.required(book)
        staged = generation.staged_lsn
        before, after = _move(run, book, lease, generation, staged, BUSY_WAIT_S)
    return ConfirmResult(before, after, staged, ())


def _move(
    run: Run, book: Ledger, lease: Lease, generation: Generation, position: Lsn, busy_wait_s: float
) -> tuple[Lsn, Lsn]:
    """Move the slot. Returns its confirmed LSN before and after."""
    config = run.config
    with postgres_session.connect(run.source, application_name=config.application_name) as connection:
        if config.slot != generation.slot:
            # The position belongs to another slot, and this slot may be somebody else's.
            difference = f'it was staged from the slot "{generation.slot}", and the pipeline file names another one'
            raise GenerationStale(slot=config.slot, generation=generation.number, difference=difference)
        slot, before = slots.usable(connection, config.slot)
        if before >= position:
            # Not recorded: this may be another server's slot, and the drain's status replies have the recorded LSN.
            log.info('The slot "%s" stands at %s, at or beyond %s: nothing to confirm', config.slot, before, position)
            after = before
        else:
            still_continues(connection, generation)
            lease.check(book)
            limit_s = ADVANCE_TIMEOUT_S + slot.retained_bytes // SLOWEST_BYTES_PER_S
            _advance(connection, config, position, limit_s, busy_wait_s, lambda: lease.check(book))
            slot, after = slots.usable(connection, config.slot)
            if after < position:
                raise ConfirmFailed(
                    slot=config.slot, position_lsn=position, confirmed_lsn=after, staged_lsn=generation.staged_lsn
                )
            generations.note_source(book, lease, generation.number, confirmed_lsn=position)
    return before, after


def _advance(
    connection: psycopg.Connection[Any],
    config: PipelineConfig,
    position: Lsn,
    limit_s: float,
    busy_wait_s: float,
    check_lease: Callable[[], None],
) -> None:
    """Move the slot, for up to `limit_s` seconds. Raises SlotBusy if the slot stays in use."""
    session = at_slot(connection, config.slot)
    session.execute("SELECT set_config('statement_timeout', %s, false)", (f"{int(limit_s * 1000)}ms",))

    def move() -> None:
        with logged_wait(limit_s, lambda: f'the source, which moves the slot "{config.slot}" to {position}'):
            statement = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
            session.execute(statement, (config.slot, str(position)))

    take_when_free(
        connection,
        config.slot,
        config.application_name,
        move,
        limit_s=busy_wait_s,
        check_lease=check_lease,
    )
