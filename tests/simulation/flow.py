"""Counts what flowed in a play, by what was staged: a suite in which no UPDATE flows proves nothing of updates.

`Met` adds up the plays of a session. Each has to bring inserts, updates and deletes; a last test asserts that every
kind of change of every table was among them, where there were enough plays to expect it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.workload import SCHEMA
from tests.support.pipeline import Place

ENOUGH = 20
ROW_CHANGES = frozenset({"insert", "update", "delete"})

_OF_A_KEY = frozenset({*ROW_CHANGES, "truncate", "moved"})
# Table -> the kinds of changes that the workload makes of it. A large value that a change leaves out is "unchanged".
EVERYTHING = {
    f"{SCHEMA}.{table}": kinds
    for table, kinds in {
        "plain": _OF_A_KEY | {"unchanged"},
        "pair": _OF_A_KEY | {"unchanged"},
        "whole": _OF_A_KEY,
        "bag": ROW_CHANGES | {"truncate"},
        "named": _OF_A_KEY | {"unchanged"},
        "log": frozenset({"insert", "truncate"}),
        "parts": frozenset({*ROW_CHANGES, "unchanged"}),
        "moment": _OF_A_KEY,
    }.items()
}


def of_tables(place: Place) -> dict[str, Counter[str]]:
    """By table, how many changes of each kind were staged."""
    counts: dict[str, Counter[str]] = {}
    for table, ops, unchanged, moved in place.ledger_query(
        'SELECT "table", counts, unchanged, moved FROM tidemark.batch_tables WHERE pipeline = %s', place.config.pipeline
    ):
        of_table = counts.setdefault(table.partition("~")[0], Counter())
        of_table.update(ops)
        of_table.update(unchanged=unchanged, moved=moved)
    return counts


@dataclass
class Met:
    """What the plays of a session brought."""

    plays: int = 0
    kinds: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, place: Place) -> None:
        """Add a play, which must have brought inserts, updates and deletes."""
        flowed = of_tables(place)
        in_all = sum(flowed.values(), Counter[str]())
        assert {kind for kind in ROW_CHANGES if in_all[kind]} == ROW_CHANGES, in_all
        self.plays += 1
        for table, counts in flowed.items():
            self.kinds.setdefault(table, Counter()).update(counts)

    def missing(self) -> dict[str, set[str]]:
        """By table, the kinds of changes that no play brought; empty while there were too few plays."""
        if self.plays < ENOUGH:
            return {}
        lacking = {
            table: {kind for kind in kinds if not self.kinds.get(table, Counter())[kind]}
            for table, kinds in EVERYTHING.items()
        }
        return {table: kinds for table, kinds in lacking.items() if kinds}
