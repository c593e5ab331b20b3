"""Computes a backfill's progress and its filled ranges from ranges and chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills
from tidemark.ledger.reading.backfills import Mode
from tidemark.wording import counted, duration

# A backfill's rate is computed from the chunks recorded in the last so many seconds.
RATE_WINDOW_S: Final = 120


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a backfill: `chunks` and `rows` that were read, and how many of the chunks were `claimed`.
    `rate_rows_s` is the rate of the last minutes, None if nothing was read in them."""

    backfill: str
    table: str
    mode: Mode
    state: backfills.State
    run_id: str
    ranges: int
    ranges_done: int
    chunks: int
    rejected: int
    claimed: int
    rows: int
    estimated_rows: int
    seconds: float
    rate_rows_s: float | None

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until everything is read, by the estimated rows and the present rate; None without a
        rate."""
        if self.ranges_done == self.ranges:
            return 0.0
        if not self.rate_rows_s:
            return None
        return max(0, self.estimated_rows - self.rows) / self.rate_rows_s

    @property
    def share(self) -> float:
        """The share of the rows that was read, by the estimate; 1 only if all ranges are done."""
        if self.ranges_done == self.ranges:
            return 1.0
        share = self.rows / self.estimated_rows if self.estimated_rows else self.ranges_done / self.ranges
        return min(share, 0.99)

    def __str__(self) -> str:
        left = f", about {duration(self.left_s)} left" if self.left_s else ""
        is_read = self.ranges_done == self.ranges
        rows = counted(self.rows, "row") if is_read else f"{self.rows} of about {counted(self.estimated_rows, 'row')}"
        line = (
            f"{int(self.share * 100)} %{left}: {self.table}: {rows} read in {counted(self.chunks, 'chunk')}, "
            f"{self.ranges_done} of {counted(self.ranges, 'range')} done, {counted(self.claimed, 'chunk')} claimed"
        )
        if self.rejected:
            line += f", {self.rejected} rejected and read again"
        if self.rate_rows_s:
            line += f", {self.rate_rows_s:.0f} rows/s"
        return line


def progress(ledger: Ledger, run_id: str | None = None) -> list[Progress]:
    """The progress of the run's backfills in any state, by table; without a run, of every open backfill."""
    rows = ledger.execute(
        """
        SELECT b.backfill, b."table", b.mode, b.state, b.run_id, r.ranges, r.done, c.chunks, c.rejected, c.claimed,
               c.rows, b.estimated_rows, c.seconds, p.rate
          FROM tidemark.backfills b
          JOIN LATERAL (SELECT count(*) AS ranges, count(*) FILTER (WHERE done) AS done FROM tidemark.ranges
                         WHERE pipeline = b.pipeline AND backfill = b.backfill) r ON true
          JOIN LATERAL (
               SELECT count(*) FILTER (WHERE rejected IS NULL) AS chunks,
                      count(*) FILTER (WHERE rejected IS NOT NULL) AS rejected,
                      count(*) FILTER (WHERE claimed_lsn IS NOT NULL) AS claimed,
                      coalesce(sum(rows) FILTER (WHERE rejected IS NULL), 0)::bigint AS rows,
                      coalesce(sum(seconds), 0) AS seconds
                 FROM tidemark.chunks WHERE pipeline = b.pipeline AND backfill = b.backfill) c ON true
          JOIN LATERAL (
               SELECT sum(rows)::float8
                      / nullif(extract(epoch FROM clock_timestamp()
                                                  - min(read_at - make_interval(secs => seconds)))::float8, 0) AS rate
                 FROM tidemark.chunks
                WHERE pipeline = b.pipeline AND backfill = b.backfill
                  AND read_at > clock_timestamp() - make_interval(secs => %(window)s)) p ON true
         WHERE b.pipeline = %(pipeline)s
           AND CASE WHEN %(run)s::text IS NULL THEN b.state = 'open' ELSE b.run_id = %(run)s END
         ORDER BY b."table", b.opened_at
        """,
        {"run": run_id, "window": RATE_WINDOW_S},
    ).fetchall()
    return [Progress(*row) for row in rows]


def filled(ledger: Ledger, backfill: str) -> list[int]:
    """The numbers of the ranges with claimed chunks: these are in the target, or will be after the next merge."""
    rows = ledger.execute(
        """
        SELECT DISTINCT range FROM tidemark.chunks
         WHERE pipeline = %s AND backfill = %s AND claimed_lsn IS NOT NULL ORDER BY range
        """,
        (ledger.pipeline, backfill),
    )
    return [number for (number,) in rows]
