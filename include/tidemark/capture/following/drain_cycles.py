"""Reads the slot over one replication connection, batch after batch, until the run's window is over (R2, R3, R4).

    lease `slot`, generation, stream ──► catalogue ─► changes for `every_s` ─► heartbeat ─► register ──┐
          ▲                                  ▲                                                         │
          │                                  └── something comes: the same stream goes on ◄────────────┤
          └── a definition changed, somebody else waits for the slot, or a cycle took `run_s` ◄────────┘

The drain of a run that is to take over from an earlier one waits until it has (`ledger.followers`), or until that run's
drain is gone. The earlier run's drain ends then.

A cycle is a drain of its own (`capture.drain`): it reads the catalogue, ends at a heartbeat of its own, and leaves
in ledger and staging what a run of its own would leave. Only the connection stays. The server describes a relation once
for each connection, so the decoder is told what was described before. That holds as long as the catalogue shows what it
showed in the cycle before; else the connection is opened anew. What the stream gave beyond a heartbeat is decoded again
by the next cycle.

While nothing happens at the source no cycle begins, and nothing is written. Somebody else's heartbeat is nothing, too.
Meanwhile the status replies carry what the ledger says is confirmable: nobody else can move a slot in use. A changed
pipeline file, and a new table that it names, is taken up between two batches, while the slot is free.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import psycopg

from tidemark.capture.drain import BLOCK_BYTES, READ_S, Draining, DrainResult, EndOfDrain, HeldSlot, of_run, slot_taken
from tidemark.capture.following.run_end import Window, is_over
from tidemark.capture.waiting import altered_table
from tidemark.ledger import followers, leases, migrations
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import chunks
from tidemark.ledger.staged import applied_positions, generations
from tidemark.lsn import Lsn
from tidemark.run import Run
from tidemark.source.wal import slot
from tidemark.source.wal.replication import XLOG_HEADER_BYTES, ReplicationStream
from tidemark.source.wal.wal_messages import is_quiet
from tidemark.wait_log import Wait
from tidemark.wording import duration

log = logging.getLogger(__name__)

# How often the ledger is asked for what can be confirmed, for who waits for the slot, and for who takes over.
LOOK_S: Final = 2.0
# How often a drain looks whether its run has taken over.
TURN_S: Final = 0.5
# How often ledger and catalogue are asked for what no message tells of.
UNTOLD_S: Final = 30.0
# WAL of others that the slot passes over before a heartbeat lets it go.
PASSED_BYTES: Final = 16 * 2**20
# How long whoever waits for the slot may take to take it.
LET_IN_S: Final = 10.0


class RunFile(Protocol):
    """The pipeline file of a run that follows. It may change meanwhile, and so may the tables that it names."""

    def has_changed(self, source: psycopg.Connection[Any]) -> bool:
        """Whether its content differs from what the run works with, or the source has tables that it names and no
        preflight has judged."""

    def taken_up(self, run: Run) -> Run:
        """The run with the file's new content if a preflight accepts it, else the run as it is. Called while the run
        does not hold the slot."""


class UnchangingRunFile:
    """A file that does not change."""

    def has_changed(self, source: psycopg.Connection[Any]) -> bool:
        return False

    def taken_up(self, run: Run) -> Run:
        return run


def follow(run: Run, window: Window, *, wait_s: float = 0.0, file: RunFile | None = None) -> DrainResult:
    """Stage what happens at the source until the window is over; the run's batches, those of earlier tries included.

    The lease `slot` is waited for up to `wait_s`, and let go for a moment whenever somebody else waits for it. A try
    that begins when the window is over, or when a later run has taken over, stages up to one heartbeat. Without a
    `file` it stays as it is. Raises what `drain` raises.
    """
    file = file or UnchangingRunFile()
    with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
        migrations.require(book.connection)
        while not is_over(run, book, window):
            _await_turn(run, book, window)
            run = file.taken_up(run)
            with slot_taken(run, book, wait_s) as taken, taken.stream() as stream:
                _Following(run, book, window, taken, stream, file).until_something_ends_it()
            _let_in(run, book)
        leases.give_back_of_dead_try(book, leases.SLOT, run.holder)
        return of_run(book, run.run_id)


def _await_turn(run: Run, book: Ledger, window: Window) -> None:
    """Pause while the drain of an earlier run follows the source."""
    wait = Wait(window.left_s(run.now()), every_s=TURN_S)
    while leases.holders(book).get(leases.SLOT, run.holder) != run.holder:
        if not followers.has_predecessor(book, run.run_id, window.began_at):
            break
        if not wait.pause(lambda: "the Spark application of this run, to take over from the run before"):
            break
    wait.log_end()


def _let_in(run: Run, book: Ledger) -> None:
    """Pause until nobody waits for the slot who does not have it by now."""
    wait = Wait(LET_IN_S, every_s=0.2)
    while leases.SLOT in leases.awaited(book, run.holder) and leases.SLOT not in leases.holders(book):
        if not wait.pause(lambda: "whoever waits for the slot, to take it"):
            break


@dataclass(slots=True)
class _Following:
    """One connection."""

    run: Run
    book: Ledger
    window: Window
    taken: HeldSlot
    stream: ReplicationStream
    file: RunFile
    due_at: float = field(init=False)  # when the heartbeat of the cycle is
    looked_at: float = field(init=False)
    untold_at: float = field(init=False)
    told_lsn: Lsn = field(default=Lsn(0), init=False)

    def __post_init__(self) -> None:
        self.due_at = self.looked_at = self.untold_at = self.run.clock()  # whatever waits already is late

    def until_something_ends_it(self) -> None:
        """One cycle at least, and then another one whenever something comes."""
        draining = self._draining()
        messages: Sequence[bytes] = ()
        while True:
            fingerprints = dict(draining.fingerprints)
            run_s = self.run.config.bounds.run_s
            end = draining.until_heartbeat(self.stream, run_s, first=messages, heartbeat_is_due=self._due_s)
            if end is None:
                log.info(
                    "No heartbeat came in %s: the valve is looked at, and whoever waits is let in", duration(run_s)
                )
                return
            self.due_at = self.run.clock() + self.window.every_s
            self.stream.expect_more()
            if end.has_partitions_of_another_identity:
                log.info("A partition tells rows apart by other columns than its root: the stream is opened anew")
                return
            reason = self._wait(end)
            if reason is None:
                return
            messages = reason
            draining = self._draining(end)
            if draining.fingerprints != fingerprints:
                log.info("The catalogue shows other definitions than before: the stream is opened anew")
                draining.abandon()
                return

    def _draining(self, end: EndOfDrain | None = None) -> Draining:
        return self.taken.draining({} if end is None else end.described)

    def _due_s(self) -> float:
        return min(self.due_at - self.run.clock(), self.window.left_s(self.run.now()))

    def _wait(self, end: EndOfDrain) -> Sequence[bytes] | None:
        """The messages with which the next cycle begins, possibly none; None if the connection is to be closed."""
        began = self.run.clock()
        messages, latest = list(end.messages), end.messages
        while True:
            now = self.run.clock()
            if self.taken.lease.lost:
                self.taken.lease.check(self.book, leases.SLOT)
            if now - self.looked_at >= LOOK_S:
                self.looked_at = now
                self._confirm_in_stream(end.staged_lsn)
                if (waiting := leases.awaited(self.book, self.run.holder).get(leases.SLOT)) is not None:
                    log.info("The slot is let go for %s", waiting)
                    return None
                if followers.is_succeeded(self.book, self.run.run_id, self.window.began_at):
                    log.info("A later run takes over")
                    return None
                if self.file.has_changed(self.taken.source):
                    return None
            left_s = self.window.left_s(self.run.now())
            if left_s <= 0:
                return None
            if self._wakes(latest) or self._cycle_is_due(now - began, end.staged_lsn):
                return messages
            latest = self.stream.read(BLOCK_BYTES, min(READ_S, left_s))
            messages += latest

    def _wakes(self, payloads: Sequence[bytes]) -> bool:
        """Whether a cycle is due for them. Two pipelines of one database would else wake each other for ever, each by
        the heartbeat of its cycle."""
        return not all(is_quiet(payload, XLOG_HEADER_BYTES, self.run.pipeline) for payload in payloads)

    def _cycle_is_due(self, idle_s: float, staged: Lsn) -> bool:
        """Whether a cycle is due although no message came: a heartbeat is due, other WAL has passed, a chunk waits for
        a watermark since its reader died, or a table that nobody writes to was altered."""
        if idle_s >= self.run.config.bounds.heartbeat_s or self.stream.sent_lsn >= staged + PASSED_BYTES:
            return True
        if self.run.clock() - self.untold_at < UNTOLD_S:
            return False
        self.untold_at = self.run.clock()
        if chunks.unclaimed_ids(self.book):
            return True
        return altered_table(self.taken.source, tables.last_readings(self.book)) is not None

    def _confirm_in_stream(self, staged: Lsn) -> None:
        """Have the status replies carry the confirmable LSN (R3), and record the slot's position once it is there."""
        if self.told_lsn >= staged:
            return
        state, confirmed = slot.usable(self.taken.source, self.run.config.slot)
        generation = generations.required(self.book)
        if confirmed > (generation.confirmed_lsn or Lsn(0)):
            generations.note_source(self.book, self.taken.lease, generation.number, confirmed_lsn=confirmed)
        position = applied_positions.confirmable(self.book)
        if state.retained_bytes >= self.run.config.bounds.wal_valve_bytes and position < generation.staged_lsn:
            log.warning(
                "The slot %s retains %d bytes of WAL, wal_valve_bytes is %d: confirming up to what is staged, %s",
                *(state.name, state.retained_bytes, self.run.config.bounds.wal_valve_bytes, generation.staged_lsn),
            )
            position = generation.staged_lsn
        if position > confirmed:
            self.stream.confirm(position)
        else:
            self.told_lsn = confirmed
