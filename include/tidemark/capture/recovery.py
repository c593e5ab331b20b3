"""Staging -> what the ledger no longer knows, or never learned: complete manifests that go
on from `staged` are registered.

That heals two things alike. A drain that died between manifest and registration left a batch that is as good as any.
And a ledger that was restored from an older copy, or lost, is behind the tables: draining again would end batches
elsewhere, and the tables' positions would lie inside them; the manifests give the very batches back, and the results of
the plans that applied them are ingested with the next merge. What such a manifest claims is claimed, whether the ledger
knows the chunk or not; a backfill whose row is then behind is read on from there, and reading twice changes nothing.
Generations that the ledger does not know are opened again from their generation.json.

What maintenance removed of staging does not come back, and need not: it was applied. retired.json says how far that
is, and a ledger from before the clean-up learns it (`relearning.learn`). One that was lost begins there, and the tables
that kept something below are read again. One that ends below it is behind a gap, like any other.

One manifest is not as good as any: that which gives a table's new shape a number that a backfill's reader gave to
another shape first. It is removed, with what goes on from it, and drained again, since the source still sends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from posixpath import basename, dirname
from typing import Final

from tidemark.errors import Move, SchemaVersionTaken
from tidemark.formats import layout
from tidemark.formats.generation_file import GenerationFile
from tidemark.formats.manifest import BatchManifest, TableMark
from tidemark.formats.plan import MergePlan
from tidemark.formats.retired_file import RetiredFile
from tidemark.ledger import batches, generations, plans, relearning, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.generations import Generation
from tidemark.ledger.leases import Lease
from tidemark.lsn import Lsn
from tidemark.staging import staged_folders
from tidemark.staging.abandoned import read_name
from tidemark.staging.chain import chain_from
from tidemark.staging.staged_folders import StagedFolders
from tidemark.staging.store import Store

log = logging.getLogger(__name__)

# Manifests or plans that are read at the same time.
READERS: Final = 16

LOST: Final = "the ledger was lost while staging kept changes of the table that were not applied, or not proven to be"

# Whether the source still sends all of the generation's changes in [start, end).
StillSends = Callable[[Generation, Lsn, Lsn], bool]


def look_into_staging(ledger: Ledger, store: Store) -> StagedFolders:
    """Whatever a drain may have to know of staging, by one listing. Needs the lease `slot`."""
    generation = generations.current(ledger)
    if generation is None:
        return staged_folders.look(store, ledger.pipeline, None, Lsn(0))
    return staged_folders.look(
        store, ledger.pipeline, generation.number, generation.confirmed_lsn or generation.start_lsn
    )


def register_again(
    ledger: Ledger, folders: StagedFolders, lease: Lease, still_sends: StillSends
) -> list[BatchManifest]:
    """Bring the ledger level with staging and return what was registered. Needs the lease `slot`, under which `folders`
    were looked for.

    Raises `SchemaVersionTaken` if a manifest cannot be registered, and cannot be done without either.
    """
    registered: list[BatchManifest] = []
    generation = generations.current(ledger)
    store, numbers = folders.store, folders.numbers
    for number in numbers:
        if generation is not None and number < generation.number:
            continue
        if generation is None or number > generation.number:
            manifests = _complete(folders, number, Lsn(0))
            opened = _open_again(ledger, store, lease, number, manifests)
            if opened is None:
                continue
            generation = opened
        else:
            manifests = _complete(folders, number, generation.staged_lsn)
        # The slot is the newest generation's.
        sends = still_sends if number == numbers[-1] else _sends_nothing
        added = _register_chain(ledger, store, lease, generation, manifests, sends)
        if basename(layout.retired_file(lease.pipeline, number)) in folders.of(number, generation.staged_lsn):
            _learn_what_is_retired(ledger, store, lease, number, was_behind=bool(added))
        registered += added
    return registered


def what_goes_on(store: Store, pipeline: str, generation: Generation) -> str | None:
    """What staging has that the ledger lacks, and the next drain registers with all that it claims; None if nothing."""
    folders = staged_folders.look(store, pipeline, generation.number, generation.staged_lsn)
    newest = max(folders.numbers, default=generation.number)
    if newest > generation.number:
        return f"it ends with generation {generation.number}, the lake with {newest}"
    home = layout.generation_folder(pipeline, generation.number)
    attempts = [read_name(name) for name in folders.of(generation.number, generation.staged_lsn)]
    next_ones = [a.folder for a in attempts if a is not None and a.start == generation.staged_lsn]
    if any(store.exists(layout.manifest_file(f"{home}/{folder}")) for folder in next_ones):
        return f"it ends at {generation.staged_lsn}, where a batch begins that was not registered"
    return None


def _learn_what_is_retired(ledger: Ledger, store: Store, lease: Lease, number: int, *, was_behind: bool) -> None:
    retired = read_retired(store, lease.pipeline, number)
    if retired is None:
        return
    if relearning.learn(ledger, lease, retired, lambda paths: is_gone(store, paths), was_behind=was_behind):
        log.warning(
            "The ledger is older than the last clean-up of staging: up to %s generation %d counts as applied, and open "
            "backfills begin anew",
            retired.up_to,
            number,
        )


def read_retired(store: Store, pipeline: str, generation: int) -> RetiredFile | None:
    """How far the generation's staging was cleaned up; None if it never was."""
    try:
        return RetiredFile.from_json(store.read(layout.retired_file(pipeline, generation)).decode())
    except FileNotFoundError:
        return None


