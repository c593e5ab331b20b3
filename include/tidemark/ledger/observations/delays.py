"""Computes how long changes took from their commit to a Delta table: the present median, and the worst hundredth.

One value is of one batch and table: from its oldest change's commit to the moment at which the result that has it was
brought into the ledger, which is soon after it can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidemark.ledger.connection import Ledger

PRESENT: Final = timedelta(hours=1)
# Of so many plans at most, the newest: a run that follows makes thousands in an hour.
PLANS: Final = 500


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds, over the batches of tables that were merged since a moment, and their number."""

    p50_s: float
    p99_s: float
    batches: int
    since: datetime


def present(ledger: Ledger, now: datetime) -> Delays | None:
    """The delays of the last hour; None if nothing was merged in it."""
    row = ledger.execute(
        """
        WITH recent AS (
            SELECT plan, generation, ingested_at, result FROM tidemark.plans
             WHERE pipeline = %(pipeline)s AND ingested_at >= %(since)s AND created_at >= %(created)s
             ORDER BY created_at DESC LIMIT %(plans)s),
        reached AS (
            SELECT r.generation, r.ingested_at, t.value ->> 'table' AS "table",
                   coalesce(t.value ->> 'current_lsn', t.value ->> 'history_lsn')::pg_lsn AS lsn
              FROM recent r CROSS JOIN LATERAL jsonb_array_elements(r.result -> 'tables') t),
        moved AS (
            SELECT *, lag(lsn) OVER (PARTITION BY generation, "table" ORDER BY lsn, ingested_at) AS before
              FROM reached WHERE lsn IS NOT NULL),
        took AS (
            SELECT extract(epoch FROM m.ingested_at - b.first_committed_at)::float8 AS s
              FROM moved m
             CROSS JOIN LATERAL (
                   SELECT first_committed_at FROM tidemark.batch_tables
                    WHERE pipeline = %(pipeline)s AND generation = m.generation AND "table" = m."table"
                      AND end_lsn > m.before AND end_lsn <= m.lsn AND first_committed_at IS NOT NULL
                   OFFSET 0) b
             WHERE m.before < m.lsn)
        SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY s), count(*),
               (SELECT min(ingested_at) FROM recent)
          FROM took
        """,
        {
            "since": now - PRESENT,
            "created": now - 2 * PRESENT,
            "plans": PLANS,
        },
    ).fetchone()
    if row is None or row[0] is None:
        return None
    (p50_s, p99_s), batches, since = row
    return Delays(p50_s, p99_s, batches, since)
