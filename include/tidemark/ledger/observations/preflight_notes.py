"""Stores the notes of the last preflight, so that a run logs only new ones.

Every run logs errors and warnings, because a person must act. A note is logged once.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.ledger.connection import Ledger


def new_notes(ledger: Ledger, notes: Iterable[str]) -> set[str]:
    """The `notes` that the last call did not have. A note that disappears is forgotten, and returned when it comes
    again. Nothing is written if nothing changed: an idle run leaves no WAL."""
    now = set(notes)
    with ledger.transaction():
        rows = ledger.execute("SELECT note FROM tidemark.said_notes WHERE pipeline = %s", (ledger.pipeline,)).fetchall()
        before = {note for (note,) in rows}
        if before - now:
            ledger.execute(
                "DELETE FROM tidemark.said_notes WHERE pipeline = %s AND note = ANY(%s)",
                (ledger.pipeline, sorted(before - now)),
            )
        for note in sorted(now - before):
            ledger.execute(
                "INSERT INTO tidemark.said_notes (pipeline, note) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (ledger.pipeline, note),
            )
    return now - before
