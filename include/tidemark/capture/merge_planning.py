"""Writes the plan of a Spark application and ingests its result: ledger -> plan.json, result.json -> ledger (R5, R6).

    ingest ──► leased_plan ──► spark_apps/merge_batch.py ──► ingest
    (whatever earlier tasks left)           (one plan)       (this one's result)

A plan lists, per table, every registered batch that the ledger does not have as applied, not only "its run's batch". It
also lists the older batches that its chunks and sweeps need as evidence (R7).

Every attempt has a plan file and a row of its own. The row is written after the file and before the application starts.
So every result that appears is found later, and a worker that dies after Spark's success costs nothing. Positions in
the ledger only rise, and Delta's positions are the truth behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby

from msgspec import structs

from tidemark import failpoints
from tidemark.capture import complete_tables, deferral, lake_folder
from tidemark.capture.definitions import evolve_decisions
from tidemark.config import PipelineConfig
from tidemark.errors import LakeFileBroken, is_of_no_table
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.formats.merge_result import Holes, PlanResult, TableResult
from tidemark.ledger.captured import backfill_marks, merge_states, replays, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import Lease, hold_free, of_table
from tidemark.ledger.observations import table_sizes
from tidemark.ledger.reading import backfills, chunks, proofs
from tidemark.ledger.staged import batches, generations, plans, positions
from tidemark.ledger.staged.batches import TouchedTable
from tidemark.ledger.staged.plans import RecordedPlan
from tidemark.ledger.staged.snapshot_evidence import NeededEvidence
from tidemark.lsn import Lsn
from tidemark.run import Run
from tidemark.schema.evolution import (
    Verdict,
    called_before,
    compare_schemas,
    dropped_before,
    filled_after,
)
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.storage.store import Store
from tidemark.wording import counted, plural

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IngestedTable:
    """One table of an ingested result. `before` and `after` are its applied positions in the ledger.

    `parked` is True if this result's error parked the table.
    """

    table: str
    generation: int
    before: Lsn | None
    after: Lsn | None
    rows: dict[str, int]
    seconds: float
    error: ErrorRecord | None
    parked: bool

    @classmethod
    def of(cls, result: TableResult, generation: int, risen: positions.PositionRise, *, parked: bool) -> IngestedTable:
        return cls(
            table=result.table,
            generation=generation,
            before=risen.before,
            after=risen.after,
            rows=result.rows,
            seconds=result.seconds,
            error=result.error,
            parked=parked,
        )

    @property
    def advanced(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class Ingested:
    """The results that were brought into the ledger, by plan, and their tables."""

    plans: tuple[str, ...] = ()
    tables: tuple[IngestedTable, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PlanScope:
    """The tables that a plan may have: by default every table that is due.

    - `all_of_them`: deferred tables too (`capture.deferral`).
    - `tables`: only these, deferred or not, because somebody has chosen them already.
    - `without`: never these.
    """

    all_of_them: bool = False
    tables: frozenset[str] | None = None
    without: frozenset[str] = frozenset()


@contextmanager
def leased_plan(run: Run, scope: PlanScope = PlanScope(), *, wait_s: float = 0.0) -> Iterator[MergePlan | None]:
    """Write a plan for everything that is staged, not applied and in `scope`; None if there is nothing. The leases of
    its tables are held while the block runs.

    Tables that another task holds are left to a later plan and logged. If another task holds all of them, this waits up
    to `wait_s` for the first one, then raises LeaseTaken. The leases save work; Delta's own conflict check keeps two
    drivers apart. Parked tables are left out until their retry is due. Of several generations, the plan has the oldest
    one with unapplied batches.
    """
    config = run.config
    with open_ledger(run.ledger, config.pipeline) as book:
        evolve_decisions.hold(book, config)
        names = {
            of_table(table): table for table in may_be_planned(book, run, scope) or awaiting_their_name(book, scope)
        }
    if not names:
        yield None
        return
    with (
        hold_free(run.ledger, config.pipeline, names, run.holder, wait_s=wait_s) as lease,
        open_ledger(run.ledger, config.pipeline) as book,
    ):
        _log_left_tables(lease, names)
        # Read again: until the leases were ours, another task may have merged some of it, or parked it.
        leased = {names[name] for name in lease.names}
        opened = generations.required(book)
        todo = evolve_decisions.allowed(
            book, config, _to_plan(book, merge_states.due(book, config.bounds.unpark_retry_s) & leased)
        )
        if not todo and not awaiting_their_name(book, scope):
            yield None
            return
        plan = _plan(book, run, todo, lease.attempt, opened.number)
        plan = structs.replace(plan, level=complete_tables.level_of_plan(book, opened, todo))
        complete_tables.record_names(book, plan)
        path = layout.plan_file(config.pipeline, plan.plan)
        store = Store(config.lake, config.lake_access)
        lake_folder.require(config, store, opened)  # in another folder every table would park
        store.write_new(path, plan.to_json().encode())
        plans.record(book, lease, plan, run_id=run.run_id, path=path)
        size = f"{counted(len(plan.tables), 'table')}, {counted(sum(table.rows for table in plan.tables), 'change')}"
        log.info("plan %s: %s", plan.plan, size)
        failpoints.reach("merge.after_plan")
        yield plan


def may_be_planned(ledger: Ledger, run: Run, scope: PlanScope) -> list[str]:
    """The tables for which something waits and that nothing but a lease may keep from being merged now."""
    are_chosen = scope.tables is not None
    due = deferral.due_tables(ledger, run.config, run.now(), all_of_them=scope.all_of_them or are_chosen)
    names = due.tables if scope.tables is None else due.tables & scope.tables
    waiting = batches.unapplied_counts(ledger, names - replays.waiting(ledger) - scope.without)
    if due.deferred:
        log.info("%s due%s", counted(len(waiting), "table"), due.clause)
    return sorted(waiting)


def awaiting_their_name(ledger: Ledger, scope: PlanScope) -> list[str]:
    """The complete tables that wait for their name, among those that the application may merge."""
    awaiting = complete_tables.awaiting_their_name(ledger) - scope.without
    return sorted(awaiting if scope.tables is None else awaiting & scope.tables)


def _log_left_tables(lease: Lease, tables_by_name: Mapping[str, str]) -> None:
    holders: dict[str, list[str]] = {}
    for name, taken in lease.left.items():
        holders.setdefault(taken.facts["holder"], []).append(tables_by_name[name])
    for holder, held in holders.items():
        log.info("Left to the next merge: %s, which %s holds", listed(held), holder)


def _to_plan(ledger: Ledger, names: Iterable[str]) -> dict[str, Sequence[TouchedTable]]:
    """Per table, of these, its unapplied batches in order, all of one generation."""
    unapplied = batches.unapplied(ledger, names=names)
    oldest: dict[str, int] = {}
    for touched in unapplied:
        oldest[touched.table] = min(touched.generation, oldest.get(touched.table, touched.generation))
    if not oldest:
        return {}
    generation = min(oldest.values())
    mine = [touched for touched in unapplied if touched.generation == generation]
    return {
        table: sorted(touches, key=lambda touched: touched.end_lsn)
        for table, touches in groupby(
            sorted(mine, key=lambda touched: touched.table), key=lambda touched: touched.table
        )
    }


def _plan(ledger: Ledger, run: Run, todo: Mapping[str, Sequence[TouchedTable]], attempt: str, opened: int) -> MergePlan:
    """Without a table it is of the generation that is `opened`."""
    generation = next((touches[0].generation for touches in todo.values()), opened)
    starts = {table: touches[0].start_lsn for table, touches in todo.items()}
    before = batches.previous_ends(ledger, generation, starts)
    versions = tables.versions_of(ledger, todo)
    streamed = tables.versions_of(ledger, todo, only_streamed=True)
    with_holes = backfill_marks.with_holes(ledger)
    prints = {row.table: row.fingerprint for row in tables.all_of(ledger) if row.table in todo}
    bases = replays.bases(ledger)
    return MergePlan(
        plan=f"{run.now():%Y%m%dT%H%M%S}-{attempt}",
        pipeline=run.pipeline,
        generation=generation,
        lake=run.config.lake,
        threads=run.config.merge.threads,
        tables=tuple(
            structs.replace(
                _planned_table(
                    table,
                    touches,
                    _evidence(ledger, touches),
                    after=before[table],
                    shapes=_Shapes(
                        versions.get(table, []),
                        {shape.version for shape in streamed.get(table, [])},
                        None if (raw := prints.get(table)) is None else Fingerprint.from_json(raw),
                    ),
                    had_holes=table in with_holes,
                ),
                base=bases.get(table),
            )
            for table, touches in todo.items()
        ),
    )


@dataclass(frozen=True, slots=True)
class _Shapes:
    """A table's schema versions, oldest first, the numbers of those that changes follow, and the last look."""

    versions: Sequence[TableSchema]
    streamed: Collection[int]
    seen: Fingerprint | None


