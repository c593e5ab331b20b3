"""Ledger -> which tables are level with what is staged, for the application to note in `_positions`.

What is staged is asked first, what waits afterwards: a batch that is registered in between makes its tables wait, and
none of them is called level with less than it has.
"""

from __future__ import annotations

from collections.abc import Collection

from tidemark.formats.plan import Level
from tidemark.ledger import batches, relations, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.generations import Staged


def level_with(ledger: Ledger, staged: Staged, planned: Collection[str]) -> Level:
    """`staged` from before the plan's batches were listed; `planned` are the plan's tables."""
    captured = {row.table: row for row in tables.all_of(ledger) if row.life.is_captured}
    waiting = batches.unapplied_counts(ledger, captured)
    level = [table for table in captured if table not in waiting and table not in planned]
    promised = {table for table, row in captured.items() if row.life.keeps_its_promise and row.life.can_be_read}
    called = relations.names(ledger)
    names = {table: str(called.get(table, table)) if table in captured else None for table in {*level, *planned}}
    return Level(
        generation=staged.generation,
        lsn=staged.lsn,
        committed_at=None if staged.committed_at is None else staged.committed_at.isoformat(),
        tables=tuple(level),
        inexact=tuple(sorted({*level, *planned} - promised)),
        names={table: name for table, name in sorted(names.items()) if name != table},
    )
