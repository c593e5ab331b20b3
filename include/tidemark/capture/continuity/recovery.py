"""Registers complete manifests of staging that continue from `staged` and that the ledger lacks.

That repairs two things in the same way:

- A drain died between manifest and registration. Its batch is complete.
- The ledger was restored from an older copy, or lost, and is behind the tables. Another drain would end batches
  elsewhere, and the tables' positions would lie inside them. The manifests give the same batches back. The next merge
  ingests the results of the plans that applied them.

A claim of such a manifest holds even if the ledger lacks the chunk. A backfill whose row is then behind continues from
there; reading twice changes nothing. Generations that the ledger lacks are opened from their generation.json.

Staging that maintenance removed does not come back, and need not, because it was applied. retired.json has how far. A
ledger that is older than the clean-up takes this over (`restored_retirement.apply`). A lost ledger begins at that
position, and the tables that kept something below it are read again. A ledger that ends below it is behind a gap, as
any gap.

One kind of manifest is not registered: it gives a table's new shape a number that a backfill's reader first gave to
another shape. It is removed together with its successors, and drained again, since the source still sends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname
from typing import Final

from msgspec.structs import replace

from tidemark.capture import lake_folder
from tidemark.errors import SchemaVersionTaken
from tidemark.formats import layout
from tidemark.formats.manifest import BatchManifest, Claim
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.retired_file import RetiredFile
from tidemark.ledger.captured import backfill_marks, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.retention import restored_retirement
from tidemark.ledger.staged import batches, generations, plans
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.staging import staged_folders
from tidemark.staging.abandoned_folders import read_name
from tidemark.staging.batch_chain import StagedBatch, chain_from
from tidemark.staging.staged_folders import StagedFolders
from tidemark.storage.small_reads import read_ahead
from tidemark.storage.store import Store

log = logging.getLogger(__name__)

LOST: Final = "the ledger was lost while staging kept changes of the table that were not applied, or not proven to be"

# Whether the source still sends all of the generation's changes in [start, end).
StillSends = Callable[[Generation, Lsn, Lsn], bool]


def list_staging(ledger: Ledger, store: Store) -> StagedFolders:
    """List, with one request, the folders of staging that the next drain may need. Needs the lease `slot`."""
    generation = generations.current(ledger)
    if generation is None:
        return staged_folders.read(store, ledger.pipeline, None, Lsn(0))
    return staged_folders.read(
        store, ledger.pipeline, generation.number, generation.confirmed_lsn or generation.start_lsn
    )


def register_again(ledger: Ledger, folders: StagedFolders, lease: Lease, still_sends: StillSends) -> list[StagedBatch]:
    """Bring the ledger level with staging. Returns the registered batches. Needs the lease `slot`, under which
    `folders` were listed.

    Raises `SchemaVersionTaken` if a manifest cannot be registered, and cannot be removed either.
    """
    registered: list[StagedBatch] = []
    generation = generations.current(ledger)
    store = folders.store
    numbers = _opened(folders, 0 if generation is None else generation.number)
    for number in numbers:
        if generation is None or number > generation.number:
            staged = _complete(folders, number, Lsn(0))
            opened = _open_again(ledger, store, lease, number, staged)
            if opened is None:
                continue
            generation = opened
        else:
            staged = _complete(folders, number, generation.staged_lsn)
        # The slot belongs to the newest generation.
        sends = still_sends if number == numbers[-1] else sends_nothing
        added = _register_chain(ledger, store, lease, generation, staged, sends)
        if basename(layout.retired_file(lease.pipeline, number)) in folders.of(number, generation.staged_lsn):
            _take_over_retirement(ledger, store, lease, number, was_behind=bool(added))
        registered += added
    return registered


def unregistered_staging(store: Store, pipeline: str, generation: Generation) -> str | None:
    """A clause about staging that the ledger lacks, and that the next drain registers; None if there is none."""
    folders = staged_folders.read(store, pipeline, generation.number, generation.staged_lsn)
    newest = max(_opened(folders, generation.number), default=generation.number)
    if newest > generation.number:
        return f"it ends with generation {generation.number}, the lake with {newest}"
    home = layout.generation_folder(pipeline, generation.number)
    attempts = [read_name(name) for name in folders.of(generation.number, generation.staged_lsn)]
    next_ones = [a.folder for a in attempts if a is not None and a.start == generation.staged_lsn]
    if any(store.exists(layout.manifest_file(f"{home}/{folder}")) for folder in next_ones):
        return f"it ends at {generation.staged_lsn}, where a batch begins that was not registered"
    return None


def _opened(folders: StagedFolders, current: int) -> list[int]:
    """The generations with a folder in staging, from the ledger's current one on, ascending. A newer one counts if it
    has a generation.json. An attempt to open a generation that died leaves a folder without it."""
    store, pipeline = folders.store, folders.pipeline
    return [
        number
        for number in folders.numbers
        if number == current or (number > current and store.exists(layout.generation_file(pipeline, number)))
    ]


def _take_over_retirement(ledger: Ledger, store: Store, lease: Lease, number: int, *, was_behind: bool) -> None:
    retired = read_retired(store, lease.pipeline, number)
    if retired is None:
        return
    if restored_retirement.apply(ledger, lease, retired, lambda paths: is_gone(store, paths), was_behind=was_behind):
        log.warning(
            "The ledger is older than the last clean-up of staging: up to %s generation %d counts as applied, and open "
            "backfills begin anew",
            retired.up_to,
            number,
        )


def read_retired(store: Store, pipeline: str, generation: int) -> RetiredFile | None:
    """The record of the clean-up of the generation's staging; None if there was none."""
    path = layout.retired_file(pipeline, generation)
    try:
        return RetiredFile.from_json(store.read(path), path)
    except FileNotFoundError:
        return None