def _planned_table(
    table: str,
    touches: Sequence[TouchedTable],
    evidence: Sequence[TouchedTable],
    *,
    after: Lsn | None,
    shapes: _Shapes,
    had_holes: bool,
) -> PlannedTable:
    schemas = _followed(shapes, [*evidence, *touches])
    # The target's last version may have a lower number than one before it; see `_followed`.
    newest = max((schema.version for schema in schemas), default=0)
    older = [version for version in shapes.versions if version.version <= newest]
    newer = [version for version in shapes.versions if version.version > newest]
    return PlannedTable(
        table=table,
        after=after,
        schemas=schemas,
        batches=tuple(_planned_batch(touched) for touched in touches),
        evidence=tuple(_planned_batch(touched) for touched in evidence),
        had_holes=had_holes,
        # A ledger that was lost may know no version of a table of which only chunks without rows are left.
        dropped=dropped_before(older, schemas[-1]) if schemas else (),
        ahead=filled_after(newer, schemas[-1]) if schemas else (),
        called=called_before(shapes.versions, _first(touches, schemas), schemas[-1]) if schemas else {},
        comments=_comments(shapes.seen, schemas),
    )


def _comments(seen: Fingerprint | None, schemas: Sequence[TableSchema]) -> dict[int, str] | None:
    """Those of the table that the plan's changes are of, not of another one of its name."""
    is_of = seen is not None and bool(schemas) and schemas[-1].relation_oid == seen.relation_oid
    return seen.comments() if seen is not None and is_of else None


