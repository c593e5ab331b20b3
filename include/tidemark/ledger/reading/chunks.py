"""Stores the ranges of a backfill with their cursors, and the chunks that were read from them.

    recorded ──its high watermark is in a batch that is registered──► claimed ──that batch is merged──► with a result
        └──its table was replaced──► rejected, and its rows are a new range

A chunk is recorded after its files are durable and before its high watermark is written, by a compare-and-set on its
range's cursor. So of two readers of one range only one records the chunk, and a watermark without a recorded chunk is
from an attempt that died.

`record`, `claim` and `reject` lock the backfill's row. Under this lock, `require_sweeps` checks that everything is read
and claimed, so that the sweep is due. The drain decides this earlier, when it writes the manifest. Its decision still
holds at registration: if every range is done, only the drain can add another one, and the watermark of a chunk that is
recorded later comes after the batch.
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
from tidemark.ledger.connection import Ledger, fields_of
from tidemark.ledger.leases import Lease, of_range
from tidemark.ledger.reading import backfills
from tidemark.ledger.reading.backfills import Key, Range
from tidemark.lsn import Lsn
from tidemark.names import TableName

# A chunk's identity in messages and ledger: backfill, chunk, attempt.
ChunkId = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """One chunk that was read: `(lower, upper]` of its range. `upper` is the range's next cursor, or the end of the
    range.

    - `fingerprint` is the JSON of `schema.fingerprint.Fingerprint`, `attempt` a UUID as text.
    - All transactions visible to the snapshot were committed below `read_lsn` and are durable there, on `timeline`
      (None if an earlier version recorded the chunk). So a message below `read_lsn` is no high watermark of the chunk.

    `record` takes the fields up to `seconds`; the ledger fills in the others.
    """

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
    rejected: str | None = None
    claimed_lsn: Lsn | None = None
    watermark_lsn: Lsn | None = None
    result: dict[str, int] | None = None

    @property
    def id(self) -> ChunkId:
        return self.backfill, self.chunk, self.attempt

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return chunk_folder(self.pipeline, self.backfill, TableName.parse(self.table), self.chunk, self.attempt)


# --- reading ----------------------------------------------------------------------------------------------------------


def free_ranges(ledger: Ledger, run_id: str, holder: str = "") -> list[Range]:
    """The ranges of the run's open backfills that are not done, the earliest backfill first. Ranges for which
    another holder has a live lease are left out. Ranges leased by `holder` are included: an earlier try of the same
    task died, and this one continues them."""
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
    """The keys that a backfill of mode keys reads."""
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


def live_reader(ledger: Ledger, backfill: str) -> tuple[str, datetime] | None:
    """Holder and end of the backfill's live range lease that ends last; None without one."""
    row = ledger.execute(
        "SELECT holder, expires_at FROM tidemark.leases WHERE pipeline = %s AND starts_with(name, %s) "
        "AND expires_at >= clock_timestamp() ORDER BY expires_at DESC LIMIT 1",
        (ledger.pipeline, f"range:{backfill}:"),
    ).fetchone()
    return None if row is None else (str(row[0]), row[1])


def has_read_rows(ledger: Ledger, table: str) -> bool:
    """Whether a batch claimed rows of any of the table's backfills. If so, its history has `read` rows, or will
    have them."""
    return ledger.holds(
        """SELECT 1 FROM tidemark.chunks WHERE pipeline = %s AND "table" = %s AND rows > 0 AND claimed_lsn IS NOT NULL
       LIMIT 1""",
        (ledger.pipeline, table),
    )


def record(ledger: Ledger, lease: Lease, chunk: ReadChunk, *, cursor_before: Key | None, done: bool) -> bool:
    """Record a chunk whose files are durable, and move its range's cursor to `chunk.upper`, or end the range.

    Returns False, and the files are garbage, if another reader moved the cursor, or if the backfill is no longer open,
    or no longer on the chunk's timeline. Needs the lease of the range.
    """
    if chunk.upper is None and not done:
        raise ValueError(f"chunk {chunk.chunk} of {chunk.backfill} has no last key, and its range is not done")
    with ledger.transaction():
        lease.check(ledger, of_range(chunk.backfill, chunk.range))
        if not _is_open(ledger, chunk) or not _move_cursor(ledger, chunk, cursor_before, done):
            return False
        ledger.insert(
            "chunks",
            **fields_of(chunk, "backfill chunk attempt table generation range snapshot timeline consistent_point"),
            **fields_of(chunk, "low_lsn read_lsn rows bytes seconds"),
            lower=_list(chunk.lower),
            upper=_list(chunk.upper),
            fingerprint=Jsonb(chunk.fingerprint),
            files=Jsonb([f.to_json() for f in chunk.files]),
            converted=Jsonb(chunk.converted),
        )
    return True