def is_gone(store: Store, paths: Sequence[str]) -> bool:
    """Whether some of a batch's files are missing."""
    return not all(store.exists(path) for path in paths)


def _register_chain(
    ledger: Ledger,
    store: Store,
    lease: Lease,
    generation: Generation,
    staged: Sequence[StagedBatch],
    still_sends: StillSends,
) -> list[StagedBatch]:
    ours = [batch for batch in staged if _is_of(generation, batch)]
    if not any(batch.start_lsn == generation.staged_lsn for batch in ours):
        return []
    unknown = _unknown_plans(ledger, store, generation.number)

    def is_named(batch: StagedBatch) -> bool:
        claimed = ((batch.start_lsn, batch.end_lsn, claim) in unknown.claimed for claim in batch.claims)
        return batch.folder in unknown.folders or any(claimed)

    chain = chain_from(generation.staged_lsn, ours, is_named)
    registered: list[StagedBatch] = []
    with ledger.transaction():
        for batch, manifest in zip(chain, read_ahead(lambda b: _manifest(store, b.path), chain), strict=True):
            try:
                batches.register(ledger, lease, manifest, batch.path, again=True)
            except SchemaVersionTaken as difference:
                # If a plan names a refused batch, the tables may have it: their positions are ends of these batches.
                refused = chain[len(registered) :]
                if any(map(is_named, refused)) or not still_sends(generation, batch.start_lsn, chain[-1].end_lsn):
                    raise
                log.warning("Removing [%s, %s) from staging: %s", batch.start_lsn, chain[-1].end_lsn, difference)
                break
            registered.append(batch)
        for plan in read_ahead(lambda name: _plan_with_result(store, lease.pipeline, name), unknown.names):
            if plan is not None:
                plans.record_from_lake(ledger, lease, plan, path=layout.plan_file(lease.pipeline, plan.plan))
    # The last batch is removed first. If the process dies in between, the rest still begins with the batch that is
    # refused again.
    for batch in reversed(chain[len(registered) :]):
        store.delete(batch.folder)
    return registered


def sends_nothing(generation: Generation, start_lsn: Lsn, end_lsn: Lsn) -> bool:
    """A `StillSends` that denies everything, so that no manifest is removed."""
    return False


def _is_of(generation: Generation, batch: StagedBatch) -> bool:
    """Whether the batch belongs to the generation. Timelines only rise within a generation: a failover slot takes
    it along to the next one."""
    return (
        batch.source.system_identifier == generation.system_identifier and batch.source.timeline <= generation.timeline
    )