def _first(touches: Sequence[TouchedTable], schemas: Sequence[TableSchema]) -> int:
    """The first version of what the plan applies; everything of an older one is applied."""
    numbers = [file.schema_version for touched in touches for file in touched.files]
    numbers += [file.schema_version for touched in touches for claim in touched.claims for file in claim.files]
    return min(numbers, default=schemas[-1].version)


def _planned_batch(touched: TouchedTable) -> PlannedBatch:
    return PlannedBatch(
        start_lsn=touched.start_lsn,
        end_lsn=touched.end_lsn,
        # A file without rows is there for its definition alone.
        files=tuple(file for file in touched.files if file.rows),
        unchanged=touched.unchanged,
        moved=touched.moved,
        truncates=touched.counts.get("truncate", 0),
        claims=touched.claims,
        sweeps=touched.sweeps,
    )


def _evidence(ledger: Ledger, touches: Sequence[TouchedTable]) -> list[TouchedTable]:
    """What lies below the plan and matters to its chunks: the changes that one of them, or a sweep, may not have seen,
    and the other chunks of a backfill that is swept. A batch brings only what it is there for."""
    claims = [claim for touched in touches for claim in touched.claims]
    sweeps = [sweep for touched in touches for sweep in touched.sweeps]
    if not claims and not sweeps:
        return []
    unseen = NeededEvidence(swept={sweep.backfill for sweep in sweeps})
    for claim in claims:
        unseen.add_chunk(claim.snapshot, claim.consistent_point)
    for sweep in sweeps:
        unseen.add_snapshot(sweep.snapshot)
    first = touches[0]
    return [
        replace(
            touched,
            files=touched.files if unseen.includes(touched.max_xid, touched.end_lsn) else (),
            claims=tuple(claim for claim in touched.claims if claim.backfill in unseen.swept),
            sweeps=(),
        )
        for touched in batches.evidence(ledger, first.generation, first.table, first.start_lsn, unseen)
    ]


