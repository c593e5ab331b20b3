"""Defines manifest.json, which describes one staged batch: `BatchManifest` (R4). Pure.

A manifest is the only contract between drain and merge, and it is self-sufficient: range, files with sizes and
checksums, the table definitions the files follow, and enough about the source to rebuild the ledger. Once registered it
never changes. `storage.store` reads and writes the file.
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
    """One immutable Parquet file; `path` is relative to the lake root, `sha256` is of the file's bytes.

    `first_committed_at` and `last_committed_at` are the least and the greatest commit time of its changes, None for a
    file of something else.
    """

    path: str
    rows: int
    bytes: int
    sha256: str
    schema_version: int = 0
    first_committed_at: str | None = None
    last_committed_at: str | None = None


class Claim(JsonRecord, frozen=True):
    """A chunk whose high watermark lies in the batch, with everything that the merge needs of it (R7).

    - `snapshot` is the chunk's `pg_current_snapshot()` as text.
    - `consistent_point` is set if the chunk was read under an exported snapshot. The chunk then contains exactly the
      transactions that committed below this LSN.
    - `watermark_lsn` and `watermark_at` are the commit of the high watermark: the order key of the chunk's rows.
    - `low_lsn` is the LSN of the low watermark. Transactions that committed below it were in the WAL before the read
      began. Only audits use it.
    - `files` hold the rows (`formats.columns.chunk_schema`).
    - `columns` are the numbers of the columns that were read besides the key, None if all were read.
    - `converted` is as in `TableChanges`.
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
        """The range of the backfill to which the chunk belongs. One attempt reads no key of a range twice."""
        return self.chunk.rpartition("-")[0]


class KeyPart(JsonRecord, frozen=True):
    """A part of a key's order, `(lower, upper]`, in PostgreSQL's texts; None is no bound."""

    lower: tuple[str, ...] | None
    upper: tuple[str, ...] | None


class Sweep(JsonRecord, frozen=True):
    """The removal of target rows that a backfill did not read. The batch that claims its last chunk has it.

    - `snapshot` was recorded before the backfill's first chunk.
    - `chunks` is the number of its chunks. If one were missing, the rows that it read would be removed.
    - `parts` are the parts of the table that it read, None for the whole table. Keys are ordered as in the target.
    - `keys` are the keys that it searched, if it read only these, in PostgreSQL's texts and the key's order. Those that
      do not exist at the source are removed.
    """

    backfill: str
    snapshot: str
    chunks: int
    purpose: Purpose = "fill"
    parts: tuple[KeyPart, ...] | None = None
    keys: tuple[tuple[str, ...], ...] | None = None


class TableChanges(JsonRecord, frozen=True):
    """One table's part of a batch.

    - `counts` maps an operation (insert, update, delete, truncate) to the number of its changes.
    - `unchanged` counts changes with at least one unchanged TOAST column, `moved` changes of the key. The merge chooses
      its way by both.
    - `converted` maps a column to the number of values that its target type could not hold (R8).
    - `max_xid` is the highest transaction id of the changes, None if there are none. A snapshot with a higher xmin
      contains all of them.
    - `first_committed_at` and `last_committed_at` are the first and the last commit time of their transactions.
    - `claims`: a batch may contain chunks of a table and no changes.
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
    """A new state of a table that the drain decided (R6, R11). Registering the batch marks the table in the ledger, in
    the same transaction. A batch that is registered again, after the ledger was restored, marks it again.

    - `state` "parked" suspends the merge, with an error of this `kind` and `move`. "needs_backfill" only marks the
      table.
    - `message` contains no row's value.
    - `columns` are the numbers of the columns that need the backfill, empty for all columns.
    """

    table: str
    state: Literal["parked", "needs_backfill"]
    kind: str
    move: str
    message: str
    columns: tuple[int, ...] = ()


class SourceIdentity(JsonRecord, frozen=True):
    """The server and slot of the changes. Another system identifier or timeline is another generation."""

    system_identifier: str
    timeline: int
    slot: str
    server_version: int


class BatchManifest(JsonFile, frozen=True):
    """The whole transactions of `[start_lsn, end_lsn)` of one generation, staged together (R2).

    `mark_horizon` is a transaction id from after the marks' causes: `backfill_marks.mark` says what waits for it.
    """

    KIND: ClassVar[str] = "batch manifest"
    FORMAT: ClassVar[int] = 3

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
    mark_horizon: int | None = None
