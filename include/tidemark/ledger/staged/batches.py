"""Registers batches: manifest -> rows, by one compare-and-set on the generation's staged LSN (R4).

A batch whose start is not the end of the one before it is refused, so of two drains at once one wins, and neither a
hole nor an overlap can exist. Rows are never changed. Schema versions, fingerprints and marks of the manifest are
written in the same transaction: a table's state is never older than what is staged for it.

So are its claims. They are verified here under the locks of the backfills' rows: every chunk is free, every backfill is
open, and a swept backfill is completely read and claimed. A manifest that is registered again contains its claims. Rows
are locked in one order everywhere: the generation, the tables by id, the backfills by id, and below them ranges and
chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.abc import Params
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidemark.errors import DrainOvertaken, SchemaVersionClash, SchemaVersionTaken
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import BatchManifest, Claim, StagedFile, Sweep, TableChanges, TableMark
from tidemark.ledger.captured import (
    backfill_marks,
    definition_changes,
    merge_states,
    relation_ids,
    successors,
    tables,
    unfit_values,
)
from tidemark.ledger.connection import Ledger, fields_of
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.reading import chunks
from tidemark.ledger.reading.chunks import ChunkId
from tidemark.ledger.staged import generations
from tidemark.ledger.staged.snapshot_evidence import NeededEvidence
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema

_COLUMNS = (
    "generation, start_lsn, end_lsn, attempt, run_id, manifest, changes, skipped_messages, heartbeat_lsn, "
    "last_committed_at"
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
    changes: int
    skipped_messages: int
    heartbeat_lsn: Lsn | None
    last_committed_at: datetime | None


@dataclass(frozen=True, slots=True)
class TouchedTable:
    """One table's part of a registered batch; a batch touches a table when it has files for it or claims its chunks.
    `max_xid` is the highest transaction id of the changes, None without any."""

    generation: int
    table: str
    start_lsn: Lsn
    end_lsn: Lsn
    files: tuple[StagedFile, ...]
    counts: dict[str, int]
    converted: dict[str, int]
    unchanged: int
    moved: int
    max_xid: int | None = None
    claims: tuple[Claim, ...] = ()
    sweeps: tuple[Sweep, ...] = ()


def register(
    ledger: Ledger,
    lease: Lease,
    manifest: BatchManifest,
    manifest_path: str,
    *,
    rejected: Mapping[ChunkId, str] | None = None,
    again: bool = False,
) -> bool:
    """Add the batch to the chain of its generation, and have the `rejected` chunks, each with its reason, read again.
    Needs the lease `slot`.

    True when it was added, False when this very batch (same start, end and attempt) was there already. Raises
    `DrainOvertaken` if the chain ends elsewhere or another generation is open, `ClaimRefused` if a claim does not
    hold, `SchemaVersionClash` if a version number of the manifest stands for another shape in the ledger, and
    `SchemaVersionTaken` if that is a reader's. `again`: the ledger may know less than the manifest, whose claims
    are taken as they are.
    """
    if manifest.pipeline != lease.pipeline or manifest.start_lsn >= manifest.end_lsn:
        raise ValueError(
            f"no batch of pipeline {lease.pipeline}: {manifest.pipeline} [{manifest.start_lsn}, {manifest.end_lsn})"
        )
    with ledger.transaction():
        lease.check(ledger, SLOT)
        if _is_registered(ledger, manifest):
            return False
        _extend_chain(ledger, manifest)
        touched = [t for t in manifest.tables if t.files or t.claims]
        _insert_batch(ledger, manifest, manifest_path, touched)
        left = successors.tables_left(ledger, manifest)
        _lock_tables(ledger, manifest, touched, left.values())
        _insert_tables(ledger, manifest, touched)
        unfit_values.add(ledger, touched)
        tables.note_changes(ledger, {t.table: t.last_committed_at for t in touched if t.rows})
        streamed = {(table.table, file.schema_version) for table in touched for file in table.files}
        definition_changes.of_batch(ledger, manifest, _keep_versions(ledger, manifest, streamed))
        without_relation = relation_ids.keep_staged(ledger, manifest.source.system_identifier, manifest.schemas)
        if again:
            # A preflight of the restored ledger gave a relation an id before the manifests said which one it has.
            tables.remove_unused(ledger, without_relation)
        tables.keep_fingerprints(ledger, manifest.fingerprints)
        for mark in manifest.marks:
            _keep_mark(ledger, mark, manifest.mark_horizon)
        backfill_marks.spread_lost(ledger, [t.table for t in touched if t.moved and t.unchanged])
        _claim(ledger, manifest, rejected or {}, again)
        successors.begin(ledger, manifest, left)
    return True


def _lock_tables(ledger: Ledger, manifest: BatchManifest, touched: list[TableChanges], left: Iterable[str]) -> None:
    """Lock the rows of all tables in the manifest, and create missing ones, and of those that are `left`. A reader
    that adopts a version of one of them waits, or this waits for the reader."""
    named = {t.table for t in touched} | {str(s.table) for s in manifest.schemas} | set(manifest.fingerprints)
    named |= {mark.table for mark in manifest.marks} | set(left)
    tables.add(ledger, *named)
    tables.lock(ledger, named)


def _claim(ledger: Ledger, manifest: BatchManifest, rejected: Mapping[ChunkId, str], again: bool) -> None:
    taking = [table for table in manifest.tables if table.claims]
    ids = {claim.backfill for table in taking for claim in table.claims} | {backfill for backfill, _, _ in rejected}
    if not ids:
        return
    chunks.lock_backfills(ledger, ids)
    take = chunks.claim_again if again else chunks.claim
    for table in taking:
        take(ledger, manifest.generation, manifest.end_lsn, table.claims)
    for chunk, reason in rejected.items():
        chunks.reject(ledger, chunk, reason)
    if not again:
        for table in taking:
            chunks.require_sweeps(ledger, table.sweeps)


def _is_registered(ledger: Ledger, manifest: BatchManifest) -> bool:
    return ledger.holds(
        "SELECT 1 FROM tidemark.batches "
        "WHERE pipeline = %s AND generation = %s AND start_lsn = %s AND end_lsn = %s AND attempt = %s",
        (manifest.pipeline, manifest.generation, manifest.start_lsn, manifest.end_lsn, manifest.attempt),
    )


def _extend_chain(ledger: Ledger, manifest: BatchManifest) -> None:
    """R4's compare-and-set: the open generation's staged LSN must equal the batch's start, and becomes its end."""
    heartbeat_at = None if manifest.heartbeat_lsn is None else manifest.created_at
    extended = ledger.execute(
        """
        UPDATE tidemark.generations
           SET staged_lsn = %(end)s, heartbeat_lsn = coalesce(%(heartbeat)s, heartbeat_lsn),
               heartbeat_at = coalesce(%(heartbeat_at)s::timestamptz, heartbeat_at),
               batches = batches + 1, registered_at = clock_timestamp(),
               last_committed_at = greatest(last_committed_at, %(committed_at)s::timestamptz)
         WHERE pipeline = %(pipeline)s AND number = %(generation)s AND staged_lsn = %(start)s
           AND number = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
        """,
        {
            "generation": manifest.generation,
            "start": manifest.start_lsn,
            "end": manifest.end_lsn,
            "heartbeat": manifest.heartbeat_lsn,
            "heartbeat_at": heartbeat_at,
            "committed_at": manifest.last_committed_at,
        },
    ).rowcount
    if extended != 1:
        staged_lsn = generations.required(ledger).staged_lsn
        raise DrainOvertaken(pipeline=manifest.pipeline, start_lsn=manifest.start_lsn, staged_lsn=staged_lsn)