def _followed(shapes: _Shapes, touches: Iterable[TouchedTable]) -> tuple[TableSchema, ...]:
    """The versions that the plan's files follow, the target's last. That is the newest number, unless a reader was
    ahead of the stream: its version, which no change follows yet, then has a lower number than what the stream brought
    meanwhile, and more columns, or wider ones. One that has changes, or a column that the stream had and has no more,
    is the shape from before a column was dropped. A chunk without rows has no file: if there is none at all, it is the
    newest that anybody knows."""
    numbers = {file.schema_version for touched in touches for file in touched.files}
    numbers |= {file.schema_version for touched in touches for claim in touched.claims for file in claim.files}
    followed = [version for version in shapes.versions if version.version in numbers]
    for version in followed[:-1]:
        if version.version in shapes.streamed or _has_dropped(version, followed[-1], shapes):
            continue
        if _only_adds(followed[-1], version) and not _only_adds(version, followed[-1]):
            followed.remove(version)
            followed.append(version)
    return tuple(followed or shapes.versions[-1:])


def _has_dropped(version: TableSchema, last: TableSchema, shapes: _Shapes) -> bool:
    """Whether the version has a column, by its number, that the stream brought before the last version and not with
    it."""
    if not version.matches_by_number(last):
        return False
    brought = (v for v in shapes.versions if v.version in shapes.streamed and v.version < last.version)
    had = {number for v in brought if v.matches_by_number(last) for number in v.published}
    return not had.isdisjoint({column.attnum for column in version.columns} - {*last.published})


def _only_adds(old: TableSchema, new: TableSchema) -> bool:
    return all(difference.verdict is Verdict.FOLLOWED for difference in compare_schemas(old, new))


# --- results ----------------------------------------------------------------------------------------------------------


def ingest(run: Run) -> Ingested:
    """Bring every result that lies beside a plan and is not in the ledger yet into it, oldest plan first. Raises what
    `lake_folder.require` raises where there is such a plan."""
    config = run.config
    store = Store(config.lake, config.lake_access)
    ingested: list[str] = []
    changed: list[IngestedTable] = []
    with open_ledger(run.ledger, config.pipeline) as book:
        pending = plans.not_ingested(book)
        if pending:  # in another folder there may be a result of what was written there, and nowhere else
            lake_folder.require(config, store, generations.required(book))
        for recorded in pending:
            result = _result(store, config.pipeline, recorded)
            if result is None:
                if _is_overtaken(book, recorded):
                    plans.abandon(book, recorded.plan)
                continue
            with book.transaction():
                if not plans.ingest(book, result):
                    continue
                changed += _ingest_tables(book, config, result)
                replays.end(book)
                complete_tables.place_complete_tables(book, result)
            ingested.append(result.plan)
    if ingested:
        failpoints.reach("merge.after_ingest")
    return Ingested(tuple(ingested), tuple(changed))


def ingested_by_another(run: Run, plan: str) -> Ingested:
    """What became of a plan whose result another task found first and brought into the ledger; no table of it moves a
    second time."""
    with open_ledger(run.ledger, run.pipeline) as book:
        result = plans.result_of(book, plan)
        if result is None:
            return Ingested()
        parked = {row.table for row in tables.all_of(book) if row.life.is_parked}
    return Ingested(
        (plan,),
        tuple(
            IngestedTable.of(
                table,
                result.generation,
                positions.PositionRise(table.current_lsn, table.current_lsn),
                parked=table.table in parked,
            )
            for table in result.tables
        ),
    )


