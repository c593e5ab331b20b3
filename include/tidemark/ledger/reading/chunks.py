"""Stores the ranges of a backfill with their cursors, and the chunks that were read of them.

    recorded ──its high watermark is in a batch that is registered──► claimed ──that batch is merged──► with a result
        └──its table was replaced──► rejected, and its rows are a new range

A chunk is recorded by a compare-and-set on its range's cursor, after its files are durable and before its high
watermark: of two readers of one range exactly one counts, and a watermark without a chunk belongs to a dead attempt.
`record`, `claim` and `reject` lock the backfill's row, and under this lock it is decided whether everything is read and
claimed, and so whether the sweep is due. The drain decides it earlier, when it writes the manifest. The decision still
holds at registration: once every range is done, only the drain can open another one; and a chunk recorded later has its
watermark after the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tidemark.errors import ClaimRefused
from tidemark.formats.layout import chunk_folder
from tidemark.formats.manifest import Claim, StagedFile, Sweep
from tidemark.formats.merge_result import ChunkResult
from tidemark.formats.watermark import Watermark
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease, of_range
from tidemark.ledger.reading import backfills
from tidemark.ledger.reading.backfills import Key, Range
from tidemark.lsn import Lsn
from tidemark.names import TableName

# A chunk's identity in messages and ledger: backfill, chunk, attempt.
ChunkId = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """One chunk that was read, `(lower, upper]` of its range: `upper` is the cursor from then on, or where the range
    ends. `fingerprint` is the JSON of `schema.fingerprint.Fingerprint`, `attempt` a UUID as text. What the snapshot saw
    was committed below `read_lsn`, so a high watermark below it is none; and is durable there, on `timeline` (None:
    read before the ledger kept it). `record` takes the fields up to `seconds`; the ledger fills in the others."""

    pipeline: str
    backfill: str
    chunk: str
    attempt: str
    table: str
    generation: int
    range: int
    lower: Key | None
    upper: Key | None
    snapshot: str
    timeline: int | None
    consistent_point: Lsn | None
    fingerprint: dict[str, Any]
    low_lsn: Lsn
    read_lsn: Lsn
    files: tuple[StagedFile, ...]
    converted: dict[str, int]
    rows: int
    bytes: int
    seconds: float
    read_at: datetime | None = None
    rejected: str | None = None
    claimed_lsn: Lsn | None = None
    watermark_lsn: Lsn | None = None
    result: dict[str, int] | None = None

    @property
    def id(self) -> ChunkId:
        return self.backfill, self.chunk, self.attempt

    @property
    def folder(self) -> str:
        """Where its files lie."""
        return chunk_folder(self.pipeline, self.backfill, TableName.parse(self.table), self.chunk, self.attempt)


# --- reading ----------------------------------------------------------------------------------------------------------


def free_ranges(ledger: Ledger, run_id: str, holder: str = "") -> list[Range]:
    """What is left to read of the run's open backfills, without what another holder has a live lease of: those begun
    earlier first. What `holder` itself has a lease of is listed: a dead try's, taken over by this one."""
    return _ranges(
        ledger,
        """
          JOIN tidemark.backfills b USING (pipeline, backfill)
         WHERE b.pipeline = %(pipeline)s AND b.run_id = %(run)s AND b.state = 'open' AND NOT r.done
           AND b.generation = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
           AND NOT EXISTS (SELECT 1 FROM tidemark.leases l
                            WHERE l.pipeline = r.pipeline AND l.name = 'range:' || r.backfill || ':' || r.range
                              AND l.expires_at >= clock_timestamp() AND l.holder <> %(holder)s)
         ORDER BY b.opened_at, b.backfill, r.range
        """,
        {"run": run_id, "holder": holder},
    )


def ranges_of(ledger: Ledger, backfill: str) -> list[Range]:
    """Every range of a backfill, by number."""
    return _ranges(
        ledger,
        " WHERE r.pipeline = %(pipeline)s AND r.backfill = %(backfill)s ORDER BY r.range",
        {"backfill": backfill},
    )


