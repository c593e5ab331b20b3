"""Backfills, ranges and chunks as the readers would leave them in the ledger; no file behind a chunk unless the test
writes one."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_OID, uuid5

from tidemark.formats import layout
from tidemark.formats.manifest import Claim, StagedFile
from tidemark.ledger import leases
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill, Key, Range
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.lsn import Lsn
from tidemark.names import TableName

Book = Ledger

# The first half of the key's order and the second.
HALVES = (Range(None, ("10",)), Range(("10",), None))


# Whether anybody waits for a lock.
WAITING = b"SELECT 1 FROM pg_locks WHERE NOT granted"


def backfill_of(table: str, backfill: str = "b1", **fields: Any) -> Backfill:
    values: dict[str, Any] = {
        "pipeline": "shop",
        "backfill": backfill,
        "table": table,
        "generation": 1,
        "mode": "chunks",
        "row_filter": None,
        "chunk_rows": 1000,
        "run_id": "backfill1",
        "snapshot": "700:700:",
        "timeline": 1,
        "snapshot_lsn": Lsn(40),
        "estimated_rows": 20,
        "sweeps": True,
        **fields,
    }
    return Backfill(**values)


def open_backfill(book: Book, table: str, backfill: str = "b1", *ranges: Range, **fields: Any) -> Backfill:
    """Open it, with one range from end to end where none is given."""
    new_backfill = backfill_of(table, backfill, **fields)
    assert backfills.create(book, new_backfill, ranges or (Range(),))
    return new_backfill


def chunk_of(
    of_backfill: Backfill, chunk: str = "1-1", upper: Key | None = None, lower: Key | None = None, **fields: Any
) -> ReadChunk:
    attempt = str(uuid5(NAMESPACE_OID, f"{of_backfill.backfill}/{chunk}"))
    name = TableName.parse(of_backfill.table)
    folder = layout.chunk_folder(of_backfill.pipeline, of_backfill.backfill, name, chunk, attempt)
    values: dict[str, Any] = {
        "pipeline": of_backfill.pipeline,
        "backfill": of_backfill.backfill,
        "chunk": chunk,
        "attempt": attempt,
        "table": of_backfill.table,
        "generation": of_backfill.generation,
        "range": int(chunk.partition("-")[0]),
        "lower": lower,
        "upper": upper,
        "snapshot": "710:712:711",
        "timeline": of_backfill.timeline,
        "consistent_point": None,
        "fingerprint": {},
        "low_lsn": Lsn(50),
        "read_lsn": Lsn(55),
        "files": (StagedFile(layout.chunk_file(folder, name, 1, 0), rows=5, bytes=4, sha256="00", schema_version=1),),
        "converted": {},
        "rows": 5,
        "bytes": 4,
        "seconds": 0.5,
        **fields,
    }
    return ReadChunk(**values)


def record(
    ledger: str, chunk: ReadChunk, *, cursor_before: Key | None = None, done: bool, holder: str = "read/1"
) -> bool:
    """What a reader does once a chunk's files are durable."""
    name = leases.of_range(chunk.backfill, chunk.range)
    with leases.hold(ledger, chunk.pipeline, name, holder) as lease, open_ledger(ledger, chunk.pipeline) as book:
        return chunks.record(book, lease, chunk, cursor_before=cursor_before, done=done)


def claim_of(chunk: ReadChunk, watermark: int) -> Claim:
    """The claim of a batch whose high watermark of the chunk commits at `watermark`."""
    return Claim(
        backfill=chunk.backfill,
        chunk=chunk.chunk,
        attempt=chunk.attempt,
        watermark_lsn=Lsn(watermark),
        watermark_at="2026-01-02T03:04:00+00:00",
        low_lsn=chunk.low_lsn,
        snapshot=chunk.snapshot,
        consistent_point=chunk.consistent_point,
        rows=chunk.rows,
        files=chunk.files,
    )