def _result(store: Store, pipeline: str, recorded: RecordedPlan) -> PlanResult | None:
    """The plan's result, None while there is none: its driver still works, or died."""
    try:
        path = layout.result_file(pipeline, recorded.plan)
        result = PlanResult.from_json(store.read(path), path)
    except FileNotFoundError:
        return None
    except LakeFileBroken as broken:
        log.warning("%s", broken)
        return None
    if (result.plan, result.pipeline, result.generation) != (recorded.plan, pipeline, recorded.generation):
        log.warning("The result file beside plan %s belongs to another plan", recorded.plan)
        return None
    return result


def _is_overtaken(ledger: Ledger, recorded: RecordedPlan) -> bool:
    """Whether every table of the plan is applied to the plan's end or beyond: its result could say nothing new."""
    reached = positions.all_of(ledger, recorded.generation)
    applied = {table: position.applied_lsn for table, position in reached.items()}
    if not recorded.tables:  # it names tables, and says nothing else
        return not complete_tables.awaiting_their_name(ledger)
    return all((at := applied.get(table)) is not None and at >= end for table, end in recorded.tables.items())


def _ingest_tables(ledger: Ledger, config: PipelineConfig, result: PlanResult) -> list[IngestedTable]:
    """In few statements whatever the number of tables; but for errors, chunks and backfills, which few tables have."""
    tables.lock(ledger, [table.table for table in result.tables])
    reached = {table.table: (table.history_lsn, table.current_lsn) for table in result.tables}
    risen = positions.rise(ledger, result.generation, reached)
    merge_states.succeeded(
        ledger, {table.table: _holes_now(table, risen[table.table]) for table in result.tables if table.error is None}
    )
    first = [table for table, rise in risen.items() if rise.before is None]
    table_sizes.keep_merged(ledger, result.tables, first)
    read = {backfill.table for backfill in backfills.all_open(ledger)}
    return [
        _ingest_table(ledger, config, result.generation, table, risen[table.table], read) for table in result.tables
    ]


def _holes_now(result: TableResult, risen: positions.PositionRise) -> Holes | None:
    """None where a later plan's result was ingested before: what this one counted is from before that."""
    is_older = risen.before is not None and (result.current_lsn is None or result.current_lsn < risen.before)
    return None if is_older else result.holes


def _note_differences(ledger: Ledger, result: TableResult) -> None:
    """At once, not when the verify is applied as a whole: it may be closed before, or never be read to its end."""
    differing = {chunk.backfill for chunk in result.chunks if chunk.inserted or chunk.repaired}
    differing |= {backfill for backfill, swept in result.swept.items() if swept}
    for name in sorted(differing):
        verify = backfills.one(ledger, name)
        if verify is not None and verify.purpose != "fill":
            proofs.note_differences(ledger, verify)


def _ingest_table(
    ledger: Ledger,
    config: PipelineConfig,
    generation: int,
    result: TableResult,
    risen: positions.PositionRise,
    being_read: Collection[str],
) -> IngestedTable:
    parked = False
    if result.error is not None and not is_of_no_table(result.error):
        parked = merge_states.failed(ledger, result.table, result.error, park_after=config.bounds.park_after)
    chunks.keep_results(ledger, result.chunks)
    if lacking := sum(chunk.lacking for chunk in result.chunks):
        reason = (
            f"{counted(lacking, 'row')} of which a backfill read some columns {plural(lacking, 'is')} not in current"
        )
        backfill_marks.mark(ledger, result.table, backfill_marks.ROWS_LACKING, reason)
    backfills.keep_swept(ledger, result.swept)
    _note_differences(ledger, result)
    ended = None
    if result.table in being_read:
        ended = backfills.complete(ledger, generation, result.table, risen.after)
        verified = backfills.complete(ledger, generation, result.table, risen.after, verifies=True)
        if verified is not None:
            proven = "is proven" if proofs.conclude(ledger, verified) else "is applied, and proves nothing"
            log.info("Verify %s of %s %s, as of %s", verified.backfill, verified.table, proven, verified.complete_lsn)
    if ended is not None:
        log.info("Backfill %s of %s is applied, as of %s", ended.backfill, ended.table, ended.complete_lsn)
    return IngestedTable.of(result, generation, risen, parked=parked)
