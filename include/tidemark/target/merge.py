"""Applies a plan to its tables, history first and current after it: `MergePlan` -> `PlanResult` (R5, R6).

Per table, from the positions that its two Delta tables carry, to the end of the plan:

    read positions ── both at or above the end ──► done ("already at" if nothing was written)
      ▲  │  below the plan's start, or within a batch ──► an error, nothing is written
      │  ▼
      │  history ahead of current? ──► current takes the batches in between, from the same files
      │  │ no
      │  ▼
      │  history takes the batches behind its position      one commit
      │  current takes the same ones                        one commit
      └──┘

Both steps use one pinned version of current. If another driver commits in between (one that outlived its task), the
positions are read again, a bounded number of times. Several tables are merged at the same time, the largest first. An
error of one table is its result, and stops no other table. A result has an error's kind and whose move it is, never a
row's value: Spark's messages may quote one, so only Spark's error conditions are passed on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace
from pyspark.sql import SparkSession

from tidemark import failpoints
from tidemark.errors import (
    DiskFull,
    HistoryBehindCurrent,
    LakeFailed,
    LakeRefused,
    MergeContested,
    MergeFailed,
    PositionBelowPlan,
    PositionInsideBatch,
    StagedFileGone,
    TidemarkError,
    is_of_no_table,
)
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.formats.merge_result import MAX_HOLE_KEYS, ChunkResult, DeltaSize, Holes, PlanResult, TableResult
from tidemark.formats.upkeep_plan import Kind
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.target import catalogue_names, positions_table, replay_base
from tidemark.target.chunks import chunk_fold
from tidemark.target.chunks.chunk_equality import EqualChunks, equal_chunks
from tidemark.target.chunks.chunk_rows import NextBatches
from tidemark.target.chunks.first_load import FirstLoad, first_load
from tidemark.target.delta import data_files, delta_tables
from tidemark.target.delta.delta_tables import PinnedPair, PinnedTable
from tidemark.target.delta.hadoop_files import exists
from tidemark.target.delta.session import expect_any_rows, expect_few_rows, table_session
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.driver_fold import NewestChanges
from tidemark.target.driver.driver_merge import DriverMerge, driver_merge, read_newest
from tidemark.target.driver.prefetch import ReadAhead, reading_ahead
from tidemark.target.merge_choice import (
    MANY,
    Declined,
    MergeChoice,
    MergeFacts,
    Step,
    Way,
    against_folding_chunks,
    choose,
    is_small_for_spark,
    limits_of,
    reads_ahead,
)
from tidemark.target.merge_facts import change_facts, gather
from tidemark.target.merge_failures import as_error, condition_of, may_pass, told
from tidemark.target.merge_record import MergeRecord
from tidemark.target.plan_files import leave_result, read_plan
from tidemark.target.spark import comparison
from tidemark.target.spark.comparison import Comparison
from tidemark.target.spark.spark_chunk_merge import ChunkChanges
from tidemark.target.spark.spark_merge import Changes
from tidemark.target.spark.table_shape import TABLE_PROPERTIES, PlannedShape
from tidemark.wording import counted, duration

log = logging.getLogger(__name__)

AnyChunkChanges = TypeVar("AnyChunkChanges", bound=ChunkChanges)
Attempted = TypeVar("Attempted")

# How often a table's positions are read. Two readings see a plan through, three where current had to be brought
# level; each of the others means that a rival committed, and so made progress itself.
MAX_ROUNDS: Final = 8

# How often a table begins again where a connection to the lake, or its answer, broke off. Clients ask again by
# themselves, but not in the middle of an answer; and on a local master Spark does no task twice.
MAX_BROKEN: Final = 3


def apply_plan(spark: SparkSession, plan: MergePlan) -> PlanResult:
    """Apply the plan to all its tables, `plan.threads` at a time. Raises only what concerns no single table."""

    def one(table: PlannedTable) -> TableResult:
        session = table_session(spark, pool=table.table, lake=plan.lake)
        try:
            merge = TableMerge(session, plan, table)
        except Exception as failed:  # a plan that is odd for one table is that table's error (R6)
            return TableResult(table.table, None, None, error=as_error(failed, table.table, plan.lake).record())
        return merge.run()

    largest_first = sorted(plan.tables, key=lambda t: -t.rows)
    with ThreadPoolExecutor(max_workers=max(1, plan.threads), thread_name_prefix="merge") as pool:
        results = {r.table: r for r in pool.map(one, largest_first)}
    in_order = _lake_or_table([results[t.table] for t in plan.tables])
    result = PlanResult(plan.plan, plan.pipeline, plan.generation, tuple(in_order))
    noted = positions_table.note(spark, plan, result)
    catalogue_names.name_tables(spark, plan, result)
    return replace(result, noted=noted)


def apply_and_leave_result(spark: SparkSession, uri: str) -> PlanResult:
    """Apply the plan at the URI, and leave the result beside it. Raises PlanMissing if it is not there."""
    result = apply_plan(spark, MergePlan.from_json(read_plan(spark, uri), uri))
    failpoints.reach("merge.before_result")
    leave_result(spark, uri, result.to_json())
    failpoints.reach("merge.after_result")
    return result


def _lake_or_table(results: Sequence[TableResult]) -> list[TableResult]:
    """A lake that failed or refused one table while it served another: that table's own error, counted towards parking
    it (R6); not at once, since credentials may have ended in between. A full disk serves the smaller table longer."""
    if all(r.error is not None for r in results):
        return list(results)
    return [
        replace(r, error=replace(r.error, kind=MergeFailed.__name__, move=MergeFailed.move.value))
        if r.error is not None and is_of_no_table(r.error) and r.error.kind != DiskFull.__name__
        else r
        for r in results
    ]


def _is_below(position: Lsn | None, other: Lsn | None) -> bool:
    """Whether a position lies below another one; no position lies below all."""
    return other is not None and (position is None or position < other)


@dataclass(frozen=True, slots=True)
class State:
    """Both tables as they were when they were pinned, and the positions they carry."""

    history: PinnedTable
    current: PinnedTable | None
    history_lsn: Lsn | None
    current_lsn: Lsn | None


class TableMerge:
    """One table of one plan; made and run on one thread, whose session it has to itself."""

    def __init__(self, session: SparkSession, plan: MergePlan, planned: PlannedTable) -> None:
        self.session = session
        self.plan = plan
        self.planned = planned
        self.schema: TableSchema = planned.schemas[-1]
        self.schemas = planned.schemas
        self.history_path = f"{plan.lake}/{layout.history_table(plan.pipeline, self.schema.table)}"
        self.current_path = f"{plan.lake}/{layout.current_table(plan.pipeline, self.schema.table)}"
        self.history_id = plan.application_id(planned.table, "history")
        self.current_id = plan.application_id(planned.table, "current")
        self.begun = time.monotonic()
        self.rows: dict[str, int] = {}
        self.without_holes: set[Lsn] = set()  # ends of batches that this driver applied and saw bring no hole
        self.chunks: tuple[ChunkResult, ...] = ()
        self.swept: dict[str, int] = {}
        self.record = MergeRecord(planned.table)
        self.facts: MergeFacts
        self.choice: MergeChoice

    def run(self) -> TableResult:
        """Move the table on; what goes wrong is in the result, with the positions that were reached."""
        self.begun = time.monotonic()
        error: TidemarkError | None = None
        reached: State | None = None
        holes: Holes | None = None
        try:
            reached = self._until_at_end()
            holes = self._holes(reached)
        except Exception as failed:
            error = failed if isinstance(failed, TidemarkError) else self._as_error(failed)
            if not isinstance(failed, TidemarkError):
                log.error("%s failed, from the outermost place to the innermost:\n%s", self.planned.table, told(failed))
            log.error("%s: %s", self.planned.table, error)
            reached = self._if_readable()
        return TableResult(
            table=self.planned.table,
            history_lsn=None if reached is None else reached.history_lsn,
            current_lsn=None if reached is None else self._told(reached, error),
            rows=self.rows,
            holes=holes,
            chunks=self.chunks,
            swept=self.swept,
            seconds=round(time.monotonic() - self.begun, 3),
            error=None if error is None else error.record(),
            history_version=None if reached is None else reached.history.version,
            current_version=None if reached is None or reached.current is None else reached.current.version,
            way=self.record.way,
            why=self.record.why,
            fall_backs=tuple(self.record.fall_backs),
            sizes=() if reached is None else self._sizes(reached),
        )

    def _sizes(self, reached: State) -> tuple[DeltaSize, ...]:
        """Without a Spark job or a look at the log: for display alone."""
        sizes = []
        tables: dict[Kind, PinnedTable | None] = {"history": reached.history, "current": reached.current}
        for kind, table in tables.items():
            size = None if table is None else table.bytes
            if table is not None and table.exists and size is not None:
                rows = data_files.rows_in_checksum(table)
                sizes.append(DeltaSize(kind, table.files, size, rows))
        return tuple(sizes)

    def _told(self, reached: State, error: TidemarkError | None) -> Lsn | None:
        """Current's position, which is only told with its holes: once the ledger has it, no plan counts them again."""
        return None if error is not None and self._may_have_new_holes(reached) else reached.current_lsn

    def _until_at_end(self) -> State:
        broken = 0
        for _ in range(MAX_ROUNDS):
            try:
                reached = self._round()
            except Exception as failed:
                if delta_tables.is_contested(failed):
                    log.warning("%s: another writer's commit came in between; reading again", self.planned.table)
                elif broken < MAX_BROKEN and may_pass(failed):
                    broken += 1
                    condition = condition_of(failed)
                    log.warning("%s: a request to the lake broke (%s); reading again", self.planned.table, condition)
                else:
                    raise
                continue
            if reached is not None:
                return reached
        raise MergeContested(table=self.planned.table, rounds=MAX_ROUNDS)

    def _round(self) -> State | None:
        """From the positions as they are now towards the end of the plan; None if that is not reached yet."""
        if self.planned.base is not None:
            replay_base.take_over(self.session, self.plan, self.planned, self.planned.base)
        state = self._read(delta_tables.pin)
        missing, lagging = self._left(state)
        if not missing and not lagging:
            log.info("%s: at %s already", self.planned.table, state.history_lsn)
            return state
        if _is_below(state.history_lsn, state.current_lsn):
            raise HistoryBehindCurrent(
                table=self.planned.table,
                history_lsn=state.history_lsn or "no position",
                current_lsn=state.current_lsn,
            )
        self._move(state, missing, lagging)
        # What this driver committed it knows, without a look at the log; if that is not all, it looks again.
        state = self._read(delta_tables.as_committed)
        if self._left(state) != ([], []):
            return None
        log.info("%s: at %s", self.planned.table, state.history_lsn)
        return state

    def _as_error(self, failed: Exception) -> TidemarkError:
        """A file that is missing is a staged one only where one is missing: else it is of the Delta tables, or some
        executor does not see the lake, and to pass over what is staged would lose changes for nothing."""
        table = self.planned.table
        error = as_error(failed, table, self.plan.lake)
        if not isinstance(error, StagedFileGone):
            return error
        try:
            are_there = all(exists(self.session, f"{self.plan.lake}/{file.path}") for file in self.planned.files)
        except Exception as unreachable:
            return as_error(unreachable, table, self.plan.lake)
        return MergeFailed(table=table, condition=condition_of(failed)) if are_there else error

    def _if_readable(self) -> State | None:
        try:
            return self._read(delta_tables.pin)
        except Exception:  # the error that led here is the one to report
            return None

    # --- positions ------------------------------------------------------------------------------------------------

    def _read(self, pin: Callable[[SparkSession, str], PinnedTable]) -> State:
        """A table without `current` counts as applied where its history is. Current is read first: history moves first,
        so that whatever a rival commits between the two readings, history is not found behind."""
        current = pin(self.session, self.current_path) if self.schema.has_current else None
        history = pin(self.session, self.history_path)
        at = history.position(self.history_id)
        return State(history, current, at, at if current is None else current.position(self.current_id))

    def _left(self, state: State) -> tuple[list[PlannedBatch], list[PlannedBatch]]:
        """What history lacks, and what current lacks."""
        return self._behind("history", state.history_lsn), self._behind("current", state.current_lsn)

    def _behind(self, step: str, at: Lsn | None) -> list[PlannedBatch]:
        """The plan's batches that lie above the position. Raises if this plan cannot start from there."""
        after = self.planned.after
        if _is_below(at, after):
            raise PositionBelowPlan(step=step, table=self.planned.table, position=at or "no position", after=after)
        behind = []
        for batch in self.planned.batches:
            if at is None or at <= batch.start_lsn:
                behind.append(batch)
            elif at < batch.end_lsn:
                raise PositionInsideBatch(
                    step=step, table=self.planned.table, position=at, start_lsn=batch.start_lsn, end_lsn=batch.end_lsn
                )
        return behind

    # --- one round ------------------------------------------------------------------------------------------------

    def _move(self, state: State, missing: list[PlannedBatch], lagging: list[PlannedBatch]) -> None:
        """Towards the end of the plan. If history is ahead, current alone, up to where history is."""
        ahead = [b for b in lagging if b not in missing]
        batches = ahead or missing
        tables = PinnedPair(state.history, state.current)
        limits = limits_of(change_facts(self.schemas, batches))
        is_many = limits is not None and limits.is_alone
        if not is_many or not reads_ahead(gather(self.session, self.schemas, batches, (), tables)):
            self._move_by(batches, state, None, is_history_ahead=bool(ahead))
            return
        table = self._staged

        def read() -> NewestChanges:
            return read_newest(table, batches, MANY.decoded_bytes)

        with reading_ahead(table.schema, batches, read) as read_ahead:
            self._move_by(batches, state, read_ahead, is_history_ahead=bool(ahead))

    def _move_by(
        self, batches: list[PlannedBatch], state: State, read_ahead: ReadAhead | None, *, is_history_ahead: bool
    ) -> None:
        shape = PlannedShape.settled(self.session, self.plan, self.planned, state.history)
        self.schema, self.schemas = shape.schema, shape.schemas
        current = state.current
        history = shape.of_history(state.history, current)
        if current is not None:
            current = shape.of_current(current, history)
        tables = PinnedPair(history, current)
        self.facts = gather(self.session, self.schemas, batches, self._evidence(batches), tables)
        self.choice = choose(self.facts)
        self.record.begin(self.choice)
        load, equal = self._chunks(batches, tables)
        few_rows = self._expect_rows(batches, load, current)
        merged = batches if equal is None else [b.of() for b in batches]
        changes = self._changes(merged, tables, load, read_ahead, few_rows=few_rows)
        try:
            has_memory = isinstance(changes, DriverMerge) and changes.has_memory
            compared, swept = self._compare(batches, tables, few_rows=few_rows, has_memory=has_memory)
            if isinstance(changes, Comparison) and not is_history_ahead:
                self._keep_differences(changes)
            if not is_history_ahead:
                appended = changes.move_history(history, self.history_id)
                self._add("history", appended)
                self._log_step("history", changes.end, f"{appended} appended")
            if current is not None:
                outcomes = changes.move_current(self.current_id)
                for outcome, count in outcomes.items():
                    self._add(outcome, count)
                counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)
                self._log_step("current", changes.end, counts or "no row changed")
                if not changes.new_holes:
                    self.without_holes |= {b.end_lsn for b in batches}
            results: tuple[ChunkResult, ...] = ()
            if isinstance(changes, ChunkChanges) and (self.schema.key or not is_history_ahead):
                # Without a key, a history that is ahead has the chunk's rows already: what became of them is not known.
                results = changes.chunk_results()
                self.swept |= changes.swept_rows()
            elif isinstance(changes, DriverMerge):
                results = changes.chunk_results
            if equal is not None:
                results = equal.results
                self.swept |= equal.swept
            if load is not None:
                results = load.results(results)
                self.swept |= {sweep.backfill: 0 for sweep in load.sweeps}
            self.chunks += results
            self.chunks += compared
            self.swept |= swept
        finally:
            changes.release()

    def _chunks(self, batches: list[PlannedBatch], tables: PinnedPair) -> tuple[FirstLoad | None, EqualChunks | None]:
        """The chunks that are merged, if their files are added as they are, or if current has all of their rows: a
        backfill of what is right, or its repetition. Neither where Spark is to merge them."""
        merged = [b.of("fill", "repair") for b in batches]
        if not any(b.claims or b.sweeps for b in merged):
            return None, None
        coming, current = self._coming(merged), tables.current

        def add_files() -> FirstLoad:
            assert current is not None
            return first_load(self._staged, coming, current)

        def prove() -> EqualChunks:
            return equal_chunks(self._staged, coming, tables, self.facts)

        load = self._attempt("chunks", Way.FILES, add_files)
        if load is not None:
            self.record.took("chunks", Way.FILES, f"{load.rows} of their rows are new")
            return load, None
        equal = self._attempt("chunks", Way.PROOF, prove)
        if equal is not None:
            self.record.took("chunks", Way.PROOF, "current has all of their rows")
        else:
            self.record.took("chunks", Way.SPARK)
        return None, equal

    def _attempt(self, step: Step, way: Way, attempt: Callable[[], Attempted]) -> Attempted | None:
        """What a way makes of a step; None where it is not open to the table, or gives up. Nothing is written by then,
        so after an error that nobody foresaw another way is as right; it is recorded, and an error of the lake, or of
        the staged files, is raised, since no way can do without them."""
        if not self.choice.is_open(step, way):
            return None
        try:
            return attempt()
        except Declined as reason:
            self.record.declined(step, way, str(reason))
        except TidemarkError:
            raise
        except Exception as failed:
            self._fell_back(f"{step}: {way}", failed)
        return None

    def _fell_back(self, what: str, failed: Exception) -> None:
        """Record that something was left to Spark because of an error. Raises the error where it is of the lake."""
        if isinstance(as_error(failed, self.planned.table, self.plan.lake), LakeFailed | LakeRefused | StagedFileGone):
            raise failed
        self.record.fell_back(what, failed)

    def _log_step(self, step: str, end: Lsn, counts: str) -> None:
        seconds = duration(time.monotonic() - self.begun)
        log.info("%s: %s to %s, %s; %s since it began", self.planned.table, step, end, counts, seconds)

    def _compare(
        self, batches: list[PlannedBatch], tables: PinnedPair, *, few_rows: bool, has_memory: bool
    ) -> tuple[tuple[ChunkResult, ...], dict[str, int]]:
        """What became of the chunks that are only compared; nothing beside chunks that are merged, which repair what
        these would find, nor if the comparison fails, which is no reason to keep the changes back."""
        only_compared = [b.of("verify") for b in batches]
        if tables.current is None or not any(b.claims or b.sweeps for b in only_compared):
            return (), {}
        if any(b.of("fill", "repair").claims for b in batches):
            log.info("%s: not compared, since chunks that are merged came with them", self.planned.table)
            return (), {}
        coming = self._coming(only_compared)

        def prove() -> EqualChunks:
            return equal_chunks(self._staged, coming, tables, self.facts, has_memory=has_memory)

        equal = self._attempt("verify", Way.PROOF, prove)
        if equal is not None:
            self.record.took("verify", Way.PROOF, "current has all of their rows")
            return equal.results, equal.swept
        self.record.took("verify", Way.SPARK)
        changes = self._with_chunks(Comparison, only_compared, tables, few_rows=few_rows)
        try:
            results, swept = changes.chunk_results(), changes.swept_rows()
            if any(swept.values()) or any(r.inserted or r.repaired for r in results):
                self._keep_differences(changes)
        except Exception as failed:
            log.error("%s was not compared: %s", self.planned.table, self._as_error(failed))
            log.error("From the outermost place to the innermost:\n%s", told(failed))
            self.record.not_compared(failed)
            return (), {}
        else:
            return results, swept
        finally:
            changes.release()

    def _keep_differences(self, changes: Comparison) -> None:
        """The keys that differ into their own table, once: it has a position too."""
        differing = changes.differences()
        path = f"{self.plan.lake}/{layout.differences_table(self.plan.pipeline, self.schema.table)}"
        application = self.plan.application_id(self.planned.table, "differences")
        if differing is None:
            return
        table = delta_tables.pin(self.session, path)
        if not table.exists:
            delta_tables.create(self.session, table, comparison.shape(), TABLE_PROPERTIES)
            table = delta_tables.pin(self.session, path)
        if _is_below(table.position(application), changes.end):
            delta_tables.append(self.session, table, differing, application, changes.end)

    @property
    def _staged(self) -> StagedTable:
        return StagedTable(self.session, self.plan.lake, self.schemas)

    def _coming(self, batches: list[PlannedBatch]) -> NextBatches:
        scratch = layout.rest_folder(self.plan.pipeline, self.plan.plan, self.schema.table)
        return NextBatches(batches, self._evidence(batches), self.plan.generation, scratch)

    def _expect_rows(self, batches: list[PlannedBatch], load: FirstLoad | None, current: PinnedTable | None) -> bool:
        """Set the session up for as many rows as Spark will see; True if they are few."""
        there = 0 if current is None else current.bytes
        rows = self.planned.rows_read
        if load is not None:
            of_evidence = sum(b.changes for b in self._evidence(batches))
            compared = sum(c.rows for b in batches for c in b.of("verify").claims)
            rows = sum(b.changes for b in batches) + load.masked + of_evidence + compared
            there = sum(file.bytes for file in load.others)
        few_rows = is_small_for_spark(rows, there)
        expect_any_rows(self.session)  # another round may have expected others
        if few_rows:
            expect_few_rows(self.session)
        return few_rows

    def _evidence(self, batches: list[PlannedBatch]) -> list[PlannedBatch]:
        """Older batches, those of the plan included that are applied already."""
        return [*self.planned.evidence, *(b for b in self.planned.batches if b.end_lsn <= batches[0].start_lsn)]

    def _changes(
        self,
        batches: list[PlannedBatch],
        tables: PinnedPair,
        load: FirstLoad | None,
        read_ahead: ReadAhead | None,
        *,
        few_rows: bool,
    ) -> Changes | DriverMerge:
        """The batches that come next, with what stands behind them in evidence or plan; without the chunks that are
        only compared."""
        batches = [b.of("fill", "repair") for b in batches]
        by_driver = self._by_driver(batches, tables, load, read_ahead)
        if by_driver is not None:
            why = f"{counted(self.facts.changes.rows, 'change')} in {counted(len(batches), 'batch')}"
            self.record.took("changes", Way.DRIVER, why)
            return by_driver
        if read_ahead is not None:
            read_ahead.let_go()
        self.record.took("changes", Way.SPARK)
        if load is not None:
            batches = load.left()
        changes: Changes
        if any(b.claims or b.sweeps for b in batches):
            repairs = any(claim.purpose == "repair" for b in batches for claim in b.claims)
            kind = Comparison if repairs and tables.current is not None else ChunkChanges
            changes = self._with_chunks(kind, batches, tables, few_rows=few_rows)
        else:
            changes = Changes(self._staged, batches, tables.current, few_rows=few_rows, on_failure=self._fell_back)
        changes.load = load
        return changes

    def _by_driver(
        self,
        batches: list[PlannedBatch],
        tables: PinnedPair,
        load: FirstLoad | None,
        read_ahead: ReadAhead | None,
    ) -> DriverMerge | None:
        """The changes, and the rows of chunks that are not added as they are, folded by the driver; None if it is
        Spark's to do."""
        if load is not None and load.masked:
            return self._attempt("changes", Way.DRIVER, lambda: self._folded_with(load))
        if load is None and any(b.claims or b.sweeps for b in batches):
            self.record.declined("changes", Way.DRIVER, "rows of chunks are merged with them")
            return None

        def fold() -> DriverMerge:
            assert tables.current is not None
            assert self.choice.limits is not None
            limits = self.choice.limits
            return driver_merge(self._staged, batches, tables.current, limits, self._fell_back, load or read_ahead)

        return self._attempt("changes", Way.DRIVER, fold)

    def _folded_with(self, load: FirstLoad) -> DriverMerge:
        """Raises Declined."""
        reason = against_folding_chunks(self.facts, load.masked)
        limits = limits_of(self.facts.changes_read)
        if reason is not None or limits is None:
            raise Declined(reason or "the changes are many")
        return chunk_fold.folded(load, limits, self._fell_back)

    def _with_chunks(
        self, kind: type[AnyChunkChanges], batches: list[PlannedBatch], tables: PinnedPair, *, few_rows: bool
    ) -> AnyChunkChanges:
        return kind(
            self._staged,
            batches,
            tables.current,
            history=tables.history,
            evidence=self._evidence(batches),
            generation=self.plan.generation,
            few_rows=few_rows,
            on_failure=self._fell_back,
        )

    def _may_have_new_holes(self, reached: State) -> bool:
        """Also where another driver applied the batches, or this one got no answer to its commit: what they brought was
        known to whoever made the commit, and may have died with it."""
        return bool(self.schema.key) and self.planned.may_have_new_holes(reached.current_lsn, self.without_holes)

    def _holes(self, reached: State) -> Holes | None:
        """The rows of current that lack a value; None if nothing of it can have changed."""
        if not self._may_have_new_holes(reached) and not (self.schema.key and self.planned.had_holes):
            return None
        return delta_tables.count_holes(self.session, self.current_path, self.schema.key, MAX_HOLE_KEYS)

    def _add(self, outcome: str, count: int) -> None:
        self.rows[outcome] = self.rows.get(outcome, 0) + count
