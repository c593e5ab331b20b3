"""Deletes staging and ledger rows that are older than `staging_days` and no longer needed.

    under the lease `slot`   slot and source ─► `retirement.mark`, per generation, in pieces ─► retired.json
    then, oldest first       unregistered folders ─► manifest ─► files ─► ledger rows, page by page
                             chunks of ended backfills ─► their rows;   plans ─► their rows

`ledger.retention.retirement` decides once what can be removed and marks it. A run that dies is completed by the next
one, from the marks. Files are deleted before their rows, because files without a row could not be listed again. The
oldest are deleted first, so the rest of a chain is its end, from which a lost ledger is rebuilt
(`capture.continuity.recovery`). A manifest is deleted before its files, so no manifest describes an incomplete batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from posixpath import dirname
from typing import Any, Final

from tidemark.capture import lake_folder
from tidemark.capture.continuity.generation import still_continues
from tidemark.capture.continuity.recovery import is_gone, read_retired, unregistered_staging
from tidemark.errors import LedgerBehindStaging, ParkedKeepsStaging
from tidemark.failpoints import reach
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.ledger import leases, migrations
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.retention import restored_retirement, retirement
from tidemark.ledger.retention.retirement import KeptFiles, RetiredPrefix
from tidemark.ledger.staged import generations, plans
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.maintenance.put_aside_removal import remove_put_aside
from tidemark.postgres import postgres_session as source_sessions
from tidemark.run import Run
from tidemark.source.catalogue.transaction_visibility import snapshot_xmin
from tidemark.source.wal import slot as slots
from tidemark.staging.abandoned_folders import read_name
from tidemark.storage.store import Store
from tidemark.wording import counted

# Batches or plans whose files are removed before the ledger's rows follow.
PAGE: Final = 500
NAME_TIME: Final = "%Y%m%dT%H%M%S"


@dataclass(slots=True)
class Retired:
    """The result of one run. `kept` are the tables that keep files beyond `staging_days`. `held_by` is the reason
    that keeps all later staging, "" if there is none. `removed` are tables whose Delta tables were put aside and
    are deleted now."""

    batches: int = 0
    bytes: int = 0
    abandoned: int = 0
    backfills: int = 0
    plans: int = 0
    held_by: str = ""
    kept: dict[str, KeptFiles] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = (
            f"Removed {counted(self.batches, 'batch')} ({self.bytes} bytes of changes), the chunks of "
            f"{counted(self.backfills, 'backfill')}, {counted(self.plans, 'plan')}, and {self.abandoned} that no batch "
            "was made of"
        )
        if self.removed:
            text += f"; the Delta tables of {listed(self.removed)}, which were put aside"
        if self.held_by:
            text += f"; staging is kept longer than staging_days, since {self.held_by}"
        for table, kept in sorted(self.kept.items()):
            why = "it is parked or paused" if kept.held else "its backfill needs them"
            text += f"; {table} keeps {counted(kept.batches, 'batch')}, since {why}"
        return text

    def to_json(self) -> dict[str, Any]:
        names = ("batches", "bytes", "backfills", "plans", "held_by", "removed")
        return {**{name: getattr(self, name) for name in names}, "kept": sorted(self.kept)}


@dataclass(frozen=True, slots=True)
class SourceHorizon:
    """The slot's position and the xmin of a new snapshot, both read under the lease `slot`."""

    confirmed: Lsn
    xmin: int


def retire(run: Run, *, wait_s: float = 0.0) -> Retired:
    """Delete staging that is older than `staging_days` and not needed any more. Holds the lease `slot` while it
    decides.

    Raises GenerationStale or LedgerBehindStaging if the capture has to run first, LeaseTaken, and errors of the slot or
    of the lake's folder. At the end it raises ParkedKeepsStaging if parked and paused tables keep more than
    `parked_bytes`.
    """
    config = run.config
    cutoff = run.now() - timedelta(days=config.maintenance.staging_days)
    report = clean(run, cutoff=cutoff, read_horizon=partial(_read_horizon, run), wait_s=wait_s)
    report.removed = remove_put_aside(run)
    held_bytes = {table: kept.bytes for table, kept in report.kept.items() if kept.held}
    if sum(held_bytes.values()) > config.bounds.parked_bytes:
        raise ParkedKeepsStaging(
            pipeline=config.pipeline,
            bytes=sum(held_bytes.values()),
            limit=config.bounds.parked_bytes,
            tables=listed(sorted(held_bytes)),
        )
    return report