def is_gone(store: Store, paths: Sequence[str]) -> bool:
    """Whether some of a batch's files are there no more."""
    return not all(store.exists(path) for path in paths)


def _register_chain(
    ledger: Ledger,
    store: Store,
    lease: Lease,
    generation: Generation,
    manifests: dict[str, BatchManifest],
    still_sends: StillSends,
) -> list[BatchManifest]:
    """`manifests` maps paths to the complete manifests that lie there."""
    ours = {path: m for path, m in manifests.items() if _is_of(generation, m)}
    if not any(m.start_lsn == generation.staged_lsn for m in ours.values()):
        return []
    unknown = _unknown_plans(ledger, store, generation.number)
    applied = [b for plan in unknown for t in plan.tables for b in t.batches]
    folders = {dirname(dirname(f.path)) for b in applied for f in b.files}
    claimed = {(b.start_lsn, b.end_lsn, claim) for b in applied if not b.files for claim in b.claims}
    paths = {id(m): path for path, m in ours.items()}

    def is_named(m: BatchManifest) -> bool:
        return dirname(paths[id(m)]) in folders or any(
            (m.start_lsn, m.end_lsn, claim) in claimed for table in m.tables for claim in table.claims
        )

    chain = chain_from(generation.staged_lsn, ours.values(), is_named)
    registered: list[BatchManifest] = []
    with ledger.transaction():
        for manifest in chain:
            try:
                batches.register(ledger, lease, manifest, paths[id(manifest)], again=True)
            except SchemaVersionTaken as difference:
                # Named by a plan it may be in the tables already, whose positions are ends of these very batches.
                refused = chain[len(registered) :]
                if any(map(is_named, refused)) or not still_sends(generation, manifest.start_lsn, chain[-1].end_lsn):
                    raise
                log.warning("Removing [%s, %s) from staging: %s", manifest.start_lsn, chain[-1].end_lsn, difference)
                break
            registered.append(manifest)
        for plan in unknown:
            if store.exists(layout.result_file(lease.pipeline, plan.plan)):
                plans.record_found(ledger, lease, plan, path=layout.plan_file(lease.pipeline, plan.plan))
    # The last one first: what is left after a death in between begins with the one that is refused again.
    for manifest in reversed(chain[len(registered) :]):
        store.delete(dirname(paths[id(manifest)]))
    return registered


