"""Applies every change of a table's state with `step`, which refuses what `schema.table_life` does not allow.

`step` locks the rows when it reads the states, so they cannot change before the write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from psycopg import sql

from tidemark.errors import TableLifeBroken
from tidemark.ledger.connection import Ledger
from tidemark.schema.table_life import UNKNOWN, Machine, after

_COLUMN: Final[dict[Machine, str]] = {
    "capture": "capture_state",
    "merge": "merge_state",
    "target": "target_state",
}


@contextmanager
def step(ledger: Ledger, machine: Machine, event: str, tables: Collection[str]) -> Iterator[None]:
    """Run the block as the event for these tables, in one transaction with the checks before and after it.

    Raises TableLifeBroken, and undoes the block, if the event does not fit the state of a table or the block leads to
    another state. `merge` and `target` have no state for a table without a row: LookupError.
    """
    with ledger.transaction():
        expected = {}
        for table, state in _states(ledger, machine, tables).items():
            to = after(machine, event, state)
            if to is None:
                raise TableLifeBroken(table=table, event=event, machine=machine, state=state)
            expected[table] = to
        yield
        for table, state in _states(ledger, machine, tables).items():
            if state != expected[table]:
                came_to = f"{expected[table]}, and came to {state}"
                raise TableLifeBroken(table=table, event=event, machine=machine, state=came_to)


def _states(ledger: Ledger, machine: Machine, tables: Collection[str]) -> dict[str, str]:
    """The states of these tables, locked in one order until the transaction ends."""
    query = sql.SQL(
        'SELECT "table", {} FROM tidemark.tables WHERE pipeline = %s AND "table" = ANY(%s) ORDER BY "table" FOR UPDATE'
    ).format(sql.Identifier(_COLUMN[machine]))
    states: dict[str, str] = dict(ledger.execute(query, (ledger.pipeline, sorted(tables))).fetchall())
    missing = sorted(set(tables) - states.keys())
    if missing and machine != "capture":
        raise LookupError(f"no table {missing[0]} in pipeline {ledger.pipeline}")
    return {**dict.fromkeys(missing, UNKNOWN), **states}