def _read_horizon(run: Run, opened: Generation) -> SourceHorizon:
    with source_sessions.connect(
        run.source, application_name=run.config.application_name, lock_timeout_s=run.config.bounds.lock_timeout_s
    ) as connection:
        still_continues(connection, opened)
        _, confirmed = slots.usable(connection, opened.slot)
        return SourceHorizon(confirmed, snapshot_xmin(connection))


def clean(
    run: Run, *, cutoff: datetime, read_horizon: Callable[[Generation], SourceHorizon], wait_s: float = 0.0
) -> Retired:
    """`retire` for everything that was registered or ended before `cutoff`."""
    store = Store(run.config.lake, run.config.lake_access)
    report = Retired()
    with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
        migrations.require(book.connection)
        opened = generations.current(book)
        if opened is None:
            return report
        lake_folder.require(run.config, store, opened)
        with leases.hold(run.ledger, run.pipeline, SLOT, run.holder, wait_s=wait_s) as lease:
            marked = _mark(book, store, lease, cutoff, read_horizon)
        reach("maintain.after_mark")
        for one in marked:
            _remove(book, store, one, report)
        _remove_chunks(book, store, cutoff, report)
        _remove_plans(book, store, cutoff, report)
        retirement.note(book, retired=report.to_json())
    return report


def _mark(
    ledger: Ledger, store: Store, lease: Lease, cutoff: datetime, read_horizon: Callable[[Generation], SourceHorizon]
) -> list[RetiredPrefix]:
    """Mark what can be deleted. The slot is read under its lease, so nobody confirms, registers or opens a
    generation meanwhile. The snapshot is taken before the pipeline's row is locked, so a backfill that opens later
    has a younger snapshot or is refused.

    The ledger decides what is needed, so it must be level with staging. A batch of a dead drain, or one that a restored
    ledger lacks, may claim chunks that the ledger does not have, or chunks of a closed backfill.
    """
    opened = generations.required(ledger)
    if (difference := unregistered_staging(store, ledger.pipeline, opened)) is not None:
        raise LedgerBehindStaging(pipeline=ledger.pipeline, difference=difference)
    seen = read_horizon(opened)
    marked = []
    for number in retirement.numbers(ledger):
        last_file = read_retired(store, ledger.pipeline, number)
        if last_file is not None and not restored_retirement.is_applied(ledger, last_file):
            if number == opened.number:
                raise LedgerBehindStaging(
                    pipeline=ledger.pipeline, difference=f"it lacks the clean-up up to {last_file.up_to}"
                )
            restored_retirement.apply(ledger, lease, last_file, partial(is_gone, store))
        if number == opened.number:
            retired = retirement.mark(ledger, lease, number, cutoff=cutoff, confirmed=seen.confirmed, xmin=seen.xmin)
        else:
            retired = retirement.mark(ledger, lease, number, cutoff=cutoff)
        if last_file is None or (last_file != retired.file and last_file.up_to <= retired.file.up_to):
            store.write_atomic(layout.retired_file(ledger.pipeline, number), retired.file.to_json().encode())
        marked.append(retired)
    return marked