def _sends_nothing(generation: Generation, start_lsn: Lsn, end_lsn: Lsn) -> bool:
    return False


def _is_of(generation: Generation, manifest: BatchManifest) -> bool:
    """Timelines only rise within a generation: a failover slot takes it along to the next one."""
    return (
        manifest.source.system_identifier == generation.system_identifier
        and manifest.source.timeline <= generation.timeline
    )


def _open_again(
    ledger: Ledger, store: Store, lease: Lease, number: int, manifests: dict[str, BatchManifest]
) -> Generation | None:
    """Open a generation that only staging knows: where its clean-up ended, else where its oldest remaining batches
    begin. What lay below was applied, but for what single tables still kept: those are marked. None if nothing says
    how it began."""
    try:
        opening = GenerationFile.from_json(store.read(layout.generation_file(lease.pipeline, number)).decode())
    except (FileNotFoundError, ValueError):
        return None
    retired = read_retired(store, lease.pipeline, number)
    if retired is not None:
        manifests = {path: m for path, m in manifests.items() if m.start_lsn >= retired.up_to}
        opening = replace(opening, start_lsn=retired.up_to)
    remaining = chain_from(None if retired is None else retired.up_to, manifests.values(), lambda _: False)
    newest = max((m.source for m in remaining), key=lambda source: source.timeline, default=None)
    if newest is not None:
        history = opening.history if newest.timeline == opening.timeline else None
        opening = replace(
            opening, start_lsn=remaining[0].start_lsn, timeline=newest.timeline, slot=newest.slot, history=history
        )
    with ledger.transaction():
        opened = generations.open_generation(ledger, lease, opening)
        for table in () if retired is None else retired.kept:
            tables.mark(ledger, TableMark(table, "needs_backfill", tables.GAP, Move.BACKFILL.value, LOST))
    return opened


def _complete(folders: StagedFolders, generation: int, above: Lsn) -> dict[str, BatchManifest]:
    """Complete manifests of a generation that start at or above a position, by path. A manifest is written last, so
    only the retention can have taken a file from under it: those are looked for."""
    store, folder = folders.store, layout.generation_folder(folders.pipeline, generation)
    names = [name for name in folders.of(generation, above) if "-" in name]

    def manifest_of(path: str) -> BatchManifest | None:
        try:
            manifest = BatchManifest.from_json(store.read(path).decode())
        except (FileNotFoundError, ValueError):
            return None
        return manifest if _has_all_files(store, manifest) else None

    # A lost ledger has thousands of them, and on an object store each file is a request of its own.
    with ThreadPoolExecutor(READERS, thread_name_prefix="tidemark-recovery") as readers:
        paths = [layout.manifest_file(f"{folder}/{name}") for name in names]
        read = zip(paths, readers.map(manifest_of, paths), strict=True)
        return {path: manifest for path, manifest in read if manifest is not None}


def _has_all_files(store: Store, manifest: BatchManifest) -> bool:
    files = [f for t in manifest.tables for f in (*t.files, *(f for claim in t.claims for f in claim.files))]
    if manifest.transactions is not None:
        files.append(manifest.transactions)
    try:
        return all(store.size(f.path) == f.bytes for f in files)
    except FileNotFoundError:
        return False


def _unknown_plans(ledger: Ledger, store: Store, generation: int) -> list[MergePlan]:
    """The plans in the lake that the ledger has no row of; a ledger that was not restored knows all but the newest."""
    recorded = plans.recorded(ledger)
    names = [name for name in store.list(layout.plans_root(ledger.pipeline)) if name not in recorded]

    def plan_of(name: str) -> MergePlan | None:
        try:
            return MergePlan.from_json(store.read(layout.plan_file(ledger.pipeline, name)).decode())
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    with ThreadPoolExecutor(READERS, thread_name_prefix="tidemark-recovery") as readers:
        return [plan for plan in readers.map(plan_of, names) if plan is not None and plan.generation == generation]
