"""Registered batches: manifest -> rows, by one compare-and-set on the generation's staged LSN (R4).

A batch whose start is not the end of the one before it is refused, so of two drains at once one wins, and neither a hole nor an
overlap can exist. Rows are never changed. Schema versions, fingerprints and marks of the manifest are written in the same
transaction: a table's state is never older than what is staged for it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from tidemark.errors import SchemaVersionClash, StagedMoved
from tidemark.ledger import generations, tables
from tidemark.ledger.leases import SLOT, Lease
from tidemark.lsn import Lsn
from tidemark.staging.manifest import BatchManifest, StagedFile

_COLUMNS = (
    "generation, start_lsn, end_lsn, attempt, run_id, manifest, registered_at, changes, bytes, transaction_count, "
    "skipped_messages, heartbeat_lsn, last_committed_at"
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One registered batch; `manifest` is the path of its manifest.json relative to the lake root."""

    generation: int
    start_lsn: Lsn
    end_lsn: Lsn
    attempt: str
    run_id: str
    manifest: str
    registered_at: datetime
    changes: int
    bytes: int
    transaction_count: int
    skipped_messages: int
    heartbeat_lsn: Lsn | None
    last_committed_at: datetime | None


@dataclass(frozen=True, slots=True)
class TouchedTable:
    """One table's part of a registered batch; a batch touches a table when it has files for it."""

    generation: int
    table: str
    start_lsn: Lsn
    end_lsn: Lsn
    files: tuple[StagedFile, ...]
    counts: dict[str, int]
    converted: dict[str, int]
    unchanged: int
    moved: int


def register(connection: psycopg.Connection[Any], lease: Lease, manifest: BatchManifest, manifest_path: str) -> bool:
    """Add the batch to the chain of its generation. Needs the lease `slot`.

    True when it was added, False when this very batch (same start, end and attempt) was there already. Raises `StagedMoved`
    where the chain ends elsewhere or another generation is open, `SchemaVersionClash` where a version number of the manifest
    stands for another shape in the ledger.
    """
    ...


def of_run(connection: psycopg.Connection[Any], pipeline: str, run_id: str) -> list[Batch]:
    """The batches that this run registered, in order."""
    ...


def after(connection: psycopg.Connection[Any], pipeline: str, generation: int, lsn: Lsn) -> list[Batch]:
    """The generation's batches that end above `lsn`, in order."""
    ...


def staged(connection: psycopg.Connection[Any], pipeline: str) -> Lsn:
    """The end of the chain of the open generation. Raises `GenerationMissing` before the pipeline's first run."""
    return generations.required(connection, pipeline).staged_lsn


def unapplied(connection: psycopg.Connection[Any], pipeline: str, generation: int | None = None) -> list[TouchedTable]:
    """Every table's registered and unapplied batches, of all tables whatever their state, ordered by generation, table and LSN.

    Batches of an older generation come first: they must be merged before those of a newer one (R1).
    """
    ...


def previous_end(
    connection: psycopg.Connection[Any], pipeline: str, generation: int, table: str, start_lsn: Lsn
) -> Lsn | None:
    """End of the last batch of the generation that touches the table and ends at or below `start_lsn`; None if none does.
    It is the `after` of a plan whose first batch starts there."""
    ...
