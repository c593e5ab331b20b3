"""Reads the slot up to the run's heartbeat and registers what it stages as batches (R2, R3, R4, R11).

    take the lease `slot` ─► settle the generation ─► valve ─► remove what dead attempts left
      ─► open the stream ─► heartbeat
      ─► read ─► decode ─► stage ──bound passed, at a commit──► close files ─► manifest ─► register ─┐
          ▲                                                                                         │
          └─────────────────────── until the heartbeat is in, or run_s is over ─────────────────────┘

The heartbeat is a transactional message with this attempt's id. Its end LSN is where the run ends. The drain confirms
nothing: the slot stays at the position that the ledger confirmed, and the source sends again what this run does not
register. A batch is staged in this order: its files are fsynced, then their folders, then the manifest is in place, and
then the ledger has its row.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import psycopg

from tidemark.capture import confirm
from tidemark.capture.claims import Claims, Watermarks, claims_of, emit_again
from tidemark.capture.continuity import generation
from tidemark.capture.continuity.recovery import list_staging
from tidemark.capture.definitions.catalogue_comparison import CatalogueComparison
from tidemark.capture.open_batch import HeldChanges, OpenBatch, WrittenBatch, end_of_batch
from tidemark.config import PipelineConfig
from tidemark.errors import DrainStalled, ReplayRefused
from tidemark.failpoints import reach
from tidemark.formats import layout
from tidemark.formats.manifest import BatchManifest, SourceIdentity
from tidemark.ledger import leases, migrations, pipeline_files
from tidemark.ledger.captured import replays, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.reading import chunks
from tidemark.ledger.staged import batches
from tidemark.ledger.staged import generations as ledger_generations
from tidemark.lsn import Lsn, WalPoint
from tidemark.pgoutput.blocks import DecodedBlock
from tidemark.pgoutput.decoder import Decoder
from tidemark.pgoutput.messages import LogicalMessage, index_of_commit, relations_among
from tidemark.postgres import postgres_session
from tidemark.postgres.postgres_session import to_the_same_server
from tidemark.run import Run
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue.transaction_visibility import join_horizon
from tidemark.source.wal import slot
from tidemark.source.wal.replication import (
    LONGEST_WORK_S,
    XLOG_HEADER_BYTES,
    ReplicationStream,
    is_at_work,
    sent_by,
    why_silent,
)
from tidemark.source.wal.slot_server import at_slot
from tidemark.source.wal.slot_use import take_when_free
from tidemark.source.wal.wal_messages import Heartbeat, emit_heartbeat
from tidemark.staging.abandoned_folders import abandoned, read_name
from tidemark.staging.staged_folders import StagedFolders
from tidemark.storage.store import Store
from tidemark.wait_log import Wait
from tidemark.wording import counted, duration

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 8 * 2**20
# The time that a read waits for the first message, before the drain checks its lease and the clock.
READ_S: Final = 1.0
# The time that the drain waits for a slot that another process uses.
SLOT_WAIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of a run's drain. `batches` are the ranges `[start, end)` that the run registered, in order, with
    those of an earlier try. `reached_target` is False if `run_s` ended the run before its heartbeat came; the next
    run continues."""

    batches: list[tuple[Lsn, Lsn]]
    rows: int
    staged_lsn: Lsn
    reached_target: bool
    skipped_messages: int = 0


