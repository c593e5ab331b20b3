"""Slot, ledger and staging -> the generation that a drain may go on with (R4, R8).

PostgreSQL gives a slot no identity, so what is asked is not "is it the same slot" but "can it still
send everything above `staged`", and that its position answers: a slot sends every transaction that
commits at or above confirmed_flush_lsn.

    a slot that is not this pipeline's               ──► SlotUnknown: it is not read, wherever it stands (`ownership`)
    no generation                                    ──► open one at the slot's confirmed LSN
    other system identifier or timeline, or WAL that
      ends below staged (an older copy of the disk)  ──► new generation, tables need a backfill, SourceReplaced once
    confirmed > staged, after staging was asked      ──► new generation, tables need a backfill, ChangesGone once
    confirmed <= staged                              ──► go on: the drain starts at staged and discards what lies below

A slot that was dropped and created again stands beyond everything staged, since creating one writes WAL; one that was
copied from another slot may stand below, and is then complete. A failover slot keeps its generation across a promotion
if the new timeline began at or above staged; what the ledger keeps of snapshots above that point is read, or judged,
anew (`generations.follow`). What cannot be seen: a source put back to an older copy of its disk, on
the same timeline, whose WAL has since grown beyond staged again. Restoring by recovery (PITR) always begins a new
timeline and is seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg

from tidemark.capture import ownership
from tidemark.capture.recovery import register_again, staged_generations
from tidemark.config import PipelineConfig
from tidemark.errors import ChangesGone, GenerationStale, SourceReplaced, TidemarkError
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.formats.generation_file import GenerationFile
from tidemark.ledger import generations, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.generations import Generation
from tidemark.ledger.leases import SLOT, Lease
from tidemark.lsn import Lsn
from tidemark.run import utc_now
from tidemark.source import slot as slots
from tidemark.source.slot import Server, SlotState
from tidemark.source.wal_messages import make_durable
from tidemark.staging.store import Store
from tidemark.wording import counted

log = logging.getLogger(__name__)


def settle(
    config: PipelineConfig,
    source: psycopg.Connection[Any],
    ledger: Ledger,
    store: Store,
    lease: Lease,
    now: Callable[[], datetime] = utc_now,
) -> Generation:
    """The open generation, after every question about the slot is answered. Call it under the lease `slot`, before the
    stream is opened.

    Raises one of the slot's errors, or `ChangesGone`/`SourceReplaced` once per gap; the run after that goes on.
    """
    slot, confirmed_lsn = ownership.usable(config, source, ledger, store)
    server = slots.read_server(source)
    again = register_again(ledger, store, lease, lambda *asked: _still_sends(config, source, *asked))
    if again:
        log.info("Registered %s again from staging, up to %s", counted(len(again), "batch"), again[-1].end_lsn)
    generation = generations.current(ledger)
    opening = GenerationFile(
        pipeline=lease.pipeline,
        number=0,  # `_open` gives it its own
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        slot=slot.name,
        start_lsn=confirmed_lsn,
        opened_at=now().isoformat(),
        reason=f'the slot "{slot.name}" is read from {confirmed_lsn} on',
    )
    if generation is None:
        return _open(ledger, store, lease, opening)
    gone = _what_is_gone(source, server, slot, confirmed_lsn, generation)
    if gone is not None:
        reason, error = gone
        opening = replace(opening, reason=reason, backfill_kind=tables.GAP, error=error.as_facts())
        generation = _open(ledger, store, lease, opening)
    else:
        if server.timeline != generation.timeline:
            _follow(source, ledger, lease, server, generation)
        if slot.name != generation.slot:
            generations.note_source(ledger, lease, generation.number, slot=slot.name)
        generation = generations.required(ledger)
    raised = generations.take_error(ledger, lease)
    if raised is not None:
        raise raised
    return generation


def _follow(
    source: psycopg.Connection[Any],
    ledger: Ledger,
    lease: Lease,
    server: Server,
    generation: Generation,
) -> None:
    """Go on with the generation on the timeline of a promoted standby; what the ledger keeps of the lost part goes."""
    left_lsn = slots.timeline_left(source, server.timeline, generation.timeline)
    row = source.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    seen = make_durable(source)
    if left_lsn is None or seen.timeline != server.timeline:
        raise GenerationStale(
            slot=generation.slot, generation=generation.number, difference="another standby was promoted just now"
        )
    followed = generations.follow(ledger, lease, generation.number, left_lsn=left_lsn, snapshot=row[0], seen_at=seen)
    log.warning(
        "Following timeline %d, which left %d at %s, with all that was staged. Chunks that are read again: %d; "
        "backfills that begin anew: %s; tables whose capture is judged anew: %s",
        server.timeline,
        generation.timeline,
        left_lsn,
        followed.chunks,
        listed(followed.backfills) or "none",
        listed(followed.tables) or "none",
    )


def _still_sends(
    config: PipelineConfig, source: psycopg.Connection[Any], generation: Generation, start_lsn: Lsn, end_lsn: Lsn
) -> bool:
    """Whether the slot, asked anew, sends all of the generation's changes in [start, end): it stands at or below the
    start, and the database is the one that wrote them up to the end."""
    slot, confirmed_lsn = slots.usable(source, config.slot)
    up_to_end = replace(generation, staged_lsn=end_lsn)
    gone = _what_is_gone(source, slots.read_server(source), slot, confirmed_lsn, up_to_end)
    return gone is None and confirmed_lsn <= start_lsn


def still_continues(source: psycopg.Connection[Any], generation: Generation) -> None:
    """Judge the slot again once the stream is open: it is ours from then, but between `settle` and START_REPLICATION it
    could still be advanced or re-created, and START_REPLICATION forwards silently. Raises `GenerationStale` (RETRY).

    Asked the same way before the slot is confirmed: the position of one server means nothing on another.
    """
    slot, confirmed_lsn = slots.usable(source, generation.slot)
    server = slots.read_server(source)
    difference = _other_life(server, generation)
    if difference is None and server.timeline != generation.timeline:
        difference = f"timeline {server.timeline} instead of {generation.timeline}"
    if difference is None and confirmed_lsn > generation.staged_lsn:
        difference = f"it stands at {confirmed_lsn}, beyond {generation.staged_lsn}, the last position staged"
    if difference is not None:
        raise GenerationStale(slot=slot.name, generation=generation.number, difference=difference)


def _what_is_gone(
    source: psycopg.Connection[Any], server: Server, slot: SlotState, confirmed_lsn: Lsn, generation: Generation
) -> tuple[str, TidemarkError] | None:
    """Why the slot does not continue the generation, as reason and error; None if it does."""
    staged_lsn = generation.staged_lsn
    difference = _other_life(server, generation)
    if difference is None and server.timeline != generation.timeline:
        difference = _lost_by_promotion(source, server, slot, generation)
    if difference is not None:
        return f"another life of the database: {difference}", SourceReplaced(
            difference=difference, generation=generation.number, staged_lsn=staged_lsn, confirmed_lsn=confirmed_lsn
        )
    if confirmed_lsn > staged_lsn:
        return f"the changes between {staged_lsn} and {confirmed_lsn} are gone", ChangesGone(
            slot=slot.name, generation=generation.number, staged_lsn=staged_lsn, confirmed_lsn=confirmed_lsn
        )
    return None


def _other_life(server: Server, generation: Generation) -> str | None:
    if server.system_identifier != generation.system_identifier:
        return f"system identifier {server.system_identifier} instead of {generation.system_identifier}"
    if server.flush_lsn < generation.staged_lsn:
        return f"its WAL ends at {server.flush_lsn}, so it was put back to an older copy"
    return None


def _lost_by_promotion(
    source: psycopg.Connection[Any], server: Server, slot: SlotState, generation: Generation
) -> str | None:
    """A promoted standby has everything that was staged only if the slot was carried over (failover = true) and the new
    timeline began at or above `staged`: what the old primary wrote after that point is in no timeline any more."""
    difference = f"timeline {server.timeline} instead of {generation.timeline}"
    if not slot.failover:
        return f'{difference}, and the slot "{slot.name}" is no failover slot'
    began = slots.timeline_left(source, server.timeline, generation.timeline)
    if began is None or began < generation.staged_lsn:
        return f"{difference}, which left that one at {began or 'an unknown position'}"
    return None


def _open(ledger: Ledger, store: Store, lease: Lease, opening: GenerationFile) -> Generation:
    """Give it the next number, write generation.json, then the ledger's row. A death in between is caught up by
    `register_again`.

    The lease stays locked from before the file is written: an attempt that was overtaken since it looked writes
    nothing, and one that takes over sees file and row, or neither.
    """
    with ledger.transaction():
        lease.check(ledger, SLOT)
        current = generations.current(ledger)
        number = 1 + max([0 if current is None else current.number, *staged_generations(store, lease.pipeline)])
        opening = replace(opening, number=number)
        path = layout.generation_file(lease.pipeline, number)
        store.write_new(path, opening.to_json().encode())
        store.sync_folders(layout.generation_folder(lease.pipeline, number))
        log.info("Opening generation %d of pipeline %s: %s", number, lease.pipeline, opening.reason)
        return generations.open_generation(ledger, lease, opening)
