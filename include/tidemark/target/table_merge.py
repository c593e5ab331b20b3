"""Merges one table of a plan, history first and current after it: `PlannedTable` -> `TableResult` (R5, R6).

The table is brought from the positions of its two Delta tables to the end of the plan:

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
merge reads the positions again, at most `MAX_ROUNDS` times. An error goes into the table's result. The result holds the
error's kind and who has to act. It never holds a row's value: Spark's messages may quote one, so only Spark's error
conditions are passed on.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from tidemark.errors import (
    HistoryBehindCurrent,
    LakeFailed,
    LakeRefused,
    MergeContested,
    MergeFailed,
    PositionBelowPlan,
    PositionInsideBatch,
    StagedFileGone,
    TidemarkError,
)
from tidemark.formats import layout
from tidemark.formats.compaction_plan import Kind
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.formats.merge_result import MAX_HOLE_KEYS, ChunkResult, DeltaSize, Holes, TableResult
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.target import replay_base
from tidemark.target.chunks import chunk_fold
from tidemark.target.chunks.chunk_equality import EqualChunks, equal_chunks
from tidemark.target.chunks.chunk_input import NextBatches
from tidemark.target.chunks.first_load import FirstLoad, first_load
from tidemark.target.delta import data_files, delta_tables
from tidemark.target.delta.delta_tables import PinnedPair, PinnedTable
from tidemark.target.delta.hadoop_files import exists
from tidemark.target.delta.session import expect_any_rows, expect_few_rows
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
from tidemark.target.merge_failures import as_error, condition_of, is_transient, stack_frames
from tidemark.target.merge_record import MergeRecord
from tidemark.target.spark import comparison
from tidemark.target.spark.chunk_frames import ChunkChanges
from tidemark.target.spark.comparison import Comparison, KeyedComparison, KeylessComparison
from tidemark.target.spark.keyless_chunk_merge import KeylessChunkChanges
from tidemark.target.spark.spark_chunk_merge import KeyedChunkChanges
from tidemark.target.spark.spark_merge import Changes
from tidemark.target.spark.table_shape import TABLE_PROPERTIES, PlannedShape
from tidemark.wording import counted, duration

log = logging.getLogger(__name__)

Attempted = TypeVar("Attempted")

# How often a table's positions are read. A merge without rivals needs two readings, or three if current first had to
# catch up with history. Every further reading means that another driver committed, and so made progress itself.
MAX_ROUNDS: Final = 8

# How often a table's merge starts again after a connection or a response of the lake broke off. The stores' clients
# repeat a request by themselves, but not in the middle of a response; on a local master Spark repeats no task.
MAX_BROKEN: Final = 3


def _is_below(position: Lsn | None, other: Lsn | None) -> bool:
    """Whether a position lies below another position. None, a table without a position, lies below every position."""
    return other is not None and (position is None or position < other)


@dataclass(frozen=True, slots=True)
class State:
    """The pinned versions of history and current, and the positions that they carry."""

    history: PinnedTable
    current: PinnedTable | None
    history_lsn: Lsn | None
    current_lsn: Lsn | None


class TableMerge:
    """Merges one table of one plan. It is created and run on one thread, and no other thread uses its session."""

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
        self.rows: Counter[str] = Counter()
        self.without_holes: set[Lsn] = set()  # end LSNs of batches that this driver applied, and that left no hole
        self.chunks: tuple[ChunkResult, ...] = ()
        self.swept: dict[str, int] = {}
        self.record = MergeRecord(planned.table)
        self.facts: MergeFacts
        self.choice: MergeChoice

    def run(self) -> TableResult:
        """Merge the table. An error is returned in the result, with the positions that the table has reached."""
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
                log.error(
                    "%s failed, from the outermost place to the innermost:\n%s",
                    self.planned.table,
                    stack_frames(failed),
                )
            log.error("%s: %s", self.planned.table, error)
            reached = None
            with suppress(Exception):  # the result has the error already
                reached = self._read(delta_tables.pin)
        return TableResult(
            table=self.planned.table,
            history_lsn=None if reached is None else reached.history_lsn,
            current_lsn=None if reached is None else self._reportable_current_lsn(reached, error),
            rows=dict(self.rows),
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
        """The sizes of both Delta tables, for display only: without a Spark job and without reading the log."""
        sizes = []
        tables: dict[Kind, PinnedTable | None] = {"history": reached.history, "current": reached.current}
        for kind, table in tables.items():
            size = None if table is None else table.bytes
            if table is not None and table.exists and size is not None:
                rows = data_files.rows_in_checksum(table)
                sizes.append(DeltaSize(kind, table.files, size, rows))
        return tuple(sizes)

    def _reportable_current_lsn(self, reached: State, error: TidemarkError | None) -> Lsn | None:
        """Current's position, or None if the merge failed before it counted the new holes of that position.

        Once the ledger has the position, no plan counts those holes again. So the two are reported together.
        """
        return None if error is not None and self._may_have_new_holes(reached) else reached.current_lsn

    def _until_at_end(self) -> State:
        broken = 0
        for _ in range(MAX_ROUNDS):
            try:
                reached = self._round()
            except Exception as failed:
                if delta_tables.is_contested(failed):
                    log.warning("%s: another writer's commit came in between; reading again", self.planned.table)
                elif broken < MAX_BROKEN and is_transient(failed):
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
        """Merge from the present positions towards the end of the plan. Returns None if the end is not reached yet."""
        if self.planned.base is not None:
            replay_base.write_base(self.session, self.plan, self.planned, self.planned.base)
        state = self._read(delta_tables.pin)
        missing, lagging = self._unapplied(state)
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
        # Delta holds this driver's own commits in memory. If they do not reach the end, the next round reads the log.
        state = self._read(delta_tables.as_committed)
        if self._unapplied(state) != ([], []):
            return None
        log.info("%s: at %s", self.planned.table, state.history_lsn)
        return state

    def _as_error(self, failed: Exception) -> TidemarkError:
        """Convert an exception to an error of this table.

        A missing file becomes StagedFileGone only if a staged file of the plan is really missing. Otherwise a Delta
        table lacks the file, or an executor cannot reach the lake. StagedFileGone would then skip staged changes that
        still exist, and lose them.
        """
        table = self.planned.table
        error = as_error(failed, table, self.plan.lake)
        if not isinstance(error, StagedFileGone):
            return error
        try:
            all_exist = all(exists(self.session, f"{self.plan.lake}/{file.path}") for file in self.planned.files)
        except Exception as unreachable:
            return as_error(unreachable, table, self.plan.lake)
        return MergeFailed(table=table, condition=condition_of(failed)) if all_exist else error

    # --- positions ------------------------------------------------------------------------------------------------

    def _read(self, pin: Callable[[SparkSession, str], PinnedTable]) -> State:
        """Pin both Delta tables and read their positions.

        A table without `current` counts as applied up to the position of its history. Current is read first, because
        every driver commits to history first: a commit between the two readings cannot make history appear to be
        behind current.
        """
        current = pin(self.session, self.current_path) if self.schema.has_current else None
        history = pin(self.session, self.history_path)
        at = history.position(self.history_id)
        return State(history, current, at, at if current is None else current.position(self.current_id))

    def _unapplied(self, state: State) -> tuple[list[PlannedBatch], list[PlannedBatch]]:
        """The plan's batches that history lacks, and those that current lacks."""
        return self._behind("history", state.history_lsn), self._behind("current", state.current_lsn)

    def _behind(self, step: str, at: Lsn | None) -> list[PlannedBatch]:
        """The plan's batches above the position. Raises PositionBelowPlan or PositionInsideBatch if the plan cannot
        continue from this position."""
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
        """Merge the missing batches. If history is ahead, only current is merged, up to the position of history."""
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
                self.rows["history"] += appended
                self._log_step("history", changes.end, f"{appended} appended")
            if current is not None:
                outcomes = changes.move_current(self.current_id)
                for outcome, count in outcomes.items():
                    self.rows[outcome] += count
                counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)
                self._log_step("current", changes.end, counts or "no row changed")
                if not changes.new_holes:
                    self.without_holes |= {b.end_lsn for b in batches}
            results: tuple[ChunkResult, ...] = ()
            if isinstance(changes, ChunkChanges) and (self.schema.key or not is_history_ahead):
                # Without a key, a history that is ahead already has the chunk's rows, so they cannot be counted again.
                results = changes.chunk_results()
                self.swept |= changes.swept_rows()
            elif isinstance(changes, DriverMerge):
                results = changes.chunk_results
            if equal is not None:
                results = equal.results
                self.swept |= equal.swept
            if load is not None:
                results = load.results(results)
                self.swept |= {sweep.backfill: 0 for sweep in load.next_batches.sweeps}
            self.chunks += results
            self.chunks += compared
            self.swept |= swept
        finally:
            changes.release()

    def _chunks(self, batches: list[PlannedBatch], tables: PinnedPair) -> tuple[FirstLoad | None, EqualChunks | None]:
        """Add the files of the chunks unchanged, or prove that current already has all of their rows.

        Current has all rows if a backfill reads a table that is right, or reads the same rows again. Returns the
        result of the way that succeeded, and (None, None) if Spark has to merge the chunks.
        """
        merged = [b.of("fill", "repair") for b in batches]
        if not any(b.claims or b.sweeps for b in merged):
            return None, None
        next_batches, current = self._next_batches(merged), tables.current

        def add_files() -> FirstLoad:
            assert current is not None
            return first_load(self._staged, next_batches, current)

        def prove() -> EqualChunks:
            return equal_chunks(self._staged, next_batches, tables, self.facts)

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
        """The result of one way of a step. Returns None if the way is not open to the table, or if it declines.

        Nothing has been written at this point, so after an unexpected error another way is still correct. The error is
        recorded. An error of the lake or of the staged files is raised, since every way needs them.
        """
        if not self.choice.is_open(step, way):
            return None
        try:
            return attempt()
        except Declined as reason:
            self.record.declined(step, way, str(reason))
        except TidemarkError:
            raise
        except Exception as failed:
            error = as_error(failed, self.planned.table, self.plan.lake)
            if isinstance(error, LakeFailed | LakeRefused | StagedFileGone):
                raise
            self.record.fell_back(f"{step}: {way}", failed)
        return None

    def _log_step(self, step: str, end: Lsn, counts: str) -> None:
        seconds = duration(time.monotonic() - self.begun)
        log.info("%s: %s to %s, %s; %s since it began", self.planned.table, step, end, counts, seconds)

    def _compare(
        self, batches: list[PlannedBatch], tables: PinnedPair, *, few_rows: bool, has_memory: bool
    ) -> tuple[tuple[ChunkResult, ...], dict[str, int]]:
        """Compare the chunks of purpose `verify` with current. Returns their results, and the rows swept per backfill.

        Nothing is compared if other chunks of these batches are merged, since those already repair the differences. A
        comparison that fails returns nothing and does not stop the changes.
        """
        only_compared = [b.of("verify") for b in batches]
        if tables.current is None or not any(b.claims or b.sweeps for b in only_compared):
            return (), {}
        if any(b.of("fill", "repair").claims for b in batches):
            log.info("%s: not compared, since chunks that are merged came with them", self.planned.table)
            return (), {}
        next_batches = self._next_batches(only_compared)

        def prove() -> EqualChunks:
            return equal_chunks(self._staged, next_batches, tables, self.facts, has_memory=has_memory)

        equal = self._attempt("verify", Way.PROOF, prove)
        if equal is not None:
            self.record.took("verify", Way.PROOF, "current has all of their rows")
            return equal.results, equal.swept
        self.record.took("verify", Way.SPARK)
        changes = self._comparison(only_compared, tables, few_rows=few_rows)
        try:
            results, swept = changes.chunk_results(), changes.swept_rows()
            if any(swept.values()) or any(r.inserted or r.repaired for r in results):
                self._keep_differences(changes)
        except Exception as failed:
            log.error("%s was not compared: %s", self.planned.table, self._as_error(failed))
            log.error("From the outermost place to the innermost:\n%s", stack_frames(failed))
            self.record.not_compared(failed)
            return (), {}
        else:
            return results, swept
        finally:
            changes.release()

    def _keep_differences(self, changes: Comparison) -> None:
        """Append the keys that differ to the table of differences, which has a position: a repeated merge adds none."""
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
        return StagedTable(self.session, self.plan.lake, self.schemas, self.plan.generation)

    def _next_batches(self, batches: list[PlannedBatch]) -> NextBatches:
        scratch = layout.rest_folder(self.plan.pipeline, self.plan.plan, self.schema.table)
        return NextBatches(batches, self._evidence(batches), self.plan.generation, scratch)

    def _expect_rows(self, batches: list[PlannedBatch], load: FirstLoad | None, current: PinnedTable | None) -> bool:
        """Configure the session for the number of rows that Spark will read. Returns True if they are few."""
        current_bytes = 0 if current is None else current.bytes
        rows = self.planned.rows_read
        if load is not None:
            of_evidence = sum(b.changes for b in self._evidence(batches))
            compared = sum(c.rows for b in batches for c in b.of("verify").claims)
            rows = sum(b.changes for b in batches) + load.masked + of_evidence + compared
            current_bytes = sum(file.bytes for file in load.overlapping_files)
        few_rows = is_small_for_spark(rows, current_bytes)
        expect_any_rows(self.session)  # an earlier round may have configured the session for few rows
        if few_rows:
            expect_few_rows(self.session)
        return few_rows

    def _evidence(self, batches: list[PlannedBatch]) -> list[PlannedBatch]:
        """Older batches that chunks may need: the plan's evidence, and batches of the plan that are already applied."""
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
        """Prepare the merge of the next batches by the driver or by Spark, without the chunks of purpose `verify`."""
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
            batches = load.remaining_batches()
        changes: Changes
        if any(b.claims or b.sweeps for b in batches):
            repairs = any(claim.purpose == "repair" for b in batches for claim in b.claims)
            if repairs and tables.current is not None:
                changes = self._comparison(batches, tables, few_rows=few_rows)
            else:
                kind = KeyedChunkChanges if self.schema.key else KeylessChunkChanges
                changes = kind(self._staged, self._next_batches(batches), tables, few_rows=few_rows)
        else:
            changes = Changes(self._staged, batches, tables.current, few_rows=few_rows)
        changes.load = load
        return changes

    def _by_driver(
        self,
        batches: list[PlannedBatch],
        tables: PinnedPair,
        load: FirstLoad | None,
        read_ahead: ReadAhead | None,
    ) -> DriverMerge | None:
        """Fold the changes in the driver, with the chunk rows whose files are not added unchanged. Returns None if
        Spark has to do it."""
        if load is not None and load.masked:
            return self._attempt("changes", Way.DRIVER, lambda: self._folded_with(load))
        if load is None and any(b.claims or b.sweeps for b in batches):
            self.record.declined("changes", Way.DRIVER, "rows of chunks are merged with them")
            return None

        def fold() -> DriverMerge:
            assert tables.current is not None
            assert self.choice.limits is not None
            limits = self.choice.limits
            return driver_merge(self._staged, batches, tables.current, limits, load or read_ahead)

        return self._attempt("changes", Way.DRIVER, fold)

    def _folded_with(self, load: FirstLoad) -> DriverMerge:
        """Fold the changes and the masked rows of the first load in the driver. Raises Declined."""
        reason = against_folding_chunks(self.facts, load.masked)
        limits = limits_of(self.facts.changes_read)
        if reason is not None or limits is None:
            raise Declined(reason or "the changes are many")
        return chunk_fold.fold_with_chunks(load, limits)

    def _comparison(self, batches: list[PlannedBatch], tables: PinnedPair, *, few_rows: bool) -> Comparison:
        kind = KeyedComparison if self.schema.key else KeylessComparison
        return kind(self._staged, self._next_batches(batches), tables, few_rows=few_rows)

    def _may_have_new_holes(self, reached: State) -> bool:
        """Whether the merged batches may have left new holes in current.

        That includes batches that another driver applied, or whose commit got no answer. Only the driver that made the
        commit counted its holes, and that count may be lost.
        """
        return bool(self.schema.key) and self.planned.may_have_new_holes(reached.current_lsn, self.without_holes)

    def _holes(self, reached: State) -> Holes | None:
        """Count the rows of current that lack a value. Returns None if that number cannot have changed."""
        if not self._may_have_new_holes(reached) and not (self.schema.key and self.planned.had_holes):
            return None
        return delta_tables.count_holes(self.session, self.current_path, self.schema.key, MAX_HOLE_KEYS)
