"""Decides whether the slot and the publication of the file are this pipeline's, from ledger and staging (R9).

    made by preflight, noted in the ledger before ──► its own
    a generation was staged from the slot         ──► its own, by the ledger or by generation.json
    anything else                                 ──► another's: it is neither read nor changed, until a person runs
                                                      `preflight --adopt-slot`

`lake_folder` decides the same of the folder in the lake.

Reading a slot moves it, and its owner loses the changes in between. So a slot is not read because a file names it.
Every judgement of a slot starts here, and only then reports the slot's faults: the advice to drop a slot is for the
pipeline's own slot alone.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tidemark.capture import lake_folder
from tidemark.capture.preflight_context import PreflightContext
from tidemark.config import PipelineConfig
from tidemark.errors import PublicationUnknown, SlotBusy, SlotInvalidated, SlotNotReady, SlotUnknown
from tidemark.findings import listed
from tidemark.ledger import owned_objects
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.owned_objects import Kind, OwnedObject
from tidemark.ledger.staged import generations
from tidemark.lsn import Lsn
from tidemark.postgres.postgres_session import one_row
from tidemark.source.catalogue import publication
from tidemark.source.catalogue.publication_findings import PublicationWork
from tidemark.source.wal import slot as slots
from tidemark.source.wal import slot_use
from tidemark.source.wal.slot import SlotState
from tidemark.staging import staged_folders
from tidemark.storage.store import Store


def owned_object(source: psycopg.Connection[Any], kind: Kind, name: str) -> OwnedObject:
    """The slot or publication of this name, in the form that the ledger records."""
    system, database = one_row(
        source, "SELECT system_identifier::text, current_database()::text FROM pg_control_system()"
    )
    return OwnedObject(kind, system, database, name)


def is_own_slot(config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger, store: Store) -> bool:
    """Whether the slot that the file names is the pipeline's own."""
    named = owned_object(source, "slot", config.slot)
    if owned_objects.is_own(ledger, named):
        return True
    # The first drain rebuilds a lost ledger from staging. The generations that it will have then count already.
    return generations.current(ledger) is None and any(
        (opening.system_identifier, opening.slot) == (named.system_identifier, named.name)
        for number in staged_folders.generations(store, config.pipeline)
        if (opening := lake_folder.opening(store, config.pipeline, number)) is not None
    )


def unknown(config: PipelineConfig, source: psycopg.Connection[Any], slot: SlotState | None) -> SlotUnknown:
    """The error for a slot that is somebody else's, with its present reader."""
    user = slot_use.read_user(source, config.slot)
    if user is None:
        reader = "nobody reads it at the moment"
    else:
        reader = f"process {user.pid}, application_name {user.application_name or 'unknown'}, reads it now"
    confirmed_lsn = None if slot is None else slot.confirmed_lsn
    return SlotUnknown(
        slot=config.slot,
        pipeline=config.pipeline,
        confirmed_lsn=confirmed_lsn or "no position yet",
        reader=reader,
        path=config.path or "FILE",
    )


def usable(
    config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger, store: Store
) -> tuple[SlotState, Lsn]:
    """The pipeline's own slot and its confirmed LSN. Raises SlotUnknown if it is somebody else's, and the errors of
    `source.wal.slot.usable`."""
    try:
        usable_slot = slots.usable(source, config.slot)
    except (SlotInvalidated, SlotNotReady):
        # The remedies of these errors are only for the pipeline's own slot.
        if not is_own_slot(config, source, ledger, store):
            raise unknown(config, source, slots.read_slot(source, config.slot)) from None
        raise
    if not is_own_slot(config, source, ledger, store):
        raise unknown(config, source, usable_slot[0])
    return usable_slot


def refuse_other_reader(config: PipelineConfig, source: psycopg.Connection[Any], *, own: bool) -> None:
    """Raises SlotBusy if another process reads the slot. A reader of the pipeline's own slot with the pipeline's
    application_name is no error: it is a drain of its other DAG, or a dead attempt that the drain ends."""
    user = slot_use.read_user(source, config.slot)
    if user is None or (own and user.application_name == config.application_name[:63]):
        return
    raise SlotBusy(slot=config.slot, pid=user.pid, application=user.application_name or "unknown")


def require_own_publication(survey: PreflightContext, work: PublicationWork) -> None:
    """Raises PublicationUnknown if the publication would have to change, and is not this pipeline's."""
    if not survey.config.manage_publication or not (work.add or work.drop) or survey.adopt_slot:
        return
    named = owned_object(survey.source, "publication", survey.config.publication)
    if owned_objects.is_own(survey.ledger, named):
        return
    changes = [f"{verb} {listed(names)}" for verb, names in (("add", work.add), ("take out", work.drop)) if names]
    raise PublicationUnknown(
        publication=survey.config.publication,
        pipeline=survey.config.pipeline,
        change=", ".join(changes),
        path=survey.config.path or "FILE",
    )


def adopt(config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger, lease: Lease) -> list[OwnedObject]:
    """Record slot and publication of the file, if they exist, as this pipeline's own. Returns those that were not
    before."""
    slot, published = slots.read_slot(source, config.slot), publication.read(source, config.publication)
    named = [] if slot is None else [owned_object(source, "slot", config.slot)]
    named += [] if published is None else [owned_object(source, "publication", config.publication)]
    foreign = [one for one in named if not owned_objects.is_own(ledger, one)]
    for one in foreign:
        if one.kind == "slot":
            # A reader may have connected since the last check.
            refuse_other_reader(config, source, own=False)
        owned_objects.note(ledger, lease, one, "adopted")
    return foreign
