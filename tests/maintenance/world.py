"""A source, its pipeline and somebody who remembers everything: what a merge needs is computed from memory, and asked
of the plan that the ledger makes. No Spark: a table's position is a number that a merge moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from msgspec.structs import replace
from psycopg import sql

from tests.support.backfills import backfill_of, chunk_of
from tests.support.manifests import manifest_of, path_of
from tests.support.pipeline import Place, pipeline_config
from tests.support.runs import make_plan
from tidemark.capture import merge_planning
from tidemark.capture.continuity.recovery import list_staging, register_again
from tidemark.errors import ClaimRefused, LedgerBehindStaging, Move, SnapshotBeforeCleanUp
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.generation_file import GenerationFile
from tidemark.formats.manifest import BatchManifest, Claim, Sweep, TableChanges
from tidemark.formats.merge_plan import MergePlan, PlannedTable
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.formats.snapshot import Snapshot
from tidemark.ledger import leases
from tidemark.ledger.captured import backfill_marks, merge_states, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill, Range
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.retention import retirement
from tidemark.ledger.staged import applied_positions, batches, generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.maintenance import staging_cleanup

TABLES = ("public.a", "public.b", "public.c")
START = 100
BROKEN = ErrorRecord("TargetDiffers", Move.FIX_TARGET, "somebody changed it")


@dataclass(frozen=True)
class Change:
    xid: int
    lsn: int
    table: str


@dataclass
class Staged:
    """A registered batch, and the transactions in it, as nobody else remembers them."""

    manifest: BatchManifest
    changes: list[Change]


@dataclass
class World(Place):
    """The source is this record alone: nothing connects to one."""

    random: Random
    wal: int = START
    next_xid: int = 1000
    open: set[int] = field(default_factory=set)
    invisible: set[int] = field(default_factory=set)  # in the WAL, but nobody's snapshot sees them yet
    committed: list[Change] = field(default_factory=list)
    batches: list[Staged] = field(default_factory=list)
    delta: dict[str, int] = field(default_factory=dict)
    confirmed: int = START
    watermarks: list[tuple[ReadChunk, int]] = field(default_factory=list)
    copies: list[tuple[dict[str, list[Any]], int]] = field(default_factory=list)
    left_behind: Staged | None = None  # complete, and registered by whoever comes next
    runs: int = 0

    # --- the source ----------------------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        self.open.add(self.next_xid)
        self.next_xid += 1

    def commit(self) -> None:
        if not self.open:
            self.begin_transaction()
        xid = self.random.choice(sorted(self.open))
        self.open.discard(xid)
        self.wal += 8
        for table in self.random.sample(TABLES, self.random.randint(1, 2)):
            self.committed.append(Change(xid, self.wal, table))
        if self.random.random() < 0.2:
            self.invisible.add(xid)

    def show(self) -> None:
        """What hung becomes visible."""
        self.invisible.clear()

    def snapshot(self) -> Snapshot:
        running = sorted(self.open | self.invisible)
        return Snapshot(min(running, default=self.next_xid), self.next_xid, tuple(running))

    # --- capture --------------------------------------------------------------------------------------------------

    def slot(self) -> Any:
        return leases.hold(self.ledger, self.config.pipeline, SLOT, "drain/1")

    def begin_pipeline(self) -> None:
        opening = GenerationFile("shop", 1, "7000000000000000001", 1, "shop", Lsn(START), "now", "a test opened it")
        self.store.write_atomic(layout.generation_file("shop", 1), opening.to_json().encode())
        with self.ledger_connection() as book, self.slot() as lease:
            generations.open_generation(book, lease, opening)

    def stage(self, *, dies: bool = False) -> None:
        """One batch of everything that is in the WAL; now and then another attempt left one like it. A drain that dies
        between manifest and registration leaves both to the next one."""
        self.register_again()
        with self.ledger_connection() as book, self.slot() as lease:
            start = int(generations.required(book).staged_lsn)
            self.wal += 8
            changes = [change for change in self.committed if start <= change.lsn < self.wal]
            claims, sweeps = self._claims(book)
            manifest = self._manifest(start, self.wal, changes, claims, sweeps)
            if self.random.random() < 0.15:
                self._write(self._manifest(start, self.wal - 4, changes, {}, {}))
            self._write(manifest)
            if dies:
                self.left_behind = Staged(manifest, changes)
                return
            try:
                batches.register(book, lease, manifest, path_of(manifest))
            except ClaimRefused:
                self.store.delete(path_of(manifest))
                return
        self.watermarks = []
        self.batches.append(Staged(manifest, changes))

    def _manifest(
        self,
        start: int,
        end: int,
        changes: list[Change],
        claims: dict[str, tuple[Claim, ...]],
        sweeps: dict[str, tuple[Sweep, ...]],
    ) -> BatchManifest:
        touched = sorted({change.table for change in changes})
        manifest = manifest_of(start, end, *touched, attempt=str(uuid4()), claims=claims, sweeps=sweeps)
        highest = {t: max(c.xid for c in changes if c.table == t) for t in touched}
        touched_tables: list[TableChanges] = [replace(t, max_xid=highest.get(t.table)) for t in manifest.tables]
        return replace(manifest, tables=tuple(touched_tables))

    def _write(self, manifest: BatchManifest) -> None:
        for table in manifest.tables:
            for file in table.files:
                self.store.write_atomic(file.path, b"x" * file.bytes)
        self.store.write_atomic(path_of(manifest), manifest.to_json().encode())

    def _claims(self, book: Ledger) -> tuple[dict[str, tuple[Claim, ...]], dict[str, tuple[Sweep, ...]]]:
        free = {(c.backfill, c.chunk, c.attempt) for c in chunks.unclaimed(book)}
        claims: dict[str, tuple[Claim, ...]] = {}
        sweeps: dict[str, tuple[Sweep, ...]] = {}
        for chunk, lsn in self.watermarks:
            if (chunk.backfill, chunk.chunk, chunk.attempt) in free:
                claim = Claim(
                    chunk.backfill,
                    chunk.chunk,
                    chunk.attempt,
                    Lsn(lsn),
                    "2026-01-02T03:04:05+00:00",
                    chunk.low_lsn,
                    chunk.snapshot,
                    chunk.consistent_point,
                    chunk.rows,
                    chunk.files,
                )
                claims[chunk.table] = (*claims.get(chunk.table, ()), claim)
        for table, claimed in claims.items():
            for backfill in {claim.backfill for claim in claimed}:
                read = chunks.of_backfill(book, backfill)
                left = {c.chunk for c in read if c.claimed_lsn is None and c.rejected is None}
                row = backfills.one(book, backfill)
                assert row is not None
                if row.sweeps and chunks.all_read(book, backfill) and left <= {c.chunk for c in claimed}:
                    sweeps[table] = (Sweep(backfill, row.snapshot, len(read)),)
        return claims, sweeps

    def confirm(self) -> None:
        with self.ledger_connection() as book:
            self.confirmed = max(self.confirmed, int(applied_positions.confirmable(book)))

    # --- backfills ------------------------------------------------------------------------------------------------

    def close_backfill(self) -> None:
        with self.ledger_connection() as book:
            for backfill in backfills.all_open(book)[:1]:
                backfills.close(book, backfill.backfill, "a test closed it")

    def plan_backfill(self, between: Any = None) -> None:
        """The snapshot is taken, time passes, then the backfill is opened."""
        snapshot, seen = self.snapshot(), self.wal
        if between is not None:
            between()
        mode = self.random.choice(["chunks", "chunks", "exported_snapshot"])
        backfill = backfill_of(
            self.random.choice(TABLES),
            f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4()}",
            snapshot=str(snapshot),
            snapshot_lsn=Lsn(seen),
            mode=mode,
            sweeps=self.random.random() < 0.7,
        )
        with self.ledger_connection() as book:
            try:
                backfills.create(book, backfill, [Range(None, ("10",)), Range(("10",), None)])
            except SnapshotBeforeCleanUp:
                self.show()

    def read(self) -> None:
        """One chunk of any open backfill; its high watermark may come, or only later ones."""
        with self.ledger_connection() as book:
            ranges = [
                (b, r) for b in backfills.all_open(book) for r in chunks.ranges_of(book, b.backfill) if not r.done
            ]
            if ranges:
                backfill, key_range = self.random.choice(ranges)
                self._record(book, backfill, key_range.range, key_range.lower, key_range.upper, key_range.lease)
        with self.ledger_connection() as book:
            self.wal += 8
            self.watermarks = [(chunk, self.wal) for chunk in chunks.unclaimed(book) if self.random.random() < 0.7]
        self.wal += 8

    def _record(self, book: Ledger, backfill: Backfill, number: int, lower: Any, upper: Any, lease_name: str) -> None:
        self.wal += 8
        chunk = chunk_of(
            backfill,
            f"{number}-1",
            upper=upper,
            lower=lower,
            snapshot=str(self.snapshot()),
            consistent_point=Lsn(self.wal) if backfill.mode == "exported_snapshot" else None,
            low_lsn=Lsn(self.wal - 8),
            read_lsn=Lsn(self.wal),
        )
        for file in chunk.files:
            self.store.write_atomic(file.path, b"x" * file.bytes)
        with leases.hold(self.ledger, "shop", lease_name, "reader/1") as lease:
            chunks.record(book, lease, chunk, cursor_before=None, done=True)

    # --- merging --------------------------------------------------------------------------------------------------

    def merge(self) -> None:
        """Plan, compare with memory, move Delta; the worker may die before anything is ingested."""
        self.runs += 1
        with self.ledger_connection() as book:
            marked = {
                row.table
                for row in tables.all_of(book)
                if row.life.needs_backfill and row.backfill_kind == backfill_marks.GAP
            }
        plan = make_plan(self.task(f"merge/{self.runs}"))
        if plan is None:
            return
        results = []
        for table in plan.tables:
            self._check(table, is_stated=table.table in marked)
            if self.random.random() < 0.8:
                self.delta[table.table] = max(self.delta.get(table.table, 0), int(table.end_lsn))
            at = self.delta.get(table.table)
            lsn = None if at is None else Lsn(at)
            results.append(TableResult(table.table, lsn, lsn))
        if self.random.random() < 0.8:
            self._result(plan, results)
            merge_planning.ingest(self.task("merge"))

    def _result(self, plan: MergePlan, results: list[TableResult]) -> None:
        result = PlanResult(plan.plan, plan.pipeline, plan.generation, tuple(results))
        self.store.write_atomic(layout.result_file("shop", plan.plan), result.to_json().encode())

    def _check(self, planned: PlannedTable, *, is_stated: bool) -> None:
        """What the driver would meet: a position to start from, every batch above it, and all evidence of those."""
        at = self.delta.get(planned.table, 0)
        assert planned.after is None or at >= planned.after, "the position is below the plan"
        mine = [s for s in self.batches if any(t.table == planned.table for t in s.manifest.tables)]
        expected = {int(s.manifest.end_lsn) for s in mine if at < s.manifest.end_lsn <= planned.end_lsn}
        behind = [b for b in planned.batches if b.end_lsn > at]
        assert all(b.start_lsn >= at for b in behind), "the position is inside a batch"
        assert expected == {int(b.end_lsn) for b in behind} or is_stated, "a batch is lost, and nothing says so"
        for batch in behind:
            for file in (*batch.files, *(f for claim in batch.claims for f in claim.files)):
                assert self.store.exists(file.path), f"{file.path} is to be applied and gone"
        if not is_stated:
            for batch in behind:
                self._check_evidence(planned, mine, batch.claims, batch.sweeps, int(batch.end_lsn))

    def _check_evidence(
        self, planned: PlannedTable, mine: list[Staged], claims: tuple[Claim, ...], sweeps: tuple[Sweep, ...], end: int
    ) -> None:
        there = {f.path for b in (*planned.evidence, *planned.batches) for f in b.files}
        chunk_files = {f.path for b in (*planned.evidence, *planned.batches) for c in b.claims for f in c.files}
        for staged in (s for s in mine if s.manifest.end_lsn <= end):
            touched = next(t for t in staged.manifest.tables if t.table == planned.table)
            unseen = [c for c in staged.changes if c.table == planned.table and self._is_unseen(c, claims, sweeps)]
            for file in touched.files if unseen else ():
                assert file.path in there, "the plan lacks a change that a chunk or sweep did not see"
                assert self.store.exists(file.path), "a change that a chunk or sweep did not see is gone"
            for claim in touched.claims:
                for file in claim.files if claim.backfill in {s.backfill for s in sweeps} else ():
                    assert file.path in chunk_files, "the plan lacks a chunk of what it sweeps"
                    assert self.store.exists(file.path), "a chunk of what is swept is gone"

    @staticmethod
    def _is_unseen(change: Change, claims: tuple[Claim, ...], sweeps: tuple[Sweep, ...]) -> bool:
        for claim in claims:
            if claim.consistent_point is not None:
                if change.lsn >= claim.consistent_point:
                    return True
            elif not Snapshot.parse(claim.snapshot).sees(change.xid):
                return True
        return any(not Snapshot.parse(sweep.snapshot).sees(change.xid) for sweep in sweeps)

    def park(self) -> None:
        with self.ledger_connection() as book:
            table = self.random.choice(TABLES)
            if tables.one(book, table) is not None:
                merge_states.park(book, table, BROKEN)

    def unpark(self) -> None:
        with self.ledger_connection() as book:
            for row in tables.all_of(book):
                merge_states.unpark(book, row.table)

    # --- maintenance ------------------------------------------------------------------------------------------------

    def clean(self, cutoff: datetime | None = None) -> None:
        def read_horizon(_: Generation) -> staging_cleanup.SourceHorizon:
            return staging_cleanup.SourceHorizon(Lsn(self.confirmed), self.snapshot().xmin)

        in_future = datetime.now(UTC) + timedelta(hours=1)  # everything is old enough
        staging_cleanup.clean(self.task("clean/1"), cutoff=cutoff or in_future, read_horizon=read_horizon)

    def a_day_passes(self) -> None:
        """What is there becomes a day older."""
        with self.ledger_connection() as book:
            for table, column in (("batches", "registered_at"), ("plans", "created_at"), ("backfills", "ended_at")):
                query = f"UPDATE tidemark.{table} SET {column} = {column} - interval '1 day'"
                book.execute(query.encode())

    def size(self) -> dict[str, int]:
        """The rows of each of the ledger's tables, and how many files and folders the lake has."""
        with self.ledger_connection() as book:
            counts = {}
            for name in _tables(book):
                row = book.execute(sql.SQL("SELECT count(*) FROM tidemark.{}").format(sql.Identifier(name))).fetchone()
                assert row is not None
                counts[name] = int(row[0])
        return {**counts, "lake": sum(1 for _ in Path(self.config.lake).rglob("*"))}

    def clean_if_level(self) -> None:
        """As a run does that comes between a drain that died and the next one."""
        try:
            self.clean()
        except LedgerBehindStaging:
            assert self.left_behind is not None
        else:
            assert self.left_behind is None

    def keep_copy(self) -> None:
        """A backup of the ledger."""
        with self.ledger_connection() as book:
            self.copies = [*self.copies[-3:], (dump(book), int(generations.required(book).staged_lsn))]

    def restore(self) -> bool:
        """The ledger of some time ago. False where its end was cleaned up since, so that a gap would be stated."""
        if not self.copies:
            return True
        copy, staged = self.random.choice(self.copies)
        with self.ledger_connection() as book:
            floor = retirement.retired_lsn(book, 1)
            load(book, copy)
        self.watermarks = []
        self.register_again()
        with self.ledger_connection() as book:
            reached = int(generations.required(book).staged_lsn)
        newest = max((int(s.manifest.end_lsn) for s in self.batches), default=START)
        assert reached == newest or (floor is not None and staged < floor and reached < self.confirmed + 1)
        return reached == newest

    def lose(self) -> None:
        """The ledger is gone altogether."""
        with self.ledger_connection() as book:
            load(book, {})
        self.watermarks, self.copies = [], []
        self.register_again()
        with self.ledger_connection() as book:
            assert int(generations.required(book).staged_lsn) == max(int(s.manifest.end_lsn) for s in self.batches)

    def is_at_rest(self) -> bool:
        with self.ledger_connection() as book:
            return not backfills.all_open(book) and not batches.unapplied(book)

    def left(self) -> tuple[list[str], int, list[str], list[str]]:
        """Folders of batches, rows of `batch_tables`, folders of backfills, folders of plans."""
        with self.ledger_connection() as book:
            row = book.execute("SELECT count(*) FROM tidemark.batch_tables").fetchone()
        assert row is not None
        folders = [n for n in self.store.list(layout.generation_folder("shop", 1)) if not n.endswith(".json")]
        return folders, row[0], self.store.list("shop/chunks"), self.store.list(layout.plans_root("shop"))

    def register_again(self) -> None:
        with self.ledger_connection() as book, self.slot() as lease:
            for manifest in register_again(book, list_staging(book, self.store), lease, lambda *_: False):
                if self.left_behind is not None and manifest.attempt == self.left_behind.manifest.attempt:
                    self.batches.append(self.left_behind)
                    self.left_behind, self.watermarks = None, []


