"""Manifests and plans as small as a test needs them; no file behind them unless the test writes one."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.formats.manifest import BatchManifest, Claim, SourceIdentity, StagedFile, Sweep, TableChanges, TableMark
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column, TableSchema

SOURCE = SourceIdentity(system_identifier="7000000000000000001", timeline=1, slot="shop", server_version=180000)


def schema_of(table: str, version: int = 1, columns: tuple[str, ...] = ("id",)) -> TableSchema:
    """A table of integer columns, the first of which is its key."""
    return TableSchema(
        table=TableName.parse(table),
        version=version,
        relation_oid=16384,
        identity="default",
        key=columns[:1],
        columns=tuple(Column(name, "integer", 23, -1, "int") for name in columns),
    )


def manifest_of(
    start: int,
    end: int,
    *tables: str,
    pipeline: str = "shop",
    generation: int = 1,
    attempt: str = "a1",
    run_id: str = "run1",
    source: SourceIdentity = SOURCE,
    heartbeat: bool = False,
    marks: tuple[TableMark, ...] = (),
    schemas: tuple[TableSchema, ...] | None = None,
    fingerprints: dict[str, Fingerprint] | None = None,
    max_xid: int | None = None,
    claims: Mapping[str, tuple[Claim, ...]] | None = None,
    sweeps: Mapping[str, tuple[Sweep, ...]] | None = None,
) -> BatchManifest:
    """One batch with ten inserts in one file for each of `tables`; of those in `claims` alone without changes."""
    claims, sweeps = claims or {}, sweeps or {}
    folder = f"{pipeline}/staging/g{generation}/{Lsn(start).hex16}-{attempt}"
    return BatchManifest(
        pipeline=pipeline,
        generation=generation,
        start_lsn=Lsn(start),
        end_lsn=Lsn(end),
        attempt=attempt,
        run_id=run_id,
        created_at="2026-01-02T03:04:05+00:00",
        source=source,
        tables=tuple(
            TableChanges(
                table=table,
                files=(StagedFile(f"{folder}/{table}/v1-0.parquet", rows=10, bytes=4, sha256="00", schema_version=1),),
                counts={"insert": 10},
                max_xid=max_xid,
                claims=claims.get(table, ()),
                sweeps=sweeps.get(table, ()),
            )
            for table in tables
        )
        + tuple(
            TableChanges(table, (), {}, claims=claimed, sweeps=sweeps.get(table, ()))
            for table, claimed in claims.items()
            if table not in tables
        ),
        schemas=tuple(schema_of(table) for table in tables) if schemas is None else schemas,
        transactions=None,
        transaction_count=1,
        heartbeat_lsn=Lsn(end) if heartbeat else None,
        last_committed_at="2026-01-02T03:04:00+00:00",
        marks=marks,
        fingerprints=fingerprints or {},
    )


def path_of(manifest: BatchManifest) -> str:
    """Where the manifest lies below the lake root."""
    folder = f"{manifest.pipeline}/staging/g{manifest.generation}/{manifest.start_lsn.hex16}-{manifest.attempt}"
    return f"{folder}/manifest.json"


def plan_of(name: str, *manifests: BatchManifest) -> MergePlan:
    """The plan that applies every table of these batches, in order."""
    tables = sorted({t.table for m in manifests for t in m.tables})
    return MergePlan(
        plan=name,
        pipeline=manifests[0].pipeline,
        generation=manifests[0].generation,
        lake="/lake",
        threads=1,
        tables=tuple(
            PlannedTable(
                table=table,
                after=None,
                schemas=(schema_of(table),),
                batches=tuple(
                    PlannedBatch(
                        start_lsn=m.start_lsn,
                        end_lsn=m.end_lsn,
                        files=t.files,
                        unchanged=0,
                        moved=0,
                        truncates=0,
                    )
                    for m in manifests
                    for t in m.tables
                    if t.table == table
                ),
            )
            for table in tables
        ),
    )