def keys_of(ledger: Ledger, backfill: str) -> tuple[Key, ...]:
    """What a backfill of mode keys looks for."""
    return tuple(key for key_range in ranges_of(ledger, backfill) for key in key_range.keys or ())


def _ranges(ledger: Ledger, clauses: str, values: dict[str, Any]) -> list[Range]:
    columns = "r.lower, r.upper, r.keys, r.backfill, r.range, r.cursor, r.next_chunk, r.done"
    rows = ledger.execute(f"SELECT {columns} FROM tidemark.ranges r {clauses}".encode(), values).fetchall()
    return [
        Range(
            _key(lower),
            _key(upper),
            None if keys is None else tuple(tuple(key) for key in keys),
            backfill,
            number,
            _key(cursor),
            next_chunk,
            done,
        )
        for lower, upper, keys, backfill, number, cursor, next_chunk, done in rows
    ]


def being_read(ledger: Ledger, backfill: str) -> tuple[str, datetime] | None:
    """Who has a live lease of one of the backfill's ranges, and until when, the last of them; None if nobody has."""
    row = ledger.execute(
        "SELECT holder, expires_at FROM tidemark.leases WHERE pipeline = %s AND starts_with(name, %s) "
        "AND expires_at >= clock_timestamp() ORDER BY expires_at DESC LIMIT 1",
        (ledger.pipeline, f"range:{backfill}:"),
    ).fetchone()
    return None if row is None else (str(row[0]), row[1])


def has_read_rows(ledger: Ledger, table: str) -> bool:
    """Whether a batch took rows that any backfill read of the table: then its history has `read` rows, or will."""
    return ledger.holds(
        """SELECT 1 FROM tidemark.chunks WHERE pipeline = %s AND "table" = %s AND rows > 0 AND claimed_lsn IS NOT NULL
       LIMIT 1""",
        (ledger.pipeline, table),
    )


def record(ledger: Ledger, lease: Lease, chunk: ReadChunk, *, cursor_before: Key | None, done: bool) -> bool:
    """Write down a chunk whose files are durable, and move its range's cursor to `chunk.upper`, or end the range.

    False, and the files are garbage, where the range went on without this reader, or the backfill is not open any more,
    or read on another timeline by now.
    Needs the lease of the range.
    """
    if chunk.upper is None and not done:
        raise ValueError(f"chunk {chunk.chunk} of {chunk.backfill} has no last key, and its range is not done")
    with ledger.transaction():
        lease.check(ledger, of_range(chunk.backfill, chunk.range))
        if not _is_open(ledger, chunk) or not _move_cursor(ledger, chunk, cursor_before, done):
            return False
        ledger.insert(
            "chunks",
            backfill=chunk.backfill,
            chunk=chunk.chunk,
            attempt=chunk.attempt,
            table=chunk.table,
            generation=chunk.generation,
            range=chunk.range,
            lower=_list(chunk.lower),
            upper=_list(chunk.upper),
            snapshot=chunk.snapshot,
            timeline=chunk.timeline,
            consistent_point=chunk.consistent_point,
            fingerprint=Jsonb(chunk.fingerprint),
            low_lsn=chunk.low_lsn,
            read_lsn=chunk.read_lsn,
            files=Jsonb([f.to_json() for f in chunk.files]),
            converted=Jsonb(chunk.converted),
            rows=chunk.rows,
            bytes=chunk.bytes,
            seconds=chunk.seconds,
        )
    return True


def _is_open(ledger: Ledger, chunk: ReadChunk) -> bool:
    return ledger.wrote_one(
        """
        UPDATE tidemark.backfills SET active_at = clock_timestamp()
         WHERE pipeline = %(pipeline)s AND backfill = %(backfill)s AND "table" = %(table)s AND state = 'open'
           AND timeline = %(timeline)s AND generation = %(generation)s
           AND generation = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
        """,
        {
            "backfill": chunk.backfill,
            "table": chunk.table,
            "generation": chunk.generation,
            "timeline": chunk.timeline,
        },
    )


