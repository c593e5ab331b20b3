"""Stores the alerts that were sent and have not ended: one row per kind and subject.

The sender sends inside the transaction that writes or deletes the row. If it dies before the commit, the next run sends
again, so an alert may be sent twice but is never lost. A second sender waits for the first one's row, and then skips
the alert.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from tidemark.ledger.connection import Ledger


@dataclass(frozen=True, slots=True)
class SentAlert:
    """`line` is the sent text."""

    kind: str
    subject: str
    line: str
    told_at: datetime


def all_of(ledger: Ledger) -> list[SentAlert]:
    """The alerts that were sent and have not cleared."""
    rows = ledger.execute(
        "SELECT kind, subject, line, told_at FROM tidemark.alerts WHERE pipeline = %s ORDER BY told_at, kind, subject",
        (ledger.pipeline,),
    ).fetchall()
    return [SentAlert(*row) for row in rows]


def begin(ledger: Ledger, kind: str, lines: dict[str, str]) -> list[str]:
    """Claim the sending of these subjects, each with its line. Returns those that were not sent before. Call it and
    send in one transaction."""
    rows = ledger.execute(
        """
        INSERT INTO tidemark.alerts (pipeline, kind, subject, line)
        SELECT p.pipeline, %s, unnest(%s::text[]), unnest(%s::text[])
          FROM tidemark.pipelines p WHERE p.pipeline = %s
        ON CONFLICT DO NOTHING RETURNING subject
        """,
        (kind, sorted(lines), [lines[subject] for subject in sorted(lines)], ledger.pipeline),
    ).fetchall()
    return sorted(subject for (subject,) in rows)


def end(ledger: Ledger, kind: str, subjects: Collection[str]) -> list[SentAlert]:
    """Claim the message that these alerts cleared; returns their lines. Call it and send in one transaction."""
    rows = ledger.execute(
        "DELETE FROM tidemark.alerts WHERE pipeline = %s AND kind = %s AND subject = ANY(%s) "
        "RETURNING kind, subject, line, told_at",
        (ledger.pipeline, kind, sorted(subjects)),
    ).fetchall()
    return sorted((SentAlert(*row) for row in rows), key=lambda told: told.subject)
