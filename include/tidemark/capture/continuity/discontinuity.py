"""Decides how to proceed if the slot does not plainly continue the open generation (R4, R8).

    no generation                                    ──► open one at the slot's confirmed LSN
    a server on an older timeline than the one that
      is followed                                    ──► SourceLeftBehind: nothing is read until a person decides
    other system identifier, a history of WAL that
      parts from what was staged, or WAL that ends
      below staged (an older copy of the disk)       ──► new generation, every table needs a backfill, SourceReplaced
                                                         once
    the same, but a failover slot has all of the new
      history from where it parts                    ──► new generation from there; of the tables that lost changes
                                                         touched, their rows need a backfill, SourceForked once
    confirmed > staged, after staging was read       ──► new generation, every table needs a backfill, ChangesGone once
    a failover slot on a newer timeline that left
      this one at or above staged                    ──► the generation goes on, on that timeline

A slot that was dropped and created again stands beyond everything staged, since creating one writes WAL. A slot that
was copied from another may stand below, and is then complete. A failover slot keeps its generation across a promotion
if the new timeline began at or above staged. The ledger's evidence of snapshots above that point is then read, or
judged, again (`generations.follow`).

A source may be put back to an older copy of its disk, on the same timeline, and its WAL may have grown beyond staged
again. Then it lacks the last heartbeat (`source_rewinds`). Restoring by recovery (PITR) always begins a new timeline. A
server that `pg_upgrade` made has another system identifier. `capture.pg_upgrade` continues on it once a person has
confirmed the upgrade, before any run adopts its slot.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow.parquet as pq
from msgspec import structs

from tidemark.capture import lake_folder
from tidemark.capture.continuity import source_rewinds
from tidemark.capture.continuity.source_forks import LostPart, lost_part
from tidemark.config import PipelineConfig
from tidemark.errors import (
    ChangesGone,
    GenerationStale,
    SourceForked,
    SourceLeftBehind,
    SourceReplaced,
    TidemarkError,
)
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorFacts
from tidemark.formats.generation_file import GenerationFile
from tidemark.ledger.captured import backfill_marks
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.staged import generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.run import utc_now
from tidemark.source.catalogue.transaction_visibility import current_snapshot
from tidemark.source.wal.slot import Server, SlotState
from tidemark.source.wal.timelines import History
from tidemark.source.wal.wal_messages import make_durable
from tidemark.staging.staged_folders import StagedFolders
from tidemark.wording import counted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The state of the slot and of its server, read before a run reads from the slot."""

    slot: SlotState
    confirmed_lsn: Lsn
    server: Server
    history: History

    def plainly_continue(self, generation: Generation) -> bool:
        """Whether nothing at all differs from the source of the generation's staged changes."""
        return (
            self.slot.name == generation.slot
            and self.server.system_identifier == generation.system_identifier
            and self.server.timeline == generation.timeline
            and self.server.started_at == generation.source_started_at
            and str(self.history) == generation.history
            and self.confirmed_lsn <= generation.staged_lsn <= self.server.flush_lsn
        )


@dataclass(frozen=True, slots=True)
class SlotBreak:
    """The reason why the slot does not continue the generation, as a clause and as the error for it.

    - `left_lsn` is the LSN at which the source's history left the staged one; None if it is unknown, or nothing is
      staged above it.
    - `sends_all` is true if the slot has all changes from there on.
    """

    reason: str
    error: TidemarkError
    left_lsn: Lsn | None = None
    sends_all: bool = False


@dataclass(frozen=True, slots=True)
class SlotJudgement:
    """The state with which a drain judges the slot, under the lease `slot`. `accepts` is that of
    `generation.settle`."""

    config: PipelineConfig
    source: psycopg.Connection[Any]
    ledger: Ledger
    folders: StagedFolders
    lease: Lease
    accepts: bool


def resolve(judgement: SlotJudgement, facts: SlotFacts, generation: Generation | None) -> None:
    """Open a new generation, or record a change of the source that does not end the open one.

    Raises SourceLeftBehind or GenerationStale. The error of a new generation is stored in the ledger; the caller that
    takes it raises it (`generations.take_error`).
    """
    slot, server, history = facts.slot, facts.server, facts.history
    source, ledger, folders, lease = judgement.source, judgement.ledger, judgement.folders, judgement.lease
    opening = GenerationFile(
        pipeline=lease.pipeline,
        number=0,  # `open_next` gives it its own
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        slot=slot.name,
        start_lsn=facts.confirmed_lsn,
        opened_at=utc_now().isoformat(),
        reason=f'the slot "{slot.name}" is read from {facts.confirmed_lsn} on',
        history=str(history),
    )
    if generation is None:
        open_next(ledger, folders, lease, opening, server)
        return
    if server.timeline < generation.timeline and not judgement.accepts:
        _refuse_left_behind(judgement.config, server, generation)
    broken = slot_break(facts, generation)
    if broken is None and server.started_at != generation.source_started_at:
        if source_rewinds.was_rewound(judgement.config, source, ledger, lease, facts.confirmed_lsn):
            broken = _rewound(server, facts.confirmed_lsn, generation)
        else:
            generations.note_source(ledger, lease, generation.number, source_started_at=server.started_at)
    if broken is not None:
        lost = None if broken.left_lsn is None else lost_part(ledger, folders.store, generation, broken.left_lsn)
        open_next(ledger, folders, lease, _after(broken, lost, opening, generation), server, lost)
        return
    if server.timeline != generation.timeline:
        _follow(source, ledger, lease, history, generation)
    elif generation.history != str(history):
        generations.note_source(ledger, lease, generation.number, history=str(history))
    if slot.name != generation.slot:
        generations.note_source(ledger, lease, generation.number, slot=slot.name)