def world_of(ledger: str, lake: str, seed: int) -> World:
    world = World(pipeline_config("shop", lake), "", ledger, Random(seed))
    world.begin_pipeline()
    return world


def _tables(book: Ledger) -> list[str]:
    """The ledger's tables, each behind those that it refers to."""
    rows = book.execute(
        """
        SELECT c.relname, ARRAY(SELECT r.relname FROM pg_constraint k JOIN pg_class r ON r.oid = k.confrelid
                                 WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confrelid <> c.oid)
          FROM pg_class c WHERE c.relnamespace = 'tidemark'::regnamespace AND c.relkind = 'r'
           AND c.relname <> 'migrations' ORDER BY 1
        """
    ).fetchall()
    behind = {str(name): set(others) for name, others in rows}
    ordered: list[str] = []
    while behind:
        ready = sorted(name for name, others in behind.items() if others <= set(ordered))
        ordered += ready
        behind = {name: others for name, others in behind.items() if name not in ready}
    return ordered


def dump(book: Ledger) -> dict[str, list[Any]]:
    dumped = {}
    for name in _tables(book):
        query = sql.SQL("COPY tidemark.{} TO STDOUT").format(sql.Identifier(name))
        with book.connection.cursor().copy(query) as copy:
            dumped[name] = [bytes(block) for block in copy]
    return dumped


def load(book: Ledger, dumped: dict[str, list[Any]]) -> None:
    named = _tables(book)
    book.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(sql.Identifier("tidemark", n) for n in named)))
    for name in named if dumped else ():
        query = sql.SQL("COPY tidemark.{} FROM STDIN").format(sql.Identifier(name))
        with book.connection.cursor().copy(query) as copy:
            for block in dumped[name]:
                copy.write(block)
