"""Counts staged changes that are not applied, per table: they decide when a table is due, and `status` shows them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row

from tidemark.ledger.connection import Ledger


@dataclass(frozen=True, slots=True)
class Backlog:
    """One table's registered and unapplied batches, over all generations. `since` is the registration of the
    oldest, `oldest_change_at` the commit of its oldest change, None without any. `has_chunks` if one of them claims
    chunks or sweeps. `is_of_the_past` if one belongs to an ended generation."""

    table: str
    batches: int
    changes: int
    bytes: int
    since: datetime
    has_chunks: bool
    is_of_the_past: bool
    oldest_change_at: datetime | None = None


def all_of(ledger: Ledger, names: Collection[str] | None = None) -> dict[str, Backlog]:
    """The backlog by table, of the given tables (None: all), if anything waits."""
    wanted = None if names is None else sorted(names)
    rows = ledger.records(
        class_row(Backlog),
        """
        SELECT u."table", sum(u.batches)::bigint AS batches, sum(u.changes)::bigint AS changes,
               sum(u.bytes)::bigint AS bytes,
               min((SELECT b.registered_at FROM tidemark.batches b
                     WHERE b.pipeline = %(pipeline)s AND b.generation = u.generation
                       AND b.end_lsn = u.first_end)) AS since,
               bool_or(u.has_chunks) AS has_chunks,
               bool_or(u.generation < (SELECT max(number) FROM tidemark.generations g
                                        WHERE g.pipeline = %(pipeline)s)) AS is_of_the_past,
               min(u.oldest_change_at) AS oldest_change_at
          FROM (SELECT "table", generation, count(*) AS batches, sum(changes) AS changes, sum(bytes) AS bytes,
                       min(end_lsn) AS first_end, min(first_committed_at) AS oldest_change_at,
                       bool_or(claims <> '[]' OR sweeps <> '[]') AS has_chunks
                  FROM tidemark.unapplied
                 WHERE pipeline = %(pipeline)s AND (%(names)s::text[] IS NULL OR "table" = ANY(%(names)s))
                 GROUP BY "table", generation) u
         GROUP BY u."table" ORDER BY u."table"
        """,
        {"pipeline": ledger.pipeline, "names": wanted},
    )
    return {backlog.table: backlog for backlog in rows}