def _move_cursor(ledger: Ledger, chunk: ReadChunk, cursor_before: Key | None, done: bool) -> bool:
    """The compare-and-set."""
    return ledger.wrote_one(
        """
        UPDATE tidemark.ranges
           SET cursor = coalesce(%(upper)s::text[], cursor), next_chunk = next_chunk + 1, done = %(done)s
         WHERE pipeline = %(pipeline)s AND backfill = %(backfill)s AND range = %(range)s AND NOT done
           AND cursor IS NOT DISTINCT FROM %(before)s::text[] AND range || '-' || next_chunk = %(chunk)s
        """,
        {
            "upper": _list(chunk.upper),
            "done": done,
            "backfill": chunk.backfill,
            "range": chunk.range,
            "before": _list(cursor_before),
            "chunk": chunk.chunk,
        },
    )


# --- claiming ---------------------------------------------------------------------------------------------------------


_UNCLAIMED: Final = """
  JOIN tidemark.backfills b USING (pipeline, backfill)
 WHERE c.pipeline = %(pipeline)s AND c.claimed_lsn IS NULL AND c.rejected IS NULL AND b.state = 'open'
   AND c.generation = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
"""


def unclaimed(ledger: Ledger) -> list[ReadChunk]:
    """The chunks that no batch has claimed, of the backfills that are open in the open generation."""
    return _chunks(ledger, _UNCLAIMED)


def unclaimed_ids(ledger: Ledger) -> dict[ChunkId, str]:
    """Which those are, in the order they were read, each with its table."""
    rows = ledger.execute(
        f"""SELECT c.backfill, c.chunk, c.attempt::text, c."table" FROM tidemark.chunks c {_UNCLAIMED}
            ORDER BY c.read_at, c.backfill, c.chunk""".encode(),
        {"pipeline": ledger.pipeline},
    )
    return {(backfill, chunk, attempt): table for backfill, chunk, attempt, table in rows}


def left_of(ledger: Ledger, backfill: str) -> tuple[int, set[ChunkId]]:
    """How many chunks of the backfill were read and not rejected, and which of them no batch has claimed."""
    row = ledger.row(
        """
        SELECT count(*), coalesce(array_agg(array[chunk, attempt::text]) FILTER (WHERE claimed_lsn IS NULL), '{}')
          FROM tidemark.chunks WHERE pipeline = %s AND backfill = %s AND rejected IS NULL
        """,
        (ledger.pipeline, backfill),
    )
    count, left = row
    return count, {(backfill, chunk, attempt) for chunk, attempt in left}


def evidence_among(ledger: Ledger, high: Sequence[tuple[Watermark, Lsn]]) -> list[tuple[ChunkId, Lsn]]:
    """Which of the high watermarks, each with the commit of its transaction, say something of a chunk, in their order:
    it is one of that table, in any generation, that no batch has claimed, and its snapshot had been taken by then."""
    rows = ledger.execute(
        """
        SELECT c.backfill, c.chunk, c.attempt::text, high.commit_lsn
          FROM unnest(%(backfills)s::text[], %(chunks)s::text[], %(attempts)s::uuid[], %(tables)s::text[],
                      %(commits)s::pg_lsn[]) WITH ORDINALITY
            AS high (backfill, chunk, attempt, "table", commit_lsn, number)
          JOIN tidemark.chunks c USING (backfill, chunk, attempt, "table")
         WHERE c.pipeline = %(pipeline)s AND c.claimed_lsn IS NULL AND c.rejected IS NULL
           AND c.read_lsn <= high.commit_lsn
         ORDER BY high.number
        """,
        {
            "backfills": [mark.backfill for mark, _ in high],
            "chunks": [mark.chunk for mark, _ in high],
            "attempts": [mark.attempt for mark, _ in high],
            "tables": [mark.table for mark, _ in high],
            "commits": [str(commit_lsn) for _, commit_lsn in high],
        },
    )
    return [((backfill, chunk, attempt), commit_lsn) for backfill, chunk, attempt, commit_lsn in rows]