def _is_open(ledger: Ledger, chunk: ReadChunk) -> bool:
    """Lock the backfill's row and update its time of last activity. False if it is not open, or not in the chunk's
    generation and timeline."""
    return ledger.wrote_one(
        """
        UPDATE tidemark.backfills SET active_at = clock_timestamp()
         WHERE pipeline = %(pipeline)s AND backfill = %(backfill)s AND "table" = %(table)s AND state = 'open'
           AND timeline = %(timeline)s AND generation = %(generation)s
           AND generation = (SELECT max(number) FROM tidemark.generations WHERE pipeline = %(pipeline)s)
        """,
        fields_of(chunk, "backfill table generation timeline"),
    )


def _move_cursor(ledger: Ledger, chunk: ReadChunk, cursor_before: Key | None, done: bool) -> bool:
    """Compare the range's cursor and chunk number with the chunk's, and set the new ones if they are equal."""
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
    """The ids of these chunks in the order in which they were read, each with its table."""
    rows = ledger.execute(
        f"""SELECT c.backfill, c.chunk, c.attempt::text, c."table" FROM tidemark.chunks c {_UNCLAIMED}
            ORDER BY c.read_at, c.backfill, c.chunk""".encode(),
        {"pipeline": ledger.pipeline},
    )
    return {(backfill, chunk, attempt): table for backfill, chunk, attempt, table in rows}


def read_and_unclaimed(ledger: Ledger, backfill: str) -> tuple[int, set[ChunkId]]:
    """The number of the backfill's chunks that were read and not rejected, and the ids of those that no batch has
    claimed."""
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
    """The chunk of each high watermark that is evidence for one, with the commit LSN of the watermark's
    transaction, in their order. The watermark's chunk must exist with this table, in any generation, no batch must
    have claimed it, and its `read_lsn` must not be above the commit LSN."""
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
    """Every chunk of a backfill, including rejected ones."""
    return _chunks(ledger, " WHERE c.pipeline = %(pipeline)s AND c.backfill = %(backfill)s", backfill=backfill)


def _chunks(ledger: Ledger, clauses: str, **values: str) -> list[ReadChunk]:
    query = f"""
        SELECT c.pipeline, c.backfill, c.chunk, c.attempt::text, c."table", c.generation, c.range, c.lower, c.upper,
               c.snapshot, c.timeline, c.consistent_point, c.fingerprint, c.low_lsn, c.read_lsn, c.files, c.converted,
               c.rows, c.bytes, c.seconds, c.rejected, c.claimed_lsn, c.watermark_lsn, c.result
          FROM tidemark.chunks c {clauses} ORDER BY c.read_at, c.backfill, c.chunk
        """
    rows = ledger.records(dict_row, query.encode(), {"pipeline": ledger.pipeline, **values})
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
    """Lock the rows of these backfills until the caller's transaction ends, always in the same order."""
    ledger.execute(
        "SELECT 1 FROM tidemark.backfills WHERE pipeline = %s AND backfill = ANY(%s) ORDER BY backfill FOR UPDATE",
        (ledger.pipeline, sorted(set(ids))),
    )


def claim(ledger: Ledger, generation: int, end_lsn: Lsn, claims: Sequence[Claim]) -> None:
    """Assign the chunks to the batch that ends at `end_lsn`. Raises `ClaimRefused` if a chunk is unknown, claimed
    or rejected, or if its backfill is not open in this generation. The caller has locked the backfills
    (`lock_backfills`)."""
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
    """Assign the chunks of a manifest that is registered again. Nothing is checked, because the manifest's claims
    were decided when it was written. A chunk that is missing from a restored older ledger is in the batch all the
    same."""
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
    """Reject an unclaimed chunk and add what it covers as a new range, so that it is read again. `reason` is half a
    sentence without values. Nothing happens if the chunk is claimed or rejected. The caller has locked the
    backfill."""
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
    """Reject every unclaimed chunk that was read on an earlier timeline above `left_lsn`, where that timeline was
    left, so that it is read again. Returns the number of these chunks."""
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
    """Store the merge results of claimed chunks. A result is replaced and never added, since a plan may be repeated."""
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
    """The number of rejected chunks that were not read again: the ranges that `reject` added for them are not done."""
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
    """Check, after the batch's claims and rejections, that everything of the backfills to be swept is read and
    claimed. Raises `ClaimRefused`. The caller has locked the backfills."""
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