def _keep_mark(ledger: Ledger, mark: TableMark, horizon: int | None) -> None:
    """Give the table what the drain found out about it."""
    tables.add(ledger, mark.table)
    if mark.state == "parked":
        merge_states.park(ledger, mark.table, ErrorRecord(mark.kind, mark.move, mark.message))
    else:
        backfill_marks.mark(ledger, mark.table, mark.kind, mark.message, mark.columns, horizon=horizon)


def _insert_batch(ledger: Ledger, manifest: BatchManifest, manifest_path: str, touched: list[TableChanges]) -> None:
    ledger.insert(
        "batches",
        **fields_of(manifest, "generation start_lsn end_lsn attempt run_id created_at transaction_count"),
        **fields_of(manifest, "skipped_messages heartbeat_lsn last_committed_at"),
        manifest=manifest_path,
        changes=sum(t.rows for t in touched),
        bytes=sum(f.bytes for t in touched for f in t.files),
    )


def _insert_tables(ledger: Ledger, manifest: BatchManifest, touched: Sequence[TableChanges]) -> None:
    ledger.execute(
        """
        INSERT INTO tidemark.batch_tables
               (pipeline, generation, start_lsn, end_lsn, "table", files, counts, converted, unchanged, moved, changes,
                bytes, max_xid, first_committed_at, claims, sweeps)
        SELECT %s, %s, %s, %s, f.*
          FROM unnest(%s::text[], %s::jsonb[], %s::jsonb[], %s::jsonb[], %s::bigint[], %s::bigint[], %s::bigint[],
                      %s::bigint[], %s::bigint[], %s::timestamptz[], %s::jsonb[], %s::jsonb[]) f
        """,
        (
            manifest.pipeline,
            manifest.generation,
            manifest.start_lsn,
            manifest.end_lsn,
            [t.table for t in touched],
            [Jsonb([f.to_json() for f in t.files]) for t in touched],
            [Jsonb(t.counts) for t in touched],
            [Jsonb(t.converted) for t in touched],
            [t.unchanged for t in touched],
            [t.moved for t in touched],
            [t.rows for t in touched],
            [sum(f.bytes for f in t.files) for t in touched],
            [t.max_xid for t in touched],
            [t.first_committed_at for t in touched],
            [Jsonb([claim.to_json() for claim in t.claims]) for t in touched],
            [Jsonb([sweep.to_json() for sweep in t.sweeps]) for t in touched],
        ),
    )