def open_next(
    ledger: Ledger,
    folders: StagedFolders,
    lease: Lease,
    opening: GenerationFile,
    server: Server,
    lost: LostPart | None = None,
) -> Generation:
    """Give the generation the next number, and write the lost part, generation.json, and then the ledger's row. If
    the process dies in between, `register_again` completes it.

    The lease stays locked from before the file is written. An attempt that was replaced writes nothing, and its
    successor finds file and row, or neither. A pipeline of another ledger has another lease. Then the first of the two
    to write its file gets the number, and LakeTaken is raised for the second.
    """
    store = folders.store
    with ledger.transaction():
        lease.check(ledger, SLOT)
        current = generations.current(ledger)
        number = 1 + max(0 if current is None else current.number, _newest_begun(folders))
        opening = structs.replace(opening, number=number)
        if lost is not None and lost.transactions.num_rows:
            with store.create(layout.lost_file(lease.pipeline, number)) as out:
                pq.write_table(lost.transactions, out)
        path = layout.generation_file(lease.pipeline, number)
        try:
            store.write_new(path, opening.to_json().encode())
        except FileExistsError:
            raise lake_folder.taken_meanwhile(store, lease.pipeline, number) from None
        store.sync_folders(layout.generation_folder(lease.pipeline, number))
        log.info("Opening generation %d of pipeline %s: %s", number, lease.pipeline, opening.reason)
        generations.open_generation(ledger, lease, opening)
        generations.note_source(ledger, lease, number, source_started_at=server.started_at)
        return generations.required(ledger)


def _newest_begun(folders: StagedFolders) -> int:
    """The newest generation with anything in its folder, 0 without one. An empty folder belongs to another ledger
    that opens the generation at this moment, or to an attempt that died: the first to write generation.json gets
    it."""
    for number in sorted(folders.numbers, reverse=True):
        names = folders.store.list(layout.generation_folder(folders.pipeline, number))
        if any(not name.startswith(".") for name in names):  # a file that is being written has a dot
            return number
    return 0


def _refuse_left_behind(config: PipelineConfig, server: Server, generation: Generation) -> None:
    """Raises SourceLeftBehind. The timelines of one database only rise. So this server is the former primary of a
    promoted standby, or an older copy of the disk. Reading it would end the generation, and returning would end the
    next one."""
    if server.system_identifier == generation.system_identifier:
        raise SourceLeftBehind(
            timeline=server.timeline,
            followed=generation.timeline,
            generation=generation.number,
            path=config.path or "FILE",
        )


def _after(broken: SlotBreak, lost: LostPart | None, opening: GenerationFile, generation: Generation) -> GenerationFile:
    """The generation that follows the broken one. It continues from the LSN at which the source left the staged
    history, if the slot has all changes from there and the lost changes are known. Otherwise every table needs a
    backfill."""
    if lost is None or not broken.sends_all:
        error = _with_lost(broken.error, lost, opening.pipeline)
        return structs.replace(opening, reason=broken.reason, backfill_kind=backfill_marks.GAP, error=error)
    assert broken.left_lsn is not None
    opening = structs.replace(
        opening, start_lsn=broken.left_lsn, reason=broken.reason, backfill_kind=backfill_marks.FORK, tables=lost.tables
    )
    if not lost.transactions.num_rows:
        log.warning("%s. Nothing of the tables is lost", broken.reason)
        return opening
    forked = SourceForked(
        difference=broken.reason,
        generation=generation.number,
        transactions=_lost_said(lost, opening.pipeline),
        rows=lost.rows_read_again,
        left_lsn=broken.left_lsn,
        pipeline=opening.pipeline,
    )
    return structs.replace(opening, error=forked.as_facts())


def _with_lost(error: TidemarkError, lost: LostPart | None, pipeline: str) -> ErrorFacts:
    """The error's facts, with the transactions that the source lost."""
    facts = error.as_facts()
    if lost is None or not lost.transactions.num_rows or "difference" not in facts.facts:
        return facts
    difference = f"{facts.facts['difference']}. {_lost_said(lost, pipeline)}"
    return structs.replace(facts, facts={**facts.facts, "difference": difference})


def _lost_said(lost: LostPart, pipeline: str) -> str:
    counts = counted(lost.transactions.num_rows, "transaction")
    return f"The source lost {counts} that the lake has: {lost}"


