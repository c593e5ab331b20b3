"""Registered batches: manifest -> rows, by one compare-and-set on the generation's staged LSN (R4).

A batch whose start is not the end of the one before it is refused, so of two drains at once one wins, and neither a
hole nor an overlap can exist. Rows are never changed. Schema versions, fingerprints and marks of the manifest are
written in the same transaction: a table's state is never older than what is staged for it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidemark.errors import SchemaVersionClash, StagedMoved
from tidemark.ledger import generations, tables
from tidemark.ledger.leases import SLOT, Lease
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.staging.manifest import BatchManifest, StagedFile, TableChanges

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

    True when it was added, False when this very batch (same start, end and attempt) was there already. Raises
    `StagedMoved` where the chain ends elsewhere or another generation is open, `SchemaVersionClash` where a version
    number of the manifest stands for another shape in the ledger.
    """
    if manifest.pipeline != lease.pipeline or manifest.start_lsn >= manifest.end_lsn:
        raise ValueError(
            f"no batch of pipeline {lease.pipeline}: {manifest.pipeline} [{manifest.start_lsn}, {manifest.end_lsn})"
        )
    with connection.transaction():
        lease.check(connection, SLOT)
        if _is_registered(connection, manifest):
            return False
        _extend_chain(connection, manifest)
        touched = [t for t in manifest.tables if t.files]
        _insert_batch(connection, manifest, manifest_path, touched)
        for table in touched:
            tables.add(connection, manifest.pipeline, table.table)
            _insert_table(connection, manifest, table)
        for schema in manifest.schemas:
            tables.add(connection, manifest.pipeline, str(schema.table))
            _keep_version(connection, manifest, schema)
        for table_id, fingerprint in manifest.fingerprints.items():
            tables.keep_fingerprint(connection, manifest.pipeline, table_id, fingerprint)
        for mark in manifest.marks:
            tables.mark(connection, manifest.pipeline, mark)
    return True


def _is_registered(connection: psycopg.Connection[Any], manifest: BatchManifest) -> bool:
    row = connection.execute(
        "SELECT 1 FROM tidemark.batches "
        "WHERE pipeline = %s AND generation = %s AND start_lsn = %s AND end_lsn = %s AND attempt = %s",
        (manifest.pipeline, manifest.generation, manifest.start_lsn, manifest.end_lsn, manifest.attempt),
    ).fetchone()
    return row is not None


def _extend_chain(connection: psycopg.Connection[Any], manifest: BatchManifest) -> None:
    """The compare-and-set of R4: the open generation's staged LSN must be the batch's start, and becomes its end."""
    heartbeat_at = None if manifest.heartbeat_lsn is None else manifest.created_at
    moved = connection.execute(
        """
        UPDATE tidemark.generations
           SET staged_lsn = %(end)s, heartbeat_lsn = coalesce(%(heartbeat)s, heartbeat_lsn),
               heartbeat_at = coalesce(%(heartbeat_at)s::timestamptz, heartbeat_at)
         WHERE pipeline = %(pipeline)s AND number = %(generation)s AND staged_lsn = %(start)s
           AND number = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
        """,
        {
            "pipeline": manifest.pipeline,
            "generation": manifest.generation,
            "start": manifest.start_lsn,
            "end": manifest.end_lsn,
            "heartbeat": manifest.heartbeat_lsn,
            "heartbeat_at": heartbeat_at,
        },
    ).rowcount
    if moved != 1:
        staged_lsn = staged(connection, manifest.pipeline)
        raise StagedMoved(pipeline=manifest.pipeline, start_lsn=manifest.start_lsn, staged_lsn=staged_lsn)


def _insert_batch(
    connection: psycopg.Connection[Any], manifest: BatchManifest, manifest_path: str, touched: list[TableChanges]
) -> None:
    connection.execute(
        """
        INSERT INTO tidemark.batches
               (pipeline, generation, start_lsn, end_lsn, attempt, run_id, manifest, created_at, changes, bytes,
                transaction_count, skipped_messages, heartbeat_lsn, last_committed_at)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
        """,
        (
            manifest.pipeline,
            manifest.generation,
            manifest.start_lsn,
            manifest.end_lsn,
            manifest.attempt,
            manifest.run_id,
            manifest_path,
            manifest.created_at,
            sum(t.rows for t in touched),
            sum(f.bytes for t in touched for f in t.files),
            manifest.transaction_count,
            manifest.skipped_messages,
            manifest.heartbeat_lsn,
            manifest.last_committed_at,
        ),
    )