def _keep_versions(ledger: Ledger, manifest: BatchManifest, streamed: set[tuple[str, int]]) -> list[TableSchema]:
    """Store the manifest's versions. `streamed` are table and version of those with changes in the batch, as
    opposed to rows of chunks. Returns the versions whose first changes are in this batch."""
    schemas = {(str(schema.table), schema.version): schema for schema in manifest.schemas}
    rows = ledger.execute(
        """
        SELECT v."table", v.version, v.definition, v.streamed FROM tidemark.schema_versions v
          JOIN unnest(%s::text[], %s::int[]) AS f ("table", version)
               ON v.pipeline = %s AND v."table" = f."table" AND v.version = f.version
        """,
        ([table for table, _ in schemas], [version for _, version in schemas], manifest.pipeline),
    ).fetchall()
    stored = {(table, version): (definition, is_streamed) for table, version, definition, is_streamed in rows}
    for (table, version), schema in schemas.items():
        definition, is_streamed = stored.get((table, version), (None, True))
        if definition is not None and not TableSchema.from_json(definition).same_shape(schema):
            clash = SchemaVersionClash if is_streamed else SchemaVersionTaken
            raise clash(version=version, table=schema.table, pipeline=manifest.pipeline)
    new = {at: schema for at, schema in schemas.items() if at not in stored}
    ledger.execute(
        """
        INSERT INTO tidemark.schema_versions
               (pipeline, generation, start_lsn, "table", version, definition, streamed)
        SELECT %s, %s, %s, f.* FROM unnest(%s::text[], %s::int[], %s::jsonb[], %s::bool[]) f
        """,
        (
            manifest.pipeline,
            manifest.generation,
            manifest.start_lsn,
            [table for table, _ in new],
            [version for _, version in new],
            [Jsonb(schema.to_json()) for schema in new.values()],
            [at in streamed for at in new],
        ),
    )
    first_streamed = [at for at, (_, is_streamed) in stored.items() if at in streamed and not is_streamed]
    ledger.execute(
        """
        UPDATE tidemark.schema_versions v SET streamed = true, generation = %s, start_lsn = %s
          FROM unnest(%s::text[], %s::int[]) AS f ("table", version)
         WHERE v.pipeline = %s AND v."table" = f."table" AND v.version = f.version
        """,
        (
            manifest.generation,
            manifest.start_lsn,
            [table for table, _ in first_streamed],
            [version for _, version in first_streamed],
            manifest.pipeline,
        ),
    )
    return [schemas[at] for at in (*new, *first_streamed) if at in streamed]


def of_run(ledger: Ledger, run_id: str) -> list[Batch]:
    """The batches that this run registered, in order."""
    return _batches(ledger, "pipeline = %s AND run_id = %s", (ledger.pipeline, run_id))


def has_heartbeat(ledger: Ledger, run_id: str) -> bool:
    """Whether a batch of the run ends at a heartbeat."""
    return ledger.holds(
        "SELECT 1 FROM tidemark.batches WHERE pipeline = %s AND run_id = %s AND heartbeat_lsn IS NOT NULL LIMIT 1",
        (ledger.pipeline, run_id),
    )


