"""Records which run follows the source: later runs take over by it, and backfills wait for it (`tidemark.followers`).

    the later run's Spark application is ready ──take_over──► the earlier run sees `is_succeeded`, and ends

A run goes on beyond its time until then, since its successor needs a while to start. The order is that in which the
runs began, so a later try of a task of the earlier run takes nothing back. A row from the future says nothing: the
clock was put back since. No row gives a right to write; the leases do (`ledger.leases`).
"""

from __future__ import annotations

from datetime import datetime

from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT


def take_over(ledger: Ledger, run_id: str, began_at: datetime) -> None:
    """Make this run the one that follows, unless one that began later is."""
    ledger.execute(
        """
        INSERT INTO tidemark.followers AS f (pipeline, run_id, began_at) VALUES (%s, %s, %s)
            ON CONFLICT (pipeline) DO UPDATE SET run_id = excluded.run_id, began_at = excluded.began_at
         WHERE f.began_at < excluded.began_at OR f.began_at > clock_timestamp()
        """,
        (ledger.pipeline, run_id, began_at),
    )


def is_succeeded(ledger: Ledger, run_id: str, began_at: datetime) -> bool:
    """Whether a run that began later has taken over from this one."""
    return ledger.holds(
        "SELECT 1 FROM tidemark.followers "
        "WHERE pipeline = %s AND run_id <> %s AND began_at > %s AND began_at <= clock_timestamp()",
        (ledger.pipeline, run_id, began_at),
    )


def has_predecessor(ledger: Ledger, run_id: str, began_at: datetime) -> bool:
    """Whether a run that began earlier follows, or was the last one to do so."""
    return ledger.holds(
        "SELECT 1 FROM tidemark.followers WHERE pipeline = %s AND run_id <> %s AND began_at < %s",
        (ledger.pipeline, run_id, began_at),
    )


def is_following(ledger: Ledger) -> bool:
    """Whether the run that follows holds the lease `slot`: the holder's name starts with the run's id. False while
    that run lets another task in, and during a handover."""
    return ledger.holds(
        "SELECT 1 FROM tidemark.followers f JOIN tidemark.leases l USING (pipeline) "
        "WHERE f.pipeline = %s AND l.name = %s AND l.expires_at >= clock_timestamp() "
        "AND starts_with(l.holder, concat(f.run_id, '/'))",
        (ledger.pipeline, SLOT),
    )
