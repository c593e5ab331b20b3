"""Writes the plans of the Spark application that compacts Delta tables, orders them, and reads their results.

    inspect all tables, beside merges ──► the tables whose `current` is due
    compact `current`, a few of those at a time, under their leases

A merge leaves a table leased here to the next merge. Maintenance leaves a table that is being merged to its next run.
One application does all plans of a run. So a table is leased for its compaction, but not for the start of a JVM.
Correctness does not depend on compaction, so a run repeats nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from secrets import token_hex
from typing import Any, Final

from tidemark.capture import lake_folder
from tidemark.config import PipelineConfig
from tidemark.errors import LeaseTaken, PositionBelowPlan, SparkApplicationFailed, SparkApplicationTooLong
from tidemark.formats import layout
from tidemark.formats.compaction_plan import CompactionPlan, CompactionResult, Step
from tidemark.ledger import leases, migrations
from tidemark.ledger.captured import merge_states, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import table_sizes
from tidemark.ledger.observations.table_sizes import DeltaTable
from tidemark.ledger.retention import retirement
from tidemark.ledger.staged import generations, positions
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.spark_submit.plan_orders import Application
from tidemark.storage.store import Store
from tidemark.wording import counted, duration

log = logging.getLogger(__name__)

# Every so many days VACUUM removes files too that no version of a table ever contained: those of drivers that died.
THOROUGH_DAYS: Final = 7
# How long maintenance waits for the tables of a group; a plan of a merge that follows takes seconds.
WAIT_S: Final = 60.0
# How often the task checks whether the application has left a plan's result.
LOOK_S: Final = 0.2


def groups(config: PipelineConfig, result: CompactionResult) -> list[list[str]]:
    """The tables whose `current` is due, in groups as large as merges run in parallel."""
    due = [table.table for table in result.tables if table.due]
    size = config.merge.threads
    return [due[first : first + size] for first in range(0, len(due), size)]


def plan_inspection(run: Run) -> CompactionPlan | None:
    """A plan that inspects the tables that were merged since their last maintenance or lack a Delta table; every
    table if unreferenced files are to be listed. None if there is none. Raises what `lake_folder.require` raises."""
    config = run.config
    with open_ledger(run.ledger, run.pipeline, config.application_name) as book:
        migrations.require(book.connection)
        names = [row.table for row in tables.all_of(book)]
        if not names:
            return None
        store = _own_store(run, book)
        risen, kept = positions.last_risen(book), table_sizes.all_of(book)
    for left in store.list(layout.maintenance_root(config.pipeline)):
        store.delete(f"{layout.maintenance_root(config.pipeline)}/{left}")  # of a run that was killed
    if not _is_thorough(run.now()):
        inspected = [n for n in names if not _is_as_it_was(config, store, kept.get(n, ()), n, risen.get(n))]
        log.info("%s unchanged since the last maintenance", counted(len(names) - len(inspected), "table"))
        names = inspected
    return _plan(run, store, "look", names) if names else None


def _is_as_it_was(
    config: PipelineConfig, store: Store, kept: Sequence[DeltaTable], table: str, risen_at: datetime | None
) -> bool:
    """Whether the table was not merged since its last maintenance, and its Delta tables exist."""
    folders = {"history": layout.history_table, "current": layout.current_table}
    return bool(kept) and all(
        one.seen_at is not None
        and (risen_at is None or risen_at < one.seen_at)
        and store.list(f"{folders[one.kind](config.pipeline, TableName.parse(table))}/_delta_log")
        for one in kept
    )


def _is_thorough(now: datetime) -> bool:
    return now.toordinal() % THOROUGH_DAYS == 0


@contextmanager
def plan_current(run: Run, group: Sequence[str]) -> Iterator[CompactionPlan | None]:
    """A plan for the tables of the group, which stay leased while the block runs. After `WAIT_S` it holds the
    tables that no merge works on then; None if there is none. A merge that follows the source releases its leases
    for this wait. Raises what `lake_folder.require` raises."""
    names = {leases.of_table(table): table for table in group}
    with ExitStack() as stack:
        try:
            lease = stack.enter_context(_leased(run, names))
        except LeaseTaken as busy:
            log.info("Left to the next run: %s", busy)
            yield None
            return
        for taken in lease.left.values():
            log.info("Left to the next run: %s", taken)
        with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
            store = _own_store(run, book)
        yield _plan(run, store, "current", [names[name] for name in lease.names])


@contextmanager
def _leased(run: Run, names: Collection[str]) -> Iterator[Lease]:
    """All of the tables, or those that are free after the wait."""
    with ExitStack() as stack:
        try:
            lease = stack.enter_context(leases.hold(run.ledger, run.pipeline, names, run.holder, wait_s=WAIT_S))
        except LeaseTaken:
            lease = stack.enter_context(leases.hold_free(run.ledger, run.pipeline, names, run.holder))
        yield lease


def _own_store(run: Run, ledger: Ledger) -> Store:
    """The lake, if it is the one with the pipeline's tables. In another lake every table would seem to be missing."""
    store = Store(run.config.lake, run.config.lake_access)
    lake_folder.require(run.config, store, generations.required(ledger))
    return store