def after(ledger: Ledger, generation: int, lsn: Lsn) -> list[Batch]:
    """The generation's batches that end above `lsn`, in order."""
    return _batches(ledger, "pipeline = %s AND generation = %s AND end_lsn > %s", (ledger.pipeline, generation, lsn))


def _batches(ledger: Ledger, condition: str, values: tuple[Any, ...]) -> list[Batch]:
    # OFFSET 0: without statistics the order would be read off the primary key, over all batches.
    query = f"""
        SELECT {_COLUMNS} FROM (SELECT * FROM tidemark.batches WHERE {condition} OFFSET 0) b
         ORDER BY generation, end_lsn
        """
    return ledger.records(class_row(Batch), query.encode(), values)


def unapplied(ledger: Ledger, names: Iterable[str] | None = None) -> list[TouchedTable]:
    """The registered and unapplied batches of these tables (default: all, whatever their state), ordered by
    generation, table and LSN.

    Batches of an older generation come first: they must be merged before those of a newer one (R1).
    """
    tables = None if names is None else sorted(names)
    return _touched(
        ledger,
        'tidemark.unapplied b WHERE b.pipeline = %s AND (%s::text[] IS NULL OR b."table" = ANY(%s))',
        (ledger.pipeline, tables, tables),
    )


def unapplied_counts(ledger: Ledger, names: Iterable[str]) -> dict[str, int]:
    """The number of unapplied batches of each table, by name; tables without any are left out."""
    rows = ledger.execute(
        'SELECT "table", count(*) FROM tidemark.unapplied '
        'WHERE pipeline = %s AND "table" = ANY(%s) GROUP BY 1 ORDER BY 1',
        (ledger.pipeline, sorted(names)),
    )
    return dict(rows.fetchall())


def ending_at(ledger: Ledger, generation: int, end_lsn: Lsn) -> Batch | None:
    """The generation's batch that ends at this LSN; None if there is none."""
    condition = "pipeline = %s AND generation = %s AND end_lsn = %s"
    return next(iter(_batches(ledger, condition, (ledger.pipeline, generation, end_lsn))), None)


def newest_xid(ledger: Ledger, system_identifier: str) -> int | None:
    """The highest staged transaction id of the server, retired batches included; None without any."""
    return ledger.value(
        """
        SELECT max(greatest(b.max_xid, g.retired_xid)) FROM tidemark.generations g
          LEFT JOIN tidemark.batch_tables b ON b.pipeline = g.pipeline AND b.generation = g.number
         WHERE g.pipeline = %s AND g.system_identifier = %s
        """,
        (ledger.pipeline, system_identifier),
    )


def evidence(ledger: Ledger, generation: int, table: str, before: Lsn, unseen: NeededEvidence) -> list[TouchedTable]:
    """The table's batches that end at or below `before` and matter to chunks above it (R7), in order."""
    # Each question has an index of its own; OR between them would read every batch of the table.
    return _touched(
        ledger,
        """
        tidemark.batch_tables b
         WHERE b.pipeline = %(pipeline)s AND b.generation = %(generation)s AND b."table" = %(table)s
           AND b.retired_at IS NULL
           AND b.end_lsn = ANY(ARRAY(
               SELECT x.end_lsn FROM tidemark.batch_tables x
                WHERE x.pipeline = %(pipeline)s AND x.generation = %(generation)s AND x."table" = %(table)s
                  AND x.end_lsn <= %(before)s AND x.max_xid >= %(xmin)s
                UNION
               SELECT x.end_lsn FROM tidemark.batch_tables x
                WHERE x.pipeline = %(pipeline)s AND x.generation = %(generation)s AND x."table" = %(table)s
                  AND x.end_lsn <= %(before)s AND x.end_lsn > %(point)s AND x.max_xid IS NOT NULL
                UNION
               SELECT x.end_lsn FROM tidemark.batch_tables x
                WHERE x.pipeline = %(pipeline)s AND x.generation = %(generation)s AND x."table" = %(table)s
                  AND x.end_lsn <= %(before)s AND x.claims <> '[]'
                  AND EXISTS (SELECT 1 FROM jsonb_array_elements(x.claims) c WHERE c ->> 'backfill' = ANY(%(swept)s))))
        """,
        {
            "generation": generation,
            "table": table,
            "before": before,
            "xmin": unseen.xmin,
            "point": unseen.point,
            "swept": sorted(unseen.swept),
        },
    )


