"""Computes how far each table is applied in the open generation, and how far the slot may be confirmed (R3).

A batch makes no commit on a table that it does not touch. So a table counts as applied up to the `start_lsn` of its
next unapplied batch, or up to staged if it has none.
"""

from __future__ import annotations

from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import generations
from tidemark.lsn import Lsn
from tidemark.schema.table_life import MERGING


def applied(ledger: Ledger) -> dict[str, Lsn]:
    """Per table, in any state, the position up to which it counts as applied in the open generation: the start of
    its next unapplied batch, or staged if it has none."""
    return {table: lsn for table, _, lsn, _ in _progress(ledger)}


def confirmable(ledger: Ledger) -> Lsn:
    """R3's minimum in the open generation: over all tables, applied, or staged if they are parked, paused or
    deferred. It is staged without any table."""
    staged = generations.required(ledger).staged_lsn
    return min([staged, *held_back_by(ledger).values()])


def held_back_by(ledger: Ledger) -> dict[str, Lsn]:
    """The merging tables whose next unapplied batch keeps `confirmable` below staged, with that batch's start."""
    return {table: lsn for table, state, lsn, staged in _progress(ledger) if state == MERGING and lsn < staged}


def _progress(ledger: Ledger) -> list[tuple[str, str, Lsn, Lsn]]:
    """Table, state, applied, staged; one statement, so that all four belong to one moment."""
    return ledger.execute(
        """
        SELECT t."table", t.merge_state,
               coalesce((SELECT b.start_lsn FROM tidemark.batch_tables b
                          WHERE b.pipeline = g.pipeline AND b.generation = g.number AND b."table" = t."table"
                            AND b.end_lsn > coalesce((SELECT p.applied_lsn FROM tidemark.positions p
                                                       WHERE p.pipeline = g.pipeline AND p.generation = g.number
                                                         AND p."table" = t."table"), '0/0')
                          ORDER BY b.end_lsn LIMIT 1), g.staged_lsn),
               g.staged_lsn
          FROM (SELECT pipeline, number, staged_lsn FROM tidemark.generations
                 WHERE pipeline = %s ORDER BY number DESC LIMIT 1) g
          JOIN tidemark.tables t ON t.pipeline = g.pipeline
         ORDER BY t."table"
        """,
        (ledger.pipeline,),
    ).fetchall()