def of_backfill(ledger: Ledger, backfill: str) -> list[ReadChunk]:
    """Every chunk that was read of a backfill, rejected ones included."""
    return _chunks(ledger, " WHERE c.pipeline = %(pipeline)s AND c.backfill = %(backfill)s", backfill=backfill)


def _chunks(ledger: Ledger, clauses: str, **values: str) -> list[ReadChunk]:
    query = f"""
        SELECT c.pipeline, c.backfill, c.chunk, c.attempt::text, c."table", c.generation, c.range, c.lower, c.upper,
               c.snapshot, c.timeline, c.consistent_point, c.fingerprint, c.low_lsn, c.read_lsn, c.files, c.converted,
               c.rows, c.bytes, c.seconds, c.read_at, c.rejected, c.claimed_lsn, c.watermark_lsn, c.result
          FROM tidemark.chunks c {clauses} ORDER BY c.read_at, c.backfill, c.chunk
        """
    with ledger.connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(query.encode(), {"pipeline": ledger.pipeline, **values}).fetchall()
    return [
        ReadChunk(
            **{
                **row,
                "lower": _key(row["lower"]),
                "upper": _key(row["upper"]),
                "files": tuple(StagedFile.from_json(f) for f in row["files"]),
            }
        )
        for row in rows
    ]


def lock_backfills(ledger: Ledger, ids: Iterable[str]) -> None:
    """Lock the rows of these backfills, in one order for all, until the caller's transaction ends."""
    ledger.execute(
        "SELECT 1 FROM tidemark.backfills WHERE pipeline = %s AND backfill = ANY(%s) ORDER BY backfill FOR UPDATE",
        (ledger.pipeline, sorted(set(ids))),
    )


def claim(ledger: Ledger, generation: int, end_lsn: Lsn, claims: Sequence[Claim]) -> None:
    """Give the chunks to the batch that ends at `end_lsn`. Raises `ClaimRefused` if one is unknown, claimed or
    rejected, or its backfill is not open in this generation. The caller has the backfills locked (`lock_backfills`)."""
    for chunk in claims:
        updated = ledger.execute(
            """
            UPDATE tidemark.chunks c SET claimed_lsn = %s, watermark_lsn = %s
              FROM tidemark.backfills b
             WHERE c.pipeline = %s AND c.backfill = %s AND c.chunk = %s AND c.attempt = %s::uuid AND c.generation = %s
               AND c.claimed_lsn IS NULL AND c.rejected IS NULL
               AND b.pipeline = c.pipeline AND b.backfill = c.backfill AND b.state = 'open'
            """,
            (end_lsn, chunk.watermark_lsn, ledger.pipeline, chunk.backfill, chunk.chunk, chunk.attempt, generation),
        ).rowcount
        if updated != 1:
            raise ClaimRefused(
                chunk=chunk.chunk, backfill=chunk.backfill, pipeline=ledger.pipeline, reason="it is not free any more"
            )


def claim_again(ledger: Ledger, generation: int, end_lsn: Lsn, claims: Sequence[Claim]) -> None:
    """The same for a manifest that is registered again: what it says was decided when it was written. A chunk that the
    ledger does not know, restored from an older copy, is in the batch all the same."""
    for chunk in claims:
        ledger.execute(
            """
            UPDATE tidemark.chunks SET claimed_lsn = %s, watermark_lsn = %s
             WHERE pipeline = %s AND backfill = %s AND chunk = %s AND attempt = %s::uuid AND generation = %s
               AND rejected IS NULL
            """,
            (end_lsn, chunk.watermark_lsn, ledger.pipeline, chunk.backfill, chunk.chunk, chunk.attempt, generation),
        )


