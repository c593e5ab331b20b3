"""What one batch holds, frozen: `BatchManifest` <-> manifest.json (R4).

A manifest is the only contract between drain and merge, and it is self-sufficient: range, files with sizes and
checksums, the table definitions the files follow, and enough about the source to rebuild the ledger. Once registered it
never changes. Pure: reading and writing the JSON is `staging.store`'s business.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tidemark.formats import format_version
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema

# 2: `purpose` of claims and sweeps, `parts` of sweeps; 3: `keys` of sweeps; 4: tables' ids may have a place;
# 5: `columns` of claims and marks
FORMAT = 5
OLDEST = 1

# What a chunk was read for: to be merged; to be compared with the target; to be compared and merged.
Purpose = Literal["fill", "verify", "repair"]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One immutable Parquet file; `path` is relative to the lake root, `sha256` is of the file's bytes."""

    path: str
    rows: int
    bytes: int
    sha256: str
    schema_version: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A chunk whose high watermark lies in the batch, with everything that the merge needs of it (R7).

    `snapshot` is the chunk's `pg_current_snapshot()` as text; where `consistent_point` is set, the chunk was read under
    an exported snapshot, and what committed below that LSN is what it saw. `watermark_lsn` and `watermark_at` are the
    commit of the high watermark: the order key of the chunk's rows. What committed below `low_lsn` was in the WAL
    before the read began; it serves the audit alone. `files` hold the rows (`formats.columns.chunk_schema`).
    `columns` are the numbers of the columns that were read besides the key, None where all were. A manifest from before
    verification has no `purpose`: its chunks are merged.
    """

    backfill: str
    chunk: str
    attempt: str
    watermark_lsn: Lsn
    watermark_at: str
    low_lsn: Lsn
    snapshot: str
    consistent_point: Lsn | None
    rows: int
    files: tuple[StagedFile, ...]
    purpose: Purpose = "fill"
    columns: tuple[int, ...] | None = None

    @property
    def key_range(self) -> str:
        """The range of the backfill that the chunk is of: one walk along it, by one attempt, reads no key twice."""
        return self.chunk.rpartition("-")[0]

    def to_json(self) -> dict[str, Any]:
        return {
            "backfill": self.backfill,
            "chunk": self.chunk,
            "attempt": self.attempt,
            "watermark_lsn": str(self.watermark_lsn),
            "watermark_at": self.watermark_at,
            "low_lsn": str(self.low_lsn),
            "snapshot": self.snapshot,
            "consistent_point": None if self.consistent_point is None else str(self.consistent_point),
            "rows": self.rows,
            "files": [_file_json(f) for f in self.files],
            "purpose": self.purpose,
            "columns": None if self.columns is None else list(self.columns),
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Claim:
        point, columns = raw["consistent_point"], raw.get("columns")
        return cls(
            backfill=raw["backfill"],
            chunk=raw["chunk"],
            attempt=raw["attempt"],
            watermark_lsn=Lsn.parse(raw["watermark_lsn"]),
            watermark_at=raw["watermark_at"],
            low_lsn=Lsn.parse(raw["low_lsn"]),
            snapshot=raw["snapshot"],
            consistent_point=None if point is None else Lsn.parse(point),
            rows=raw["rows"],
            files=tuple(StagedFile(**f) for f in raw["files"]),
            purpose=raw.get("purpose", "fill"),
            columns=None if columns is None else tuple(columns),
        )


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A part of a key's order, `(lower, upper]`, in PostgreSQL's texts; None is no bound."""

    lower: tuple[str, ...] | None
    upper: tuple[str, ...] | None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> KeyPart:
        lower, upper = (None if raw[side] is None else tuple(raw[side]) for side in ("lower", "upper"))
        return cls(lower, upper)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The batch claims the last chunk of a backfill of the whole table: what it read nowhere is removed.

    `snapshot` is the one that was recorded before the backfill's first chunk. `chunks` is how many it has: with one of
    them missing, the rows that it read would be removed. `parts` are what it read where that is not the whole table;
    the order of their keys is that of the stored ones. `keys` are those that it looked for, in PostgreSQL's texts and
    the key's order, where it was these alone: of them, those that it did not find are removed.
    """

    backfill: str
    snapshot: str
    chunks: int
    purpose: Purpose = "fill"
    parts: tuple[KeyPart, ...] | None = None
    keys: tuple[tuple[str, ...], ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Sweep:
        parts, keys = raw.get("parts"), raw.get("keys")
        return cls(
            backfill=raw["backfill"],
            snapshot=raw["snapshot"],
            chunks=raw["chunks"],
            purpose=raw.get("purpose", "fill"),
            parts=None if parts is None else tuple(KeyPart.from_json(part) for part in parts),
            keys=None if keys is None else tuple(map(tuple, keys)),
        )


@dataclass(frozen=True, slots=True)
class TableChanges:
    """One table's part of a batch.

    `counts` maps an operation (insert, update, delete, truncate) to its changes. `unchanged` counts changes with at
    least one unchanged-TOAST column, `moved` changes of the key; both tell the merge which paths it needs. `converted`
    maps a column to the number of values its target type could not hold (R8). `max_xid` is the highest transaction id
    of the changes, None if there are none: a snapshot whose xmin is above it has seen them all. A batch may touch a
    table by `claims` alone.
    """

    table: str
    files: tuple[StagedFile, ...]
    counts: dict[str, int]
    unchanged: int = 0
    moved: int = 0
    converted: dict[str, int] = field(default_factory=dict)
    max_xid: int | None = None
    claims: tuple[Claim, ...] = ()
    sweeps: tuple[Sweep, ...] = ()

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class TableMark:
    """What the drain found out about a table, and the ledger keeps (R6, R11): it rides on the manifest
    so that registering the batch, or registering it again after the ledger was restored, marks the
    table in the same transaction.

    `state` "parked" suspends the merge with an error of the given kind and move; "needs_backfill" only marks the table.
    `message` holds no row's value. `columns` are the numbers of those that alone want a backfill, empty where all do.
    """

    table: str
    state: Literal["parked", "needs_backfill"]
    kind: str
    move: str
    message: str
    columns: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> TableMark:
        return cls(**{**raw, "columns": tuple(raw.get("columns", ()))})


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Where the changes came from; another value of the first two is another generation."""

    system_identifier: str
    timeline: int
    slot: str
    server_version: int