def _open_again(
    ledger: Ledger, store: Store, lease: Lease, number: int, staged: Sequence[StagedBatch]
) -> Generation | None:
    """Open a generation that only staging has. It starts where its clean-up ended, or else where its oldest
    remaining batches begin. The changes below that were applied, except those that were kept for single tables:
    these tables are marked. None if its generation.json is missing."""
    opening = lake_folder.opening(store, lease.pipeline, number)
    if opening is None:
        return None
    retired = read_retired(store, lease.pipeline, number)
    if retired is not None:
        staged = [batch for batch in staged if batch.start_lsn >= retired.up_to]
        opening = replace(opening, start_lsn=retired.up_to)
    remaining = chain_from(None if retired is None else retired.up_to, staged, lambda _: False)
    newest = max((batch.source for batch in remaining), key=lambda source: source.timeline, default=None)
    if newest is not None:
        history = opening.history if newest.timeline == opening.timeline else None
        opening = replace(
            opening, start_lsn=remaining[0].start_lsn, timeline=newest.timeline, slot=newest.slot, history=history
        )
    with ledger.transaction():
        opened = generations.open_generation(ledger, lease, opening)
        for table in () if retired is None else retired.kept:
            tables.add(ledger, table)
            backfill_marks.mark(ledger, table, backfill_marks.GAP, LOST)
    return opened


def _complete(folders: StagedFolders, generation: int, above: Lsn) -> list[StagedBatch]:
    """The batches of a generation that start at or above a position and are complete. A manifest is written last,
    so only clean-up can have removed one of its files: each file is checked."""
    store, folder = folders.store, layout.generation_folder(folders.pipeline, generation)

    def batch_of(name: str) -> StagedBatch | None:
        path = layout.manifest_file(f"{folder}/{name}")
        try:
            manifest = _manifest(store, path)
        except (FileNotFoundError, ValueError):
            return None
        return StagedBatch.of(path, manifest) if _has_all_files(store, manifest) else None

    names = [name for name in folders.of(generation, above) if "-" in name]
    return [batch for batch in read_ahead(batch_of, names) if batch is not None]


def _manifest(store: Store, path: str) -> BatchManifest:
    return BatchManifest.from_json(store.read(path), path)


def _has_all_files(store: Store, manifest: BatchManifest) -> bool:
    files = [f for t in manifest.tables for f in (*t.files, *(f for claim in t.claims for f in claim.files))]
    if manifest.transactions is not None:
        files.append(manifest.transactions)
    try:
        return all(store.size(f.path) == f.bytes for f in files)
    except FileNotFoundError:
        return False


@dataclass(slots=True)
class _UnknownPlans:
    """The contents of the plans without a row in the ledger: the folders of their batches, and the claims of their
    batches without changes. `names` are the plans' names."""

    folders: set[str] = field(default_factory=set)
    claimed: set[tuple[Lsn, Lsn, Claim]] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    def add(self, plan: MergePlan) -> None:
        self.names.append(plan.plan)
        for batch in (b for table in plan.tables for b in table.batches):
            self.folders |= {dirname(dirname(file.path)) for file in batch.files}
            if not batch.files:
                self.claimed |= {(batch.start_lsn, batch.end_lsn, claim) for claim in batch.claims}


def _unknown_plans(ledger: Ledger, store: Store, generation: int) -> _UnknownPlans:
    """The plans in the lake without a row in the ledger. A ledger that was not restored has all but the newest."""
    recorded = plans.recorded(ledger)
    names = [name for name in store.list(layout.plans_root(ledger.pipeline)) if name not in recorded]

    unknown = _UnknownPlans()
    for plan in read_ahead(lambda name: _plan(store, ledger.pipeline, name), names):
        if plan is not None and plan.generation == generation:
            unknown.add(plan)
    return unknown


def _plan(store: Store, pipeline: str, name: str) -> MergePlan | None:
    """The plan, None if it is missing or incomplete."""
    try:
        return MergePlan.from_json(store.read(layout.plan_file(pipeline, name)))
    except (FileNotFoundError, ValueError):
        return None


def _plan_with_result(store: Store, pipeline: str, name: str) -> MergePlan | None:
    """The plan; None if it is missing or has no result. Maintenance may remove it at any time, without a lease of a
    drain."""
    return _plan(store, pipeline, name) if store.exists(layout.result_file(pipeline, name)) else None
