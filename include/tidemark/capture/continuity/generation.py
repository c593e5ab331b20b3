"""Judges whether the slot continues the open generation, and opens a new one if it does not (R4, R8).

PostgreSQL gives a slot no identity. So the question is not "is it the same slot" but "does it still send everything
above `staged`". An ordinary run ends here: the same server, timeline and history, a slot at or below `staged`, and WAL
that reaches it. Everything else goes through `discontinuity.resolve`: a first run, a failover, a lost or re-created
slot, an older copy of the source.

    the slot is not this pipeline's                            ──► SlotUnknown, nothing is read (`ownership`)
    the folder in the lake is another pipeline's               ──► LakeTaken (`lake_folder`)
    staging holds batches that the ledger lacks                ──► they are registered again (`recovery`)
    server, history and slot are those that were staged from   ──► go on: the drain starts at `staged`
    anything else                                              ──► `discontinuity`
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import psycopg

from tidemark.capture import lake_folder
from tidemark.capture.continuity import discontinuity, ownership
from tidemark.capture.continuity.discontinuity import SlotFacts, SlotJudgement
from tidemark.capture.continuity.recovery import register_again
from tidemark.config import PipelineConfig
from tidemark.errors import GenerationStale
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.staged import generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.source.wal import slot as slots
from tidemark.source.wal.slot_server import at_slot, replayed_timeline, system_identifier
from tidemark.source.wal.timelines import History, read_history
from tidemark.staging.staged_folders import StagedFolders
from tidemark.wording import counted

log = logging.getLogger(__name__)


def settle(
    config: PipelineConfig,
    source: psycopg.Connection[Any],
    ledger: Ledger,
    folders: StagedFolders,
    lease: Lease,
    *,
    accepts: bool = False,
) -> Generation:
    """Return the open generation that a drain may continue. Call it under the lease `slot`, before the stream opens.

    Raises one of the slot's errors or of the folder's (`lake_folder`), or `ChangesGone`, `SourceReplaced` or
    `SourceForked` once per gap; the next run continues. `folders` are those that `look_into_staging` listed under the
    lease. `accepts` is true if a person confirmed that the server is the source, even on an older timeline, and that a
    newer generation in the folder in the lake is this pipeline's.
    """
    store = folders.store
    slot, confirmed_lsn = ownership.usable(config, source, ledger, store)
    before = generations.current(ledger)
    lake_folder.refuse_another(config, source, store, folders.numbers, before, accepts=accepts)
    server = slots.read_server(source)
    again = register_again(ledger, folders, lease, lambda *asked: _still_sends(config, source, *asked))
    if again:
        log.info("Registered %s again from staging, up to %s", counted(len(again), "batch"), again[-1].end_lsn)
    generation = generations.current(ledger)
    facts = SlotFacts(slot, confirmed_lsn, server, read_history(source, server.timeline))
    if generation is None or not facts.plainly_continue(generation):
        judgement = SlotJudgement(config, source, ledger, folders, lease, accepts)
        discontinuity.resolve(judgement, facts, generation)
    raised = generations.take_error(ledger, lease)
    if raised is not None:
        raise raised
    return generations.required(ledger)


def lost_parts(ledger: Ledger) -> dict[int, Lsn]:
    """Older generation of this source -> the LSN from which on its staged changes are in no history of the source."""
    opened = generations.required(ledger)
    if opened.history is None:
        return {}
    history = History.parse(opened.history)
    parted = {
        older.number: discontinuity.parted_at(history, older)
        for older in generations.all_of(ledger)
        if older.system_identifier == opened.system_identifier and older.number < opened.number
    }
    return {number: left_lsn for number, left_lsn in parted.items() if left_lsn is not None}


def _still_sends(
    config: PipelineConfig, source: psycopg.Connection[Any], generation: Generation, start_lsn: Lsn, end_lsn: Lsn
) -> bool:
    """Whether the slot, as it is now, sends all of the generation's changes in [start, end): it stands at or below
    the start, and the database is the one that wrote them up to the end."""
    slot, confirmed_lsn = slots.usable(source, config.slot)
    server = slots.read_server(source)
    facts = SlotFacts(slot, confirmed_lsn, server, read_history(source, server.timeline))
    up_to_end = replace(generation, staged_lsn=end_lsn)
    return confirmed_lsn <= start_lsn and discontinuity.slot_break(facts, up_to_end) is None


def still_continues(source: psycopg.Connection[Any], generation: Generation) -> None:
    """Judge the slot again once the stream is open. From then on nobody else can read it. Between `settle` and
    START_REPLICATION it could still be advanced or re-created, and START_REPLICATION then skips changes silently.
    Raises `GenerationStale` (RETRY).

    The slot is judged in the same way before it is confirmed: a position of one server is meaningless on another.
    """
    slot, confirmed_lsn = slots.usable(source, generation.slot)
    server = slots.read_server(source)
    difference = discontinuity.other_life(server, generation)
    if difference is None and server.timeline != generation.timeline:
        difference = f"timeline {server.timeline} instead of {generation.timeline}"
    if difference is None:
        difference = _beside_another_history(source, generation)
    if difference is None and confirmed_lsn > generation.staged_lsn:
        difference = f"it stands at {confirmed_lsn}, beyond {generation.staged_lsn}, the last position staged"
    if difference is not None:
        raise GenerationStale(slot=slot.name, generation=generation.number, difference=difference)


def _beside_another_history(source: psycopg.Connection[Any], generation: Generation) -> str | None:
    """The reason why the stream of a standby is not that of the primary; None if it is, or if the slot is on the
    primary. A standby that received WAL that the primary lost in a promotion stays on its old timeline."""
    standby = at_slot(source, generation.slot)
    if standby is source:
        return None
    theirs, replayed = system_identifier(standby), replayed_timeline(standby)
    if theirs != generation.system_identifier:
        return f"the standby has the system identifier {theirs} instead of {generation.system_identifier}"
    if replayed != generation.timeline:
        return f"the standby replays timeline {replayed}, and the primary is on {generation.timeline}"
    return None
