"""Checks that the folder `<lake>/<pipeline>` is the one that this ledger's generations were staged in (R8).

    the ledger has generation n open, and the folder
        has no generation.json of it               ──► StagingMissing: another store, an empty one, a volume that is not
                                                       mounted, or a lake that was restored without its staging
        has another one of that number             ──► LakeTaken
        has a newer one, of another server or of a
          slot that is still there                 ──► LakeTaken
        has a newer one that may be its own        ──► the ledger is an older copy: `recovery` completes it
    the ledger has none, and the folder
        has none                                   ──► a first run opens one; of two at the same moment one does
        has one                                    ──► as a newer one

Only the pipeline's name and the generation's number distinguish positions in the tables. In the folder of another
pipeline, its positions would count for this one, and changes below them would be skipped. In an empty folder every
table would be missing. So the folder is checked before anything writes into it, plans from it, ingests a driver's
result from it, or counts a missing table as removed. A check costs one read of a file. These check it: preflight, the
drain, a backfill's readers, the merge, all tasks of maintenance, a replay, `ledger rebuild` and `unpark --anew`.

A person may overrule it in two cases. `preflight --adopt-slot`: the newer generation is the pipeline's own all the
same. `preflight --staging-is-lost`: this is the right folder, without its staging.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from tidemark.config import PipelineConfig
from tidemark.errors import LakeTaken, StagingMissing
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.formats.generation_file import GenerationFile
from tidemark.ledger.captured import backfill_marks
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.staged.generations import Generation
from tidemark.source.wal.slot_server import system_identifier
from tidemark.storage.store import Store


def opening(store: Store, pipeline: str, number: int) -> GenerationFile | None:
    """The generation.json of a generation in the folder; None if it is missing or incomplete."""
    try:
        return _read(store, pipeline, number)
    except (FileNotFoundError, ValueError):
        return None


def require(config: PipelineConfig, store: Store, generation: Generation) -> None:
    """Raise StagingMissing or LakeTaken unless the folder has the generation that the ledger has open."""
    try:
        staged = _read(store, config.pipeline, generation.number)
    except FileNotFoundError:
        raise _missing(config, store, generation) from None
    except ValueError:
        return  # the file exists; the code that reads its content reports the fault
    if (staged.reason, staged.system_identifier) == (generation.reason, generation.system_identifier):
        return
    raise LakeTaken(
        folder=_folder(store, config.pipeline),
        generation=generation.number,
        evidence=f"on server {staged.system_identifier}, because {staged.reason}; the one of that number in the ledger "
        f"on server {generation.system_identifier}, because {generation.reason}",
        own="Its ledger is of another folder, so `--adopt-slot` is no way out",
    )


def refuse_another(
    config: PipelineConfig,
    source: psycopg.Connection[Any],
    store: Store,
    numbers: Sequence[int],
    generation: Generation | None,
    *,
    accepts: bool = False,
) -> None:
    """`require`, and LakeTaken if another ledger opened a newer generation. `numbers` are the generations of the
    folder.

    `accepts`: a person confirmed that the folder is the pipeline's. That does not count if the ledger has another
    generation of the same number, because no older copy of the folder's ledger has one.
    """
    if generation is not None:
        require(config, store, generation)
    newer = [number for number in numbers if number > (0 if generation is None else generation.number)]
    # An attempt to open a generation that died leaves a folder without generation.json.
    opened = (opening(store, config.pipeline, number) for number in sorted(newer, reverse=True))
    if not accepts and (newest := next(filter(None, opened), None)) is not None:
        _refuse_newer(config, source, store, newest)


def _refuse_newer(
    config: PipelineConfig, source: psycopg.Connection[Any], store: Store, staged: GenerationFile
) -> None:
    """Raises LakeTaken if another pipeline opened the newest generation, for example that of a second Airflow: a
    new ledger would register its batches as its own. A newer generation of this source and slot is no error, since
    a lost ledger is completed from staging."""
    here = system_identifier(source)
    if staged.system_identifier != here:
        evidence = f"from the server with the system identifier {staged.system_identifier}, and this one has {here}"
    elif staged.slot != config.slot and _is_there(source, staged.slot):
        evidence = f'from the slot "{staged.slot}", which is still there'
    else:
        return
    raise LakeTaken(
        folder=_folder(store, config.pipeline),
        generation=staged.number,
        evidence=evidence,
        own="If it is the one whose folder this is, and its ledger is a new or an older one, say so once: "
        f"`tidemark preflight {config.path or 'FILE'} --adopt-slot`",
    )


def taken_meanwhile(store: Store, pipeline: str, number: int) -> LakeTaken:
    """The error for a generation that was opened after the folder was checked. This task holds the lease `slot`, so
    no task of this ledger opened it."""
    staged = opening(store, pipeline, number)
    slot = "another slot" if staged is None else f'the slot "{staged.slot}"'
    return LakeTaken(
        folder=_folder(store, pipeline),
        generation=number,
        evidence=f"from {slot} at the same moment",
        own="The other one was first, and keeps this folder",
    )


def restore(config: PipelineConfig, ledger: Ledger, store: Store, lease: Lease, generation: Generation) -> bool:
    """Write the generation.json of the ledger's open generation again, after a person confirmed that the folder is
    the pipeline's and its staging lost. Returns False, and writes nothing, if the file exists. Raises LakeTaken if
    it is of another generation.

    Each table then reports its own missing files. An older copy of the ledger, which takes the generation from this
    file, lacks what was staged of it. So the file marks all tables for a backfill.
    """
    try:
        require(config, store, generation)
        return False
    except StagingMissing:
        pass
    again = GenerationFile(
        pipeline=lease.pipeline,
        number=generation.number,
        system_identifier=generation.system_identifier,
        timeline=generation.timeline,
        slot=generation.slot,
        start_lsn=generation.start_lsn,
        opened_at=generation.opened_at.isoformat(),
        reason=generation.reason,
        backfill_kind=backfill_marks.GAP,
        history=generation.history,
    )
    with ledger.transaction():
        lease.check(ledger, SLOT)
        store.write_new(layout.generation_file(lease.pipeline, generation.number), again.to_json().encode())
    return True


def has_delta_table(store: Store, folder: str) -> bool:
    """Whether a Delta table lies in a folder: its log has a version. The folder alone does not count. Hadoop's
    clients mark a folder in a bucket by an object whose name ends in a slash, and removing the files may leave that
    object."""
    return any(not name.startswith("_") for name in store.list(f"{folder}/_delta_log"))


def _read(store: Store, pipeline: str, number: int) -> GenerationFile:
    path = layout.generation_file(pipeline, number)
    return GenerationFile.from_json(store.read(path), path)


def _missing(config: PipelineConfig, store: Store, generation: Generation) -> StagingMissing:
    there = [name for name in store.list(config.pipeline) if not name.startswith(".")]
    endpoint = config.lake_access.settings.get("endpoint")
    return StagingMissing(
        folder=_folder(store, config.pipeline),
        at=f" at {endpoint}" if endpoint else "",
        there=f"has {listed(there)}, but not" if there else "is empty or not there, and lacks",
        file=layout.generation_file(config.pipeline, generation.number).removeprefix(f"{config.pipeline}/"),
        generation=generation.number,
        staged_lsn=generation.staged_lsn,
        look="whether `lake` and its connection's endpoint and bucket are those that were captured into"
        if store.is_bucket
        else "whether the lake's volume is mounted on each worker, and `lake` is the path that was captured into",
        path=config.path or "FILE",
    )


def _folder(store: Store, pipeline: str) -> str:
    return f"{store.root.rstrip('/')}/{pipeline}"


def _is_there(source: psycopg.Connection[Any], slot: str) -> bool:
    """Whether the server has a slot of this name, in any database."""
    return source.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", (slot,)).fetchone() is not None