@dataclass(frozen=True, slots=True)
class BatchManifest:
    """The whole transactions of `[start_lsn, end_lsn)` of one generation, staged together (R2)."""

    pipeline: str
    generation: int
    start_lsn: Lsn
    end_lsn: Lsn
    attempt: str
    run_id: str
    created_at: str
    source: SourceIdentity
    tables: tuple[TableChanges, ...]
    schemas: tuple[TableSchema, ...]
    transactions: StagedFile | None
    transaction_count: int
    heartbeat_lsn: Lsn | None = None
    last_committed_at: str | None = None
    skipped_messages: int = 0
    fingerprints: dict[str, Any] = field(default_factory=dict)
    marks: tuple[TableMark, ...] = ()

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "pipeline": self.pipeline,
                "generation": self.generation,
                "start_lsn": str(self.start_lsn),
                "end_lsn": str(self.end_lsn),
                "attempt": self.attempt,
                "run_id": self.run_id,
                "created_at": self.created_at,
                "source": {
                    "system_identifier": self.source.system_identifier,
                    "timeline": self.source.timeline,
                    "slot": self.source.slot,
                    "server_version": self.source.server_version,
                },
                "tables": [
                    {
                        "table": t.table,
                        "files": [_file_json(f) for f in t.files],
                        "counts": t.counts,
                        "unchanged": t.unchanged,
                        "moved": t.moved,
                        "converted": t.converted,
                        "max_xid": t.max_xid,
                        "claims": [c.to_json() for c in t.claims],
                        "sweeps": [s.to_json() for s in t.sweeps],
                    }
                    for t in self.tables
                ],
                "schemas": [s.to_json() for s in self.schemas],
                "transactions": None if self.transactions is None else _file_json(self.transactions),
                "transaction_count": self.transaction_count,
                "heartbeat_lsn": None if self.heartbeat_lsn is None else str(self.heartbeat_lsn),
                "last_committed_at": self.last_committed_at,
                "skipped_messages": self.skipped_messages,
                "fingerprints": self.fingerprints,
                "marks": [asdict(mark) for mark in self.marks],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> BatchManifest:
        """Raises ValueError if the text is no manifest of a known format, as a half-written file is none, and
        FormatIsNewer if a newer version wrote it."""
        try:
            raw = json.loads(text)
            format_version.require("batch manifest", raw["format"], oldest=OLDEST, newest=FORMAT)
            return cls(
                pipeline=raw["pipeline"],
                generation=raw["generation"],
                start_lsn=Lsn.parse(raw["start_lsn"]),
                end_lsn=Lsn.parse(raw["end_lsn"]),
                attempt=raw["attempt"],
                run_id=raw["run_id"],
                created_at=raw["created_at"],
                source=SourceIdentity(**raw["source"]),
                tables=tuple(
                    TableChanges(
                        table=t["table"],
                        files=tuple(StagedFile(**f) for f in t["files"]),
                        counts=t["counts"],
                        unchanged=t["unchanged"],
                        moved=t["moved"],
                        converted=t["converted"],
                        max_xid=t["max_xid"],
                        claims=tuple(Claim.from_json(c) for c in t["claims"]),
                        sweeps=tuple(Sweep.from_json(s) for s in t["sweeps"]),
                    )
                    for t in raw["tables"]
                ),
                schemas=tuple(TableSchema.from_json(s) for s in raw["schemas"]),
                transactions=None if raw["transactions"] is None else StagedFile(**raw["transactions"]),
                transaction_count=raw["transaction_count"],
                heartbeat_lsn=None if raw["heartbeat_lsn"] is None else Lsn.parse(raw["heartbeat_lsn"]),
                last_committed_at=raw["last_committed_at"],
                skipped_messages=raw["skipped_messages"],
                fingerprints=raw["fingerprints"],
                marks=tuple(TableMark.from_json(m) for m in raw["marks"]),
            )
        except (KeyError, TypeError, json.JSONDecodeError) as broken:
            raise ValueError(f"not a complete manifest ({type(broken).__name__})") from None


def _file_json(file: StagedFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "rows": file.rows,
        "bytes": file.bytes,
        "sha256": file.sha256,
        "schema_version": file.schema_version,
    }