def drain(run: Run, *, run_s: float | None = None, wait_s: float = 0.0, replay: Collection[str] = ()) -> DrainResult:
    """Stage all changes up to this run's heartbeat, or for `run_s` seconds (default: the pipeline's).

    The lease `slot` is waited for up to `wait_s`, since a drain of the pipeline's other DAG may hold it. The tables of
    `replay`, by their ids, are built again from the heartbeat on, from their staged changes
    (`ledger.captured.replays`). A replay that has begun continues. Raises ReplayRefused if one of the tables cannot be
    replayed.

    A run that has registered a heartbeat of its own is done: its batches are returned, and nothing else happens. If a
    chunk is unclaimed, it continues to a heartbeat of this try.
    """
    config = run.config
    with open_ledger(run.ledger, config.pipeline, config.application_name) as book:
        migrations.require(book.connection)
        staged = of_run(book, run.run_id)
        if _is_done(book, staged):
            leases.give_back_of_dead_try(book, leases.SLOT, run.holder)
            return staged
        with slot_taken(run, book, wait_s) as taken:
            staged = of_run(book, run.run_id)
            if _is_done(book, staged):
                return staged  # staged by an earlier try that died before it could register
            replayed = _to_replay(book, taken.generation.number, replay)
            with taken.stream() as stream:
                draining = taken.draining()
                draining.write_heartbeat()
                draining.replay(replayed)
                draining.until_heartbeat(stream, config.bounds.run_s if run_s is None else run_s)
        return of_run(book, run.run_id)


@contextmanager
def slot_taken(run: Run, book: Ledger, wait_s: float) -> Iterator[HeldSlot]:
    """Take the lease `slot`, which is waited for up to `wait_s`, open a session at the source, and settle the open
    generation."""
    config = run.config
    with (
        leases.hold(run.ledger, config.pipeline, leases.SLOT, run.holder, wait_s=wait_s) as lease,
        postgres_session.connect(
            run.source,
            application_name=config.application_name,
            lock_timeout_s=config.bounds.lock_timeout_s,
        ) as source_conn,
        postgres_session.outages(),
    ):
        # While this drain holds the lease, no preflight can record another file.
        pipeline_files.require(book, config.digest)
        store = Store(config.lake, config.lake_access)
        folders = list_staging(book, store)
        open_generation = generation.settle(config, source_conn, book, folders, lease)
        yield HeldSlot(run, source_conn, book, folders, lease, open_generation)


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """The state of a drain while it holds the lease `slot`. `generation` is as it was when the lease was taken."""

    run: Run
    source: psycopg.Connection[Any]
    book: Ledger
    folders: StagedFolders
    lease: Lease
    generation: ledger_generations.Generation

    @contextmanager
    def stream(self) -> Iterator[ReplicationStream]:
        """Open the stream at the staged LSN, after the valve and after removing what dead attempts left."""
        config, book = self.run.config, self.book
        if _valve(config, self.source, self.generation.staged_lsn):
            confirm.confirm_up_to_staged(self.run, lease=self.lease)
        _remove_abandoned(config, self.source, book, self.folders, self.generation.number)
        with _open_stream(self.run, self.source, book, self.lease, self.generation) as stream:
            generation.still_continues(self.source, self.generation)
            yield stream

    def draining(self, described: Mapping[int, bytes] = MappingProxyType({})) -> Draining:
        """The drain from the presently staged LSN to a heartbeat. `described` is that of `Draining`."""
        return Draining(self, ledger_generations.required(self.book), described)


def of_run(ledger: Ledger, run_id: str) -> DrainResult:
    """The batches that the run has registered so far."""
    own = batches.of_run(ledger, run_id)
    opened = ledger_generations.current(ledger)
    return DrainResult(
        batches=[(b.start_lsn, b.end_lsn) for b in own],
        rows=sum(b.changes for b in own),
        staged_lsn=Lsn(0) if opened is None else opened.staged_lsn,
        reached_target=any(b.heartbeat_lsn is not None for b in own),
        skipped_messages=sum(b.skipped_messages for b in own),
    )


def _to_replay(ledger: Ledger, generation: int, asked: Collection[str]) -> frozenset[str]:
    """The asked tables that are not being replayed yet. Raises ReplayRefused if one of them cannot be."""
    going_on = replays.unplaced(ledger)
    wanted = {*asked} - {*going_on, *going_on.values()}
    reasons = {table: replays.why_not(ledger, generation, table) for table in sorted(wanted)}
    problems = [f"{table} {reason}" for table, reason in reasons.items() if reason is not None]
    if problems:
        raise ReplayRefused(pipeline=ledger.pipeline, problems="; ".join(problems))
    return frozenset(wanted)