def _follow(
    source: psycopg.Connection[Any],
    ledger: Ledger,
    lease: Lease,
    history: History,
    generation: Generation,
) -> None:
    """Continue the generation on the timeline of a promoted standby. The ledger's evidence of the lost part is
    removed."""
    left_lsn = parted_at(history, generation)
    snapshot = current_snapshot(source)
    seen = make_durable(source)
    if left_lsn is None or seen.timeline != history.timeline:
        raise GenerationStale(
            slot=generation.slot, generation=generation.number, difference="another standby was promoted just now"
        )
    with ledger.transaction():
        followed = generations.follow(
            ledger, lease, generation.number, left_lsn=left_lsn, snapshot=snapshot, seen_at=seen
        )
        generations.note_source(ledger, lease, generation.number, history=str(history))
    log.warning(
        "Following timeline %d, which left %d at %s, with all that was staged. Chunks that are read again: %d; "
        "backfills that begin anew: %s; tables whose capture is judged anew: %s",
        history.timeline,
        generation.timeline,
        left_lsn,
        followed.chunks,
        listed(followed.backfills) or "none",
        listed(followed.tables) or "none",
    )


def slot_break(facts: SlotFacts, generation: Generation) -> SlotBreak | None:
    """The reason why the slot does not continue the generation; None if it does."""
    slot, server, history = facts.slot, facts.server, facts.history
    confirmed_lsn, staged_lsn = facts.confirmed_lsn, generation.staged_lsn
    difference, left_lsn = other_life(server, generation), None
    if difference is None:
        left_lsn = parted_at(history, generation)
        difference = _lost_by_promotion(history, slot, confirmed_lsn, left_lsn, generation)
    if difference is not None:
        is_known = left_lsn is not None and left_lsn < staged_lsn
        sends_all = slot.failover and history.timeline > generation.timeline
        sends_all = sends_all and left_lsn is not None and confirmed_lsn <= left_lsn
        return _replaced(difference, confirmed_lsn, generation, left_lsn if is_known else None, sends_all=sends_all)
    if confirmed_lsn > staged_lsn:
        return SlotBreak(
            f"the changes between {staged_lsn} and {confirmed_lsn} are gone",
            ChangesGone(
                slot=slot.name,
                generation=generation.number,
                staged_lsn=staged_lsn,
                confirmed_lsn=confirmed_lsn,
            ),
        )
    return None


def _rewound(server: Server, confirmed_lsn: Lsn, generation: Generation) -> SlotBreak:
    difference = (
        f"its WAL, since its start at {server.started_at}, does not have the heartbeat that was staged up to "
        f"{generation.heartbeat_lsn}, so it was put back to an older copy and written on"
    )
    return _replaced(difference, confirmed_lsn, generation)


def _replaced(
    difference: str,
    confirmed_lsn: Lsn,
    generation: Generation,
    left_lsn: Lsn | None = None,
    *,
    sends_all: bool = False,
) -> SlotBreak:
    replaced = SourceReplaced(
        difference=difference,
        generation=generation.number,
        staged_lsn=generation.staged_lsn,
        confirmed_lsn=confirmed_lsn,
    )
    return SlotBreak(f"another life of the database: {difference}", replaced, left_lsn, sends_all)


def other_life(server: Server, generation: Generation) -> str | None:
    if server.system_identifier != generation.system_identifier:
        return f"system identifier {server.system_identifier} instead of {generation.system_identifier}"
    if server.flush_lsn < generation.staged_lsn and server.timeline == generation.timeline:
        return f"its WAL ends at {server.flush_lsn}, so it was put back to an older copy"
    return None


def parted_at(history: History, generation: Generation) -> Lsn | None:
    """The LSN at which the source's history left the generation's. None if it did not, or if the generation's
    history was not recorded and the LSN is unknown."""
    if generation.history is not None:
        return history.parted_at(History.parse(generation.history))
    if generation.timeline == 1:
        return history.parted_at(History(1))
    return dict(history.left).get(generation.timeline)


def _lost_by_promotion(
    history: History, slot: SlotState, confirmed_lsn: Lsn, left_lsn: Lsn | None, generation: Generation
) -> str | None:
    """The reason why a promoted standby may lack staged changes; None if it has all of them.

    It has all of them only if the slot was carried over (failover = true) and its history includes them: no timeline
    has the WAL that the old primary wrote above the point where they part.
    """
    if history.timeline == generation.timeline:
        if left_lsn is None:
            return None
        # The ledger's evidence of snapshots has the timeline's number, which is the same for both.
        return f"another timeline {history.timeline} than the one that was followed; they part at {left_lsn}"
    difference = f"timeline {history.timeline} instead of {generation.timeline}"
    if not slot.failover:
        return f'{difference}, and the slot "{slot.name}" is no failover slot'
    if left_lsn is None or left_lsn < generation.staged_lsn:
        return f"{difference}, which left that one at {left_lsn or 'an unknown position'}"
    if confirmed_lsn > generation.staged_lsn:
        return f'{difference}, and the slot "{slot.name}" was not carried over: it begins at {confirmed_lsn}'
    return None