def _plan(run: Run, store: Store, step: Step, names: Sequence[str]) -> CompactionPlan:
    config, now = run.config, run.now()
    plan = CompactionPlan(
        plan=f"{now:%Y%m%dT%H%M%S}-{token_hex(8)}",
        pipeline=config.pipeline,
        lake=config.lake,
        step=step,
        tables=tuple(names),
        threads=config.merge.threads,
        versions_days=config.maintenance.versions_days,
        thorough=_is_thorough(now),
    )
    store.write_atomic(layout.maintenance_file(config.pipeline, plan.plan), plan.to_json().encode())
    return plan


def ordered_result(
    run: Run,
    plan: CompactionPlan,
    application: Application,
    limit_s: float,
    pause: Callable[[float], None] = time.sleep,
) -> CompactionResult:
    """Order the plan; returns its result. Raises SparkApplicationFailed if the application ends without one, or
    SparkApplicationTooLong if it takes longer than `limit_s`."""
    application.order(plan.plan)
    store, began = Store(run.config.lake, run.config.lake_access), run.clock()
    result_file = f"{layout.maintenance_folder(run.pipeline, plan.plan)}/result.json"
    has_ended = False
    while not store.exists(result_file) and not has_ended:
        if (ran_s := run.clock() - began) > limit_s:
            raise SparkApplicationTooLong(plan=plan.plan, ran=duration(ran_s), limit=duration(limit_s))
        pause(LOOK_S)
        has_ended = application.has_ended()
    result = take_result(run.config, plan)
    if result is None:
        raise SparkApplicationFailed(plan=plan.plan, detail="it left no result")
    return result


def take_result(config: PipelineConfig, plan: CompactionPlan) -> CompactionResult | None:
    """The application's result; None if it left none. Its files are deleted."""
    store = Store(config.lake, config.lake_access)
    folder = layout.maintenance_folder(config.pipeline, plan.plan)
    try:
        return CompactionResult.from_json(store.read(f"{folder}/result.json"))
    except (FileNotFoundError, ValueError):
        return None
    finally:
        store.delete(folder)


def note(run: Run, inspected: Collection[str], results: Sequence[CompactionResult]) -> dict[str, Any]:
    """Record in the ledger, for `status`, what the run did to the inspected tables; returns the record. Raises what
    `lake_folder.require` raises, and records nothing then: a table that is missing from an unreachable lake is not
    lost."""
    upkept = [table for result in results for table in result.tables]
    figures = {
        "tables": len({table.table for table in upkept}),
        "compacted": sum(table.compacted for table in upkept),
        "files_before": sum(table.files_before for table in upkept if table.compacted),
        "files_after": sum(table.files_after for table in upkept if table.compacted),
        "left": sorted({table.table for table in upkept if table.left}),
    }
    with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
        _own_store(run, book)
        retirement.note(book, tables=figures)
        _park_missing_tables(book, inspected, {(table.table, table.kind) for table in upkept})
        # Of a table that was looked at and then compacted, the second is what is left.
        table_sizes.keep(book, {(t.table, t.kind): t for t in upkept if t.bytes is not None}.values())
    return figures


def _park_missing_tables(ledger: Ledger, inspected: Collection[str], seen: Collection[tuple[str, str]]) -> None:
    """Park inspected tables that lost a Delta table since the last inspection. The next merge would park them too,
    but without changes at the source there is no next merge."""
    reached = positions.all_of(ledger, generations.required(ledger).number)
    kept = table_sizes.all_of(ledger)
    for row in tables.all_of(ledger):
        at = reached.get(row.table)
        if at is None or row.table not in inspected or row.life.is_parked or not row.life.is_captured:
            continue
        for one in kept.get(row.table, ()):
            if (row.table, one.kind) in seen or one.seen_at is None or at.risen_at > one.seen_at:
                continue
            after = at.history_lsn if one.kind == "history" else at.current_lsn
            gone = PositionBelowPlan(step=one.kind, table=row.table, position="no position", after=after)
            log.error("%s", gone)
            with ledger.transaction():
                tables.lock(ledger, [row.table])
                merge_states.park(ledger, row.table, gone.record())
            break