def _is_done(ledger: Ledger, result: DrainResult) -> bool:
    return result.reached_target and not chunks.unclaimed_ids(ledger)


# --- before the stream ------------------------------------------------------------------------------------------------


def _valve(config: PipelineConfig, source_conn: psycopg.Connection[Any], staged: Lsn) -> bool:
    """Whether the slot retains so much WAL that the staged LSN must be confirmed before it is applied (R3)."""
    state, confirmed = slot.usable(source_conn, config.slot)
    if state.retained_bytes < config.bounds.wal_valve_bytes or confirmed >= staged:
        return False
    log.warning(
        "The slot %s retains %d bytes of WAL, wal_valve_bytes is %d: confirming up to what is staged, %s, although "
        "it is not applied everywhere. Staging keeps the changes until they are.",
        config.slot,
        state.retained_bytes,
        config.bounds.wal_valve_bytes,
        staged,
    )
    return True


def _remove_abandoned(
    config: PipelineConfig,
    source_conn: psycopg.Connection[Any],
    ledger: Ledger,
    staged: StagedFolders,
    number: int,
) -> None:
    """Remove the folders of attempts that ended without registering them (R4).

    Only those of the open generation: the folders of an older one may be evidence. Folders that start below the slot's
    position are left to maintenance. The previous drains removed those that existed; only an attempt that was replaced
    may write one later, and such a folder is covered by registered batches.
    """
    home = layout.generation_folder(config.pipeline, number)
    _, confirmed = slot.usable(source_conn, config.slot)
    # The names sort by their start. Earlier runs have checked the folders at or below the confirmed LSN.
    folders = staged.of(number, confirmed)
    if not any(map(read_name, folders)):
        return
    garbage = abandoned(
        folders,
        registered=[(b.start_lsn, b.end_lsn, b.attempt) for b in batches.after(ledger, number, confirmed)],
        has_ended=lambda attempt: leases.ended(ledger, attempt),
        confirmed=confirmed,
    )
    for folder in garbage:
        log.info("Removing %s/%s: its attempt ended before it was registered", home, folder)
        staged.store.delete(f"{home}/{folder}")


def _open_stream(
    run: Run,
    source_conn: psycopg.Connection[Any],
    ledger: Ledger,
    lease: Lease,
    start: ledger_generations.Generation,
) -> ReplicationStream:
    """Start streaming at the staged LSN. Raises SlotBusy if the slot stays in use."""
    config = run.config

    there = at_slot(source_conn, config.slot)

    def start_streaming() -> ReplicationStream:
        return ReplicationStream(
            run.source if there is source_conn else to_the_same_server(there),
            application_name=config.application_name,
            slot=config.slot,
            publication=config.publication,
            start=start.staged_lsn,
            confirmed=_reply_lsn(config, source_conn, ledger),
        )

    return take_when_free(
        source_conn,
        config.slot,
        config.application_name,
        start_streaming,
        limit_s=SLOT_WAIT_S,
        check_lease=lambda: lease.check(ledger, leases.SLOT),
    )


def _reply_lsn(config: PipelineConfig, source_conn: psycopg.Connection[Any], ledger: Ledger) -> Lsn | None:
    """The LSN of status replies: the one that the ledger recorded as confirmed. None if the slot is beyond it,
    since some versions of PostgreSQL accept an older position and move back."""
    recorded_lsn = ledger_generations.required(ledger).confirmed_lsn
    _, confirmed = slot.usable(source_conn, config.slot)
    return recorded_lsn if recorded_lsn is not None and recorded_lsn >= confirmed else None


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndOfDrain:
    """The state of a stream after a heartbeat: the staged LSN, the messages received beyond it, the RELATION
    messages that the server does not repeat (`pgoutput.decoder`), and whether a partition with another identity was
    described."""

    staged_lsn: Lsn
    messages: Sequence[bytes]
    described: Mapping[int, bytes]
    has_partitions_of_another_identity: bool