def _touched(ledger: Ledger, clauses: str, values: Params) -> list[TouchedTable]:
    query = f"""
        SELECT b.generation, b."table", b.start_lsn, b.end_lsn, b.files, b.counts, b.converted, b.unchanged, b.moved,
               b.max_xid, b.claims, b.sweeps
          FROM {clauses} ORDER BY b.generation, b."table", b.end_lsn
        """
    return [
        TouchedTable(
            number,
            table,
            start,
            end,
            tuple(StagedFile.from_json(f) for f in files),
            counts,
            converted,
            unchanged,
            moved,
            max_xid,
            tuple(Claim.from_json(c) for c in claims),
            tuple(Sweep.from_json(s) for s in sweeps),
        )
        for number, table, start, end, files, counts, converted, unchanged, moved, max_xid, claims, sweeps in (
            ledger.execute(query.encode(), values)
        )
    ]


def truncating(ledger: Ledger, generation: int, table: str) -> list[StagedFile]:
    """The files, of batches that are not retired and hold a truncate of the table, newest first."""
    rows = ledger.execute(
        """
        SELECT files FROM tidemark.batch_tables
         WHERE pipeline = %s AND generation = %s AND "table" = %s AND retired_at IS NULL
           AND counts ->> 'truncate' IS NOT NULL
         ORDER BY end_lsn DESC
        """,
        (ledger.pipeline, generation, table),
    )
    return [StagedFile.from_json(file) for (files,) in rows for file in files]


# Batches that are looked at for how many changes a table has.
_LATEST = 2000


@dataclass(frozen=True, slots=True)
class RecentChanges:
    """The number of a table's changes that were staged in the last seconds."""

    changes: int
    over_s: float


def recent_changes(ledger: Ledger, generation: int, table: str) -> RecentChanges:
    """The changes of the last day, or of the latest batches with the table if these cover less."""
    row = ledger.row(
        """
        SELECT coalesce(sum(t.changes) FILTER (WHERE t.registered_at > clock_timestamp() - interval '1 day'),
                        0)::bigint,
               extract(epoch FROM least(interval '1 day', CASE WHEN count(*) = %s
                                                               THEN clock_timestamp() - min(t.registered_at) END))
          FROM (SELECT x.changes, b.registered_at FROM tidemark.batch_tables x
                  JOIN tidemark.batches b USING (pipeline, generation, end_lsn)
                 WHERE x.pipeline = %s AND x.generation = %s AND x."table" = %s
                 ORDER BY x.end_lsn DESC LIMIT %s) t
        """,
        (_LATEST, ledger.pipeline, generation, table, _LATEST),
    )
    changes, over_s = row
    return RecentChanges(changes, float(over_s))


def newest_files(ledger: Ledger, generation: int, table: str, below: Lsn, number: int) -> list[list[StagedFile]]:
    """The files of the table's newest batches that end at or below an LSN and are not retired, newest batch first."""
    rows = ledger.execute(
        """
        SELECT files FROM tidemark.batch_tables
         WHERE pipeline = %s AND generation = %s AND "table" = %s AND end_lsn <= %s AND retired_at IS NULL
           AND changes > 0
         ORDER BY end_lsn DESC LIMIT %s
        """,
        (ledger.pipeline, generation, table, below, number),
    )
    return [[StagedFile.from_json(file) for file in files] for (files,) in rows]


def previous_ends(ledger: Ledger, generation: int, starts: Mapping[str, Lsn]) -> dict[str, Lsn | None]:
    """Per table, the end of the generation's last batch with the table that ends at or below the given start. None
    if there is none, or if the table began anew after it. It is the `after` of a plan whose first batch for the
    table starts there."""
    rows = ledger.execute(
        """
        SELECT f."table",
               (SELECT b.end_lsn FROM tidemark.batch_tables b
                 WHERE b.pipeline = %(pipeline)s AND b.generation = %(generation)s AND b."table" = f."table"
                   AND b.end_lsn <= f.start_lsn
                   AND b.end_lsn > coalesce((SELECT p.begun_lsn FROM tidemark.positions p
                                              WHERE p.pipeline = %(pipeline)s AND p.generation = %(generation)s
                                                AND p."table" = f."table"), '0/0')
                 ORDER BY b.end_lsn DESC LIMIT 1)
          FROM unnest(%(tables)s::text[], %(starts)s::text[]::pg_lsn[]) AS f ("table", start_lsn)
        """,
        {
            "generation": generation,
            "tables": list(starts),
            "starts": [str(start) for start in starts.values()],
        },
    )
    return dict(rows.fetchall())