def _insert_table(connection: psycopg.Connection[Any], manifest: BatchManifest, table: TableChanges) -> None:
    connection.execute(
        """
        INSERT INTO tidemark.batch_tables
               (pipeline, generation, "table", start_lsn, end_lsn, files, counts, converted, unchanged, moved,
                changes, bytes)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
        """,
        (
            manifest.pipeline,
            manifest.generation,
            table.table,
            manifest.start_lsn,
            manifest.end_lsn,
            Jsonb([asdict(f) for f in table.files]),
            Jsonb(table.counts),
            Jsonb(table.converted),
            table.unchanged,
            table.moved,
            table.rows,
            sum(f.bytes for f in table.files),
        ),
    )


def _keep_version(connection: psycopg.Connection[Any], manifest: BatchManifest, schema: TableSchema) -> None:
    known = connection.execute(
        'SELECT definition FROM tidemark.schema_versions WHERE pipeline = %s AND "table" = %s AND version = %s',
        (manifest.pipeline, str(schema.table), schema.version),
    ).fetchone()
    if known is None:
        connection.execute(
            'INSERT INTO tidemark.schema_versions (pipeline, "table", version, definition, generation, start_lsn) '
            "VALUES (%s, %s, %s, %s, %s, %s)",
            (
                manifest.pipeline,
                str(schema.table),
                schema.version,
                Jsonb(schema.to_json()),
                manifest.generation,
                manifest.start_lsn,
            ),
        )
    elif not TableSchema.from_json(known[0]).same_shape(schema):
        raise SchemaVersionClash(version=schema.version, table=schema.table, pipeline=manifest.pipeline)


def of_run(connection: psycopg.Connection[Any], pipeline: str, run_id: str) -> list[Batch]:
    """The batches that this run registered, in order."""
    return _batches(connection, "pipeline = %s AND run_id = %s", (pipeline, run_id))


def after(connection: psycopg.Connection[Any], pipeline: str, generation: int, lsn: Lsn) -> list[Batch]:
    """The generation's batches that end above `lsn`, in order."""
    return _batches(connection, "pipeline = %s AND generation = %s AND end_lsn > %s", (pipeline, generation, lsn))


def _batches(connection: psycopg.Connection[Any], condition: str, values: tuple[Any, ...]) -> list[Batch]:
    with connection.cursor(row_factory=class_row(Batch)) as cursor:
        query = f"SELECT {_COLUMNS} FROM tidemark.batches WHERE {condition} ORDER BY generation, end_lsn"
        return cursor.execute(query.encode(), values).fetchall()


def staged(connection: psycopg.Connection[Any], pipeline: str) -> Lsn:
    """The end of the chain of the open generation. Raises `GenerationMissing` before the pipeline's first run."""
    return generations.required(connection, pipeline).staged_lsn


def unapplied(connection: psycopg.Connection[Any], pipeline: str, generation: int | None = None) -> list[TouchedTable]:
    """Every table's registered and unapplied batches, of all tables whatever their state, ordered by generation,
    table and LSN.

    Batches of an older generation come first: they must be merged before those of a newer one (R1).
    """
    rows = connection.execute(
        """
        SELECT generation, "table", start_lsn, end_lsn, files, counts, converted, unchanged, moved
          FROM tidemark.unapplied
         WHERE pipeline = %s AND (%s::int IS NULL OR generation = %s)
         ORDER BY generation, "table", end_lsn
        """,
        (pipeline, generation, generation),
    ).fetchall()
    return [
        TouchedTable(
            number, table, start, end, tuple(StagedFile(**f) for f in files), counts, converted, unchanged, moved
        )
        for number, table, start, end, files, counts, converted, unchanged, moved in rows
    ]


def previous_end(
    connection: psycopg.Connection[Any], pipeline: str, generation: int, table: str, start_lsn: Lsn
) -> Lsn | None:
    """End of the last batch of the generation that touches the table and ends at or below `start_lsn`; None if none
    does. It is the `after` of a plan whose first batch starts there."""
    row = connection.execute(
        "SELECT max(end_lsn) FROM tidemark.batch_tables "
        'WHERE pipeline = %s AND generation = %s AND "table" = %s AND end_lsn <= %s',
        (pipeline, generation, table, start_lsn),
    ).fetchone()
    return None if row is None else row[0]
