"""Values of a parametrised test -> the same, marked as thorough: `make faults` plays them, `make test` does not.

Every promise has a test in `make test`; at further steps, or from further sides, it is tried where there is time.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def seeds_of_damage(*few: int, below: int) -> list[Any]:
    """Seeds of a test that damages what another process wrote: `make test` plays few, `make faults` all from 0 on.
    TIDEMARK_DAMAGE_SEEDS=n plays n others, from TIDEMARK_DAMAGE_FIRST on."""
    if count := int(os.environ.get("TIDEMARK_DAMAGE_SEEDS") or 0):
        first = int(os.environ.get("TIDEMARK_DAMAGE_FIRST") or below)
        return list(range(first, first + count))
    return [*few, *thorough(*(seed for seed in range(below) if seed not in few))]


def seeds_of_faults(first: int, end: int) -> list[Any]:
    """Seeds of a thorough test that breaks connections and requests by lot: `make faults` plays those from `first` up
    to `end`. TIDEMARK_FAULTS_SEEDS=n plays n others, from TIDEMARK_FAULTS_FIRST on."""
    if count := int(os.environ.get("TIDEMARK_FAULTS_SEEDS") or 0):
        first = int(os.environ.get("TIDEMARK_FAULTS_FIRST") or end)
        end = first + count
    return thorough(*range(first, end))


def either(**values: Any) -> list[Any]:
    """Values of a parameter, by their ids, of a test whose promise holds for each of them: `make test` plays one, which
    one changes from test to test, and `make faults` plays all."""
    return [
        pytest.param(value, id=name, marks=pytest.mark.either(name, number, len(values)))
        for number, (name, value) in enumerate(values.items())
    ]


def share_out(items: Iterable[pytest.Item]) -> None:
    """Mark those as thorough that `make test` leaves to `make faults`."""
    cases_of: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        for mark in item.iter_markers("either"):
            name, number, count = mark.args
            test, _, ids = item.nodeid.rstrip("]").partition("[")
            others = ids.split("-")
            others.remove(name)
            if (server := item.get_closest_marker("server")) is not None:  # whose turn it is says tests/support/servers
                others.remove(str(server.args[0]))
            if number != hashlib.sha256(f"{test} {others}".encode()).digest()[0] % count:
                item.add_marker(pytest.mark.thorough)
        some = item.get_closest_marker("some")
        if some is not None and item.get_closest_marker("thorough") is None:
            cases_of[item.nodeid.partition("[")[0], some.args[0]].append(item)
    for (_, played), cases in cases_of.items():
        by_lot = sorted(cases, key=lambda case: hashlib.sha256(case.nodeid.encode()).digest())
        for case in by_lot[played:]:
            case.add_marker(pytest.mark.thorough)