def reject(ledger: Ledger, identity: ChunkId, reason: str) -> None:
    """Have what the chunk covers read again, as a range of its own; `reason` is half a sentence without values.
    Nothing happens if it is no longer unclaimed. The caller has the backfill locked."""
    backfill, chunk, attempt = identity
    row = ledger.execute(
        """
        UPDATE tidemark.chunks c SET rejected = %s
          FROM tidemark.ranges r
         WHERE c.pipeline = %s AND c.backfill = %s AND c.chunk = %s AND c.attempt = %s::uuid
           AND c.claimed_lsn IS NULL AND c.rejected IS NULL
           AND (r.pipeline, r.backfill, r.range) = (c.pipeline, c.backfill, c.range)
        RETURNING c.lower, c.upper, r.keys
        """,
        (reason, ledger.pipeline, backfill, chunk, attempt),
    ).fetchone()
    if row is None:
        return
    lower, upper, keys = row
    key_range = Range(_key(lower), _key(upper)) if keys is None else Range(keys=tuple(tuple(key) for key in keys))
    backfills.add_ranges(ledger, backfill, [key_range])


def reject_lost(ledger: Ledger, timeline: int, left_lsn: Lsn) -> int:
    """Have every unclaimed chunk read again that was read on an earlier timeline than this one, above the point where
    that one was left; how many."""
    lost = [
        chunk
        for chunk in unclaimed(ledger)
        if chunk.timeline is None or (chunk.timeline != timeline and chunk.read_lsn > left_lsn)
    ]
    lock_backfills(ledger, {chunk.backfill for chunk in lost})
    reason = "a standby was promoted that lacks some of what it saw"
    for chunk in lost:
        reject(ledger, chunk.id, reason)
    return len(lost)


def keep_results(ledger: Ledger, results: Iterable[ChunkResult]) -> None:
    """What became of the rows of claimed chunks; written over, never added, since a plan may be repeated."""
    for result in results:
        counts: dict[str, Any] = {name: count for name, count in result.to_json().items() if isinstance(count, int)}
        if result.columns:
            counts["columns"] = result.columns
        ledger.execute(
            "UPDATE tidemark.chunks SET result = %s "
            "WHERE pipeline = %s AND backfill = %s AND chunk = %s AND attempt = %s::uuid",
            (Jsonb(counts), ledger.pipeline, result.backfill, result.chunk, result.attempt),
        )


def all_read(ledger: Ledger, backfill: str) -> bool:
    """Whether every range of the backfill is done."""
    return ledger.holds(
        "SELECT bool_and(done) FROM tidemark.ranges WHERE pipeline = %s AND backfill = %s",
        (ledger.pipeline, backfill),
    )


def rejected_unread(ledger: Ledger, backfill: str) -> int:
    """How many rejected chunks have not been read again: their ranges, which `reject` added, are not done."""
    row = ledger.row(
        """
        SELECT count(*) FROM tidemark.ranges r
         WHERE r.pipeline = %s AND r.backfill = %s AND NOT r.done
           AND EXISTS (SELECT 1 FROM tidemark.chunks c JOIN tidemark.ranges was USING (pipeline, backfill, range)
                        WHERE (c.pipeline, c.backfill) = (r.pipeline, r.backfill) AND c.rejected IS NOT NULL
                          AND c.range < r.range AND (was.keys IS NOT DISTINCT FROM r.keys)
                          AND (c.lower, c.upper) IS NOT DISTINCT FROM (r.lower, r.upper))
        """,
        (ledger.pipeline, backfill),
    )
    return int(row[0])


def require_sweeps(ledger: Ledger, sweeps: Sequence[Sweep]) -> None:
    """Verify, after the batch's claims and rejections, that nothing of the backfills to be swept is unread or
    unclaimed. Raises `ClaimRefused`. The caller has the backfills locked."""
    for sweep in sweeps:
        row = ledger.execute(
            "SELECT 1 FROM tidemark.chunks "
            "WHERE pipeline = %s AND backfill = %s AND claimed_lsn IS NULL AND rejected IS NULL LIMIT 1",
            (ledger.pipeline, sweep.backfill),
        ).fetchone()
        if row is not None or not all_read(ledger, sweep.backfill):
            raise ClaimRefused(
                chunk="(the sweep)", backfill=sweep.backfill, pipeline=ledger.pipeline, reason="not all of it is read"
            )


def _key(raw: list[str] | None) -> Key | None:
    return None if raw is None else tuple(raw)


def _list(key: Key | None) -> list[str] | None:
    return None if key is None else list(key)