def _remove(ledger: Ledger, store: Store, marked: RetiredPrefix, report: Retired) -> None:
    generation, up_to = marked.file.generation, marked.file.up_to
    report.kept |= marked.kept
    report.held_by = marked.held_by or report.held_by
    report.bytes += marked.bytes
    # First, so that of two manifests with one start never the wrong one is the only one left.
    report.abandoned += _remove_abandoned(ledger, store, generation, up_to)
    while page := retirement.to_remove(ledger, generation, PAGE):
        for batch in page:
            folder = dirname(batch.manifest)
            if batch.is_whole:
                store.delete(batch.manifest)
                reach("maintain.after_manifest")
                store.delete(folder)
                report.batches += 1
            else:
                for below in sorted({dirname(path) for path in batch.paths}):
                    store.delete(below)
        reach("maintain.after_files")
        retirement.removed(ledger, generation, page)
        reach("maintain.after_rows")


def _remove_abandoned(ledger: Ledger, store: Store, generation: int, up_to: Lsn) -> int:
    """Delete the folders below a position that belong to no batch of the ledger: a registered batch covered their
    start (R4)."""
    home = layout.generation_folder(ledger.pipeline, generation)
    registered = retirement.registered_below(ledger, generation, up_to)
    count = 0
    for name in store.list(home):
        attempt = read_name(name)
        if attempt is None or attempt.start >= up_to or (attempt.start, attempt.attempt) in registered:
            continue
        if leases.ended(ledger, attempt.attempt):
            store.delete(layout.manifest_file(f"{home}/{name}"))
            store.delete(f"{home}/{name}")
            count += 1
    return count


def _remove_chunks(ledger: Ledger, store: Store, cutoff: datetime, report: Retired) -> None:
    """Delete the chunks of a backfill together with files of readers that died."""
    for backfill in retirement.ended_backfills(ledger, cutoff):
        store.delete(layout.backfill_folder(ledger.pipeline, backfill))
        reach("maintain.after_chunks")
        retirement.backfill_removed(ledger, backfill)
        report.backfills += 1
    needed = retirement.needed_backfills(ledger)
    for name in store.list(layout.chunks_root(ledger.pipeline)):
        # A ledger that was restored or lost does not know all backfills.
        if name not in needed and _is_older(name, cutoff):
            store.delete(layout.backfill_folder(ledger.pipeline, name))
            report.backfills += 1


def _remove_plans(ledger: Ledger, store: Store, cutoff: datetime, report: Retired) -> None:
    while page := retirement.ended_plans(ledger, cutoff, PAGE):
        for plan in page:
            _remove_plan(ledger, store, plan)
        reach("maintain.after_plans")
        retirement.plans_removed(ledger, page)
        report.plans += len(page)
    for plan in _unknown_plans(ledger, store, cutoff):
        _remove_plan(ledger, store, plan)
        report.plans += 1
    for name in store.list(layout.replays_root(ledger.pipeline)):
        if _is_older(name, cutoff):  # of a task that was killed: any other takes its plan away itself
            store.delete(layout.replay_folder(ledger.pipeline, name))
            report.plans += 1


def _remove_plan(ledger: Ledger, store: Store, plan: str) -> None:
    """Delete the plan before its result: a restored ledger ignores a result without a plan."""
    store.delete(layout.plan_file(ledger.pipeline, plan))
    store.delete(layout.plan_folder(ledger.pipeline, plan))


def _unknown_plans(ledger: Ledger, store: Store, cutoff: datetime) -> Iterator[str]:
    """Folders of plans without a row in the ledger: their task died before it wrote the row, or the row was deleted
    with all its batches."""
    recorded = plans.recorded(ledger)
    for name in store.list(layout.plans_root(ledger.pipeline)):
        if name in recorded or not _is_older(name, cutoff):
            continue
        try:
            plan = MergePlan.from_json(store.read(layout.plan_file(ledger.pipeline, name)))
        except (FileNotFoundError, ValueError):
            yield name
            continue
        floor = retirement.retired_lsn(ledger, plan.generation)
        if floor is not None and all(table.end_lsn <= floor for table in plan.tables):
            yield name


def _is_older(name: str, cutoff: datetime) -> bool:
    """Whether the time in the name is older. Names of plans and backfills begin with their creation time; other
    names are never deleted."""
    try:
        return datetime.strptime(name.partition("-")[0], NAME_TIME).replace(tzinfo=UTC) < cutoff
    except ValueError:
        return False
