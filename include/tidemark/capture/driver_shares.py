"""Divides the tables that are due among the run's Spark applications, by the rows and bytes that wait for them.

The applications share no table. Each plans its tables by itself, under their leases
(`capture.merge_planning.leased_plan`), so a share may be outdated when its application starts. The longest table goes
first, to the application with the least to do. A table that takes longer than all others together has an application to
itself, and no application ends late because a long table came last. Starting an application is worth it only if it has
work for about as long as the start takes. A run with little to merge starts one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.capture.merge_planning import PlanScope, awaiting_their_name, may_be_planned
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import unapplied_changes
from tidemark.ledger.staged.unapplied_changes import Backlog
from tidemark.run import Run

# Seconds of work that make an application worth its start, which takes 10 to 15 CPU seconds by itself.
WORTH_S: Final = 30.0

# A table that takes so many seconds gets an application to itself, if there are enough: an application writes its
# results last.
HUGE_S: Final = 120.0

# The time of a table, and the rates of its changes, for a thread of a warm driver on two cores
# (benchmarks/many_tables.py). They are rather too slow than too fast.
TABLE_S: Final = 1.0
CHANGES_PER_S: Final = 20_000
BYTES_PER_S: Final = 10 * 2**20


@dataclass(frozen=True, slots=True)
class Share:
    """The tables of one application, longest first, and their expected seconds one after another."""

    tables: tuple[str, ...]
    seconds: float


def spread(run: Run, scope: PlanScope) -> list[Share]:
    """The shares of the due tables, at most `merge.applications`; none if nothing is due."""
    with open_ledger(run.ledger, run.pipeline) as book:
        names = may_be_planned(book, run, scope)
        if not names and (whole := awaiting_their_name(book, scope)):
            return [Share(tuple(whole), 0.0)]
        waiting = unapplied_changes.all_of(book, names)
    expected = {table: expected_s(backlog) for table, backlog in waiting.items()}
    return shares(expected, run.config.merge.applications, run.config.merge.threads)


def expected_s(backlog: Backlog) -> float:
    """The approximate seconds of the table's merge."""
    return TABLE_S + max(backlog.changes / CHANGES_PER_S, backlog.bytes / BYTES_PER_S)


def shares(expected: Mapping[str, float], applications: int, threads: int) -> list[Share]:
    """Spread tables with their seconds over as many applications as are worth their start. Each merges `threads`
    tables at a time."""
    if not expected:
        return []
    huge = sum(seconds >= HUGE_S for seconds in expected.values())
    worth = math.floor(sum(expected.values()) / threads / WORTH_S)
    count = min(applications, len(expected), max(1, worth, huge + (huge < len(expected))))
    loads: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(count)]
    for table in sorted(expected, key=lambda table: (-expected[table], table)):
        least = min(range(count), key=lambda number: (loads[number][0], number))
        seconds, names = loads[least]
        loads[least] = (seconds + expected[table], [*names, table])
    return [Share(tuple(names), seconds) for seconds, names in loads]