class Draining:
    """One drain, from the first message to the heartbeat."""

    def __init__(
        self,
        taken: HeldSlot,
        open_generation: ledger_generations.Generation,
        described: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        """`open_generation` is the present one. `described` are the RELATION messages that an open connection
        already sent."""
        config, source_conn, ledger = taken.run.config, taken.source, taken.book
        self._run = taken.run
        self._config = config
        self._source = source_conn
        self._ledger = ledger
        self._store = taken.folders.store
        self._lease = taken.lease
        self._generation = open_generation
        self._server = slot.read_server(source_conn)
        self._comparison = CatalogueComparison(config, source_conn, ledger, self._store, self._server, open_generation)
        self._next_xid = self._comparison.next_xid
        # Other columns may have the same names by now, so the shape of every RELATION message is looked up again.
        self._decoder = Decoder(
            self._comparison.relation_versions.schema_for,
            open_generation.number,
            taken.run.salt,
            self._next_xid,
            lambda _: True,
            self._comparison.partitions.note,
            self._note_message,
            described,
        )
        self._watermarks = Watermarks(ledger, open_generation.number)
        self._heartbeat: Heartbeat | None = None
        self._heartbeat_commit: Lsn | None = None
        self._definition_messages = 0
        self._silence: Wait | None = None
        self._batch = self._new_batch(open_generation.staged_lsn)

    @property
    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """The fingerprints of the tables that were read at the beginning."""
        return self._comparison.fingerprints

    def write_heartbeat(self) -> None:
        """Write the heartbeat at which the drain ends, after another watermark for each unclaimed chunk."""
        number = self._generation.number
        emit_again(self._source, self._ledger, number)
        self._heartbeat = emit_heartbeat(self._source, self._config, number, self._lease.attempt)

    def replay(self, asked: Collection[str]) -> None:
        """Build these tables again from the heartbeat on."""
        self._comparison.replay(asked)

    def until_heartbeat(
        self,
        stream: ReplicationStream,
        run_s: float = math.inf,
        *,
        first: Sequence[bytes] = (),
        heartbeat_is_due: Callable[[], float] = lambda: 0.0,
    ) -> EndOfDrain | None:
        """Read, decode, stage and register until the heartbeat is registered. Returns None if `run_s` is over at
        the end of a batch before that.

        `first` are messages that were already read from the stream. `heartbeat_is_due` returns the seconds until the
        heartbeat is to be written, if it is not written yet.
        """
        ends_at = self._run.clock() + run_s
        block_bytes = min(BLOCK_BYTES, self._config.bounds.batch_bytes)
        payloads = list(first)
        try:
            while True:
                wait_s = READ_S
                if self._heartbeat is None:
                    wait_s = min(READ_S, heartbeat_is_due())
                    if wait_s <= 0:
                        self.write_heartbeat()
                        stream.note_work()
                        wait_s = READ_S
                payloads = payloads or stream.read(block_bytes, wait_s)
                self._batch.count_skipped(stream.take_skipped())
                if self._lease.lost:
                    self._lease.check(self._ledger, leases.SLOT)
                if not payloads:
                    if self._heartbeat is not None:
                        self._raise_if_stalled(stream, self._heartbeat)
                    continue
                self._silence = None
                if self._heartbeat is not None and stream.sent_lsn >= self._heartbeat.after_lsn:
                    stream.expect_end()
                described = self._decoder.described
                block = self._decoder.decode(payloads, XLOG_HEADER_BYTES)
                if not self._stage(block, sum(map(len, payloads)), ends_at):
                    return self._end(payloads, described)
                payloads = []
        finally:
            self._batch.abandon()

    def _end(self, payloads: Sequence[bytes], described: dict[int, bytes]) -> EndOfDrain | None:
        """The state with which the stream continues after the heartbeat, which is in the last block; None without
        it."""
        if self._heartbeat_commit is None or self._batch.start_lsn <= self._heartbeat_commit:
            return None
        behind = 1 + index_of_commit(payloads, XLOG_HEADER_BYTES, self._heartbeat_commit)
        described |= relations_among(payloads[:behind], XLOG_HEADER_BYTES)
        of_another_identity = self._decoder.has_partitions_of_another_identity
        return EndOfDrain(self._batch.start_lsn, payloads[behind:], described, of_another_identity)

    def abandon(self) -> None:
        """End the drain before it stages anything."""
        self._batch.abandon()

    def _stage(self, block: DecodedBlock, size: int, ends_at: float) -> bool:
        """Put a block into the open batch, and end batches at the bounds. Returns False when the run ends."""
        for message in block.messages:
            if self._is_heartbeat(message):
                self._heartbeat_commit = message.commit_lsn
        while True:
            batch = self._batch
            open_s = 0.0 if batch.opened_at is None else self._run.clock() - batch.opened_at
            before = HeldChanges(batch.rows, batch.size, open_s)
            bounds = self._config.bounds
            end_lsn = end_of_batch(block, size, before, bounds=bounds, heartbeat_commit=self._heartbeat_commit)
            if end_lsn is None:
                self._add(block, size)
                return True
            below, above = block.split(end_lsn)
            share = size * _rows(below) // max(1, _rows(block))
            self._add(below, share)
            block, size = above, size - share
            has_heartbeat = self._heartbeat_commit is not None and self._heartbeat_commit < end_lsn
            self._end_batch(end_lsn if has_heartbeat else None)
            if has_heartbeat or self._run.clock() >= ends_at:
                return False

    def _add(self, block: DecodedBlock, size: int) -> None:
        self._batch.add(block, size, self._next_xid)
        self._comparison.note(block)
        ours = self._watermarks.add(block) + sum(map(self._is_heartbeat, block.messages))
        definitions, self._definition_messages = min(self._definition_messages, len(block.messages) - ours), 0
        self._batch.count_skipped(len(block.messages) - ours - definitions)

    def _is_heartbeat(self, message: LogicalMessage) -> bool:
        return self._heartbeat is not None and self._heartbeat.is_in(message)

    def _note_message(self, message: LogicalMessage) -> None:
        self._definition_messages += self._comparison.by_trigger.note(message)

    def _end_batch(self, heartbeat_lsn: Lsn | None) -> None:
        """Write files, folders, manifest and the ledger's row, in this order (R3), and begin the next batch."""
        batch = self._batch
        without_change = self._comparison.relation_versions.versions_by_trigger(batch.end_lsn)
        if heartbeat_lsn is not None:
            without_change += self._comparison.at_heartbeat()
        for schema in without_change:
            batch.add_shape(schema)
        reach("drain.before_files")
        staged = batch.finish()
        reach("drain.after_files")
        if staged.tables or staged.transactions is not None:
            self._store.sync_folders(batch.folder)
        claims = self._claims()
        manifest = self._manifest(staged, claims, heartbeat_lsn)
        path = layout.manifest_file(batch.folder)
        reach("drain.before_manifest")
        self._store.write_new(path, manifest.to_json().encode())
        reach("drain.after_manifest")
        reach("drain.before_register")
        batches.register(self._ledger, self._lease, manifest, path, rejected=claims.rejected)
        if heartbeat_lsn is not None:
            self._comparison.heartbeat_registered(WalPoint(self._server.timeline, staged.end_lsn))
        reach("drain.after_register")
        log.info(
            "Registered [%s, %s): %s of %s in %s",
            manifest.start_lsn,
            manifest.end_lsn,
            counted(batch.rows, "change"),
            counted(len(manifest.tables), "table"),
            counted(manifest.transaction_count, "transaction"),
        )
        for (backfill, chunk, _), reason in claims.rejected.items():
            log.warning("Chunk %s of backfill %s is read again: %s", chunk, backfill, reason)
        for mark in manifest.marks:
            log.warning("%s is %s: %s", mark.table, mark.state.replace("_", " "), mark.message)
        self._comparison.registered()
        self._batch = self._new_batch(staged.end_lsn)

    def _claims(self) -> Claims:
        comparison = self._comparison
        batch_claims = claims_of(
            self._ledger, self._watermarks.take(), comparison.lasting_fingerprints(), comparison.read_fingerprint
        )
        for table, claims in batch_claims.claims.items():
            log.info(
                "Claimed %s of %s%s",
                counted(len(claims), "chunk"),
                table,
                ", and its sweep" * (table in batch_claims.sweeps),
            )
        return batch_claims

    def _manifest(self, staged: WrittenBatch, claims: Claims, heartbeat_lsn: Lsn | None) -> BatchManifest:
        staged_tables = claims.added_to(staged.tables)
        notes = self._comparison.manifest_notes(staged, at_heartbeat=heartbeat_lsn is not None)
        return BatchManifest(
            pipeline=self._config.pipeline,
            generation=self._generation.number,
            start_lsn=self._batch.start_lsn,
            end_lsn=staged.end_lsn,
            attempt=self._lease.attempt,
            run_id=self._run.run_id,
            created_at=self._run.now().isoformat(),
            source=SourceIdentity(
                system_identifier=self._server.system_identifier,
                timeline=self._server.timeline,
                slot=self._config.slot,
                server_version=self._server.version,
            ),
            tables=staged_tables,
            schemas=self._with_read_versions((*staged.schemas, *notes.shapes), claims),
            transactions=staged.transactions,
            transaction_count=staged.transaction_count,
            heartbeat_lsn=heartbeat_lsn,
            last_committed_at=staged.last_committed_at,
            skipped_messages=staged.skipped_messages + claims.ignored,
            fingerprints=notes.fingerprints,
            marks=notes.marks,
            mark_horizon=join_horizon(self._source) if notes.marks else None,
        )

    def _with_read_versions(self, staged: tuple[TableSchema, ...], claims: Claims) -> tuple[TableSchema, ...]:
        """The definitions of the batch's files, with those of claimed chunks, so that manifests are enough to
        rebuild a ledger."""
        schemas = {(schema.table, schema.version): schema for schema in staged}
        for table in claims.claims:
            followed = claims.versions(table)
            for schema in tables.versions(self._ledger, table):
                if schema.version in followed:
                    schemas.setdefault((schema.table, schema.version), schema)
        return tuple(schemas[at] for at in sorted(schemas))

    def _new_batch(self, start: Lsn) -> OpenBatch:
        folder = layout.batch_folder(self._config.pipeline, self._generation.number, start, self._lease.attempt)
        return OpenBatch(self._store, folder, start, self._run.clock)

    # --- silence ------------------------------------------------------------------------------------------------------

    def _raise_if_stalled(self, stream: ReplicationStream, heartbeat: Heartbeat) -> None:
        """Raises DrainStalled, with the cause, if the server has stopped working for the stream. A server that
        still reads WAL, or works through a transaction without published changes, merely has nothing to send."""
        stall_s = self._config.bounds.drain_stall_s
        self._silence = self._silence or Wait(math.inf)
        there = at_slot(self._source, self._config.slot)
        cause = partial(why_silent, there, stream.pid, stream.sent_lsn)
        self._silence.log_if_due(lambda: f"the source's messages up to {heartbeat.after_lsn}: {cause()}")
        # Checked every time: a single check may happen to fall between two pieces of work.
        if self._silence.waited_s < LONGEST_WORK_S and is_at_work(there, stream.pid):
            stream.note_work()
        if stream.silent_s() <= stall_s:
            return
        read_lsn = sent_by(there, stream.pid)
        if read_lsn is not None and stream.note_progress(read_lsn):
            return
        raise DrainStalled(
            waited=duration(stall_s),
            target_lsn=heartbeat.after_lsn,
            cause=cause(),
        )


def _rows(block: DecodedBlock) -> int:
    return sum(change.rows.num_rows for change in block.changes)
