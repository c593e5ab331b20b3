"""Defines manifest.json, which describes one staged batch: `BatchManifest` (R4). Pure.

A manifest is the only contract between drain and merge, and it is self-sufficient: range, files with sizes and
checksums, the table definitions the files follow, and enough about the source to rebuild the ledger. Once registered it
never changes. Pure: reading and writing the JSON is `storage.store`'s business.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import field

from tidemark.formats.json_file import JsonFile
from tidemark.lsn import Lsn
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.strict_json import JsonRecord

# What a chunk was read for: to be merged; to be compared with the target; to be compared and merged.
Purpose = Literal["fill", "verify", "repair"]


class StagedFile(JsonRecord, frozen=True):
    """One immutable Parquet file; `path` is relative to the lake root, `sha256` is of the file's bytes."""

    path: str
    rows: int
    bytes: int
    sha256: str
    schema_version: int = 0


class Claim(JsonRecord, frozen=True):
    """A chunk whose high watermark lies in the batch, with everything that the merge needs of it (R7).

    `snapshot` is the chunk's `pg_current_snapshot()` as text; where `consistent_point` is set, the chunk was read under
    an exported snapshot, and what committed below that LSN is what it saw. `watermark_lsn` and `watermark_at` are the
    commit of the high watermark: the order key of the chunk's rows. What committed below `low_lsn` was in the WAL
    before the read began; it serves the audit alone. `files` hold the rows (`formats.columns.chunk_schema`).
    `columns` are the numbers of the columns that were read besides the key, None where all were. `converted` is as of
    `TableChanges`.
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
    converted: dict[str, int] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.backfill, self.chunk, self.attempt))

    @property
    def key_range(self) -> str:
        """The range of the backfill that the chunk is of: one walk along it, by one attempt, reads no key twice."""
        return self.chunk.rpartition("-")[0]


class KeyPart(JsonRecord, frozen=True):
    """A part of a key's order, `(lower, upper]`, in PostgreSQL's texts; None is no bound."""

    lower: tuple[str, ...] | None
    upper: tuple[str, ...] | None


class Sweep(JsonRecord, frozen=True):
    """The batch claims the last chunk of a backfill of the whole table: rows that it read nowhere are removed.

    `snapshot` was recorded before the backfill's first chunk. `chunks` is their number: if one were missing, the rows
    that it read would be removed. `parts` are the parts of the table that it read, if not the whole; the order of their
    keys is that of the stored ones. `keys` are the keys that it searched, in PostgreSQL's texts and the key's order, if
    it read only these: those that it did not find are removed.
    """

    backfill: str
    snapshot: str
    chunks: int
    purpose: Purpose = "fill"
    parts: tuple[KeyPart, ...] | None = None
    keys: tuple[tuple[str, ...], ...] | None = None


class TableChanges(JsonRecord, frozen=True):
    """One table's part of a batch.

    `counts` maps an operation (insert, update, delete, truncate) to its changes. `unchanged` counts changes with at
    least one unchanged-TOAST column, `moved` changes of the key; both tell the merge which paths it needs. `converted`
    maps a column to the number of values its target type could not hold (R8). `max_xid` is the highest transaction id
    of the changes, None if there are none: a snapshot whose xmin is above it has seen them all. Their transactions
    committed from `first_committed_at` to `last_committed_at`. A batch may touch a table by `claims` alone.
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
    first_committed_at: str | None = None
    last_committed_at: str | None = None

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


class TableMark(JsonRecord, frozen=True):
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


class SourceIdentity(JsonRecord, frozen=True):
    """Where the changes came from; another value of the first two is another generation."""

    system_identifier: str
    timeline: int
    slot: str
    server_version: int


class BatchManifest(JsonFile, frozen=True):
    """The whole transactions of `[start_lsn, end_lsn)` of one generation, staged together (R2)."""

    KIND: ClassVar[str] = "batch manifest"

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
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    marks: tuple[TableMark, ...] = ()
