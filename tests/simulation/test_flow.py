"""A play in which one kind of changes never flows fails, and so do plays that lack a kind of changes of one table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation.flow import ENOUGH, EVERYTHING, ROW_CHANGES, Met
from tests.support.pipeline import Place

ALL_KINDS = {kind: 1 for kinds in EVERYTHING.values() for kind in kinds}


def play(**without: str) -> Place:
    """A place that staged every kind of changes of every table, but for some of some tables."""
    rows: list[tuple[Any, ...]] = [
        (table, {kind: n for kind, n in ALL_KINDS.items() if kind != without.get(table.partition(".")[2])}, 1, 1)
        for table in EVERYTHING
    ]
    return cast(Place, SimpleNamespace(config=SimpleNamespace(pipeline="p"), ledger_query=lambda *_: rows))


@pytest.mark.parametrize("kind", sorted(ROW_CHANGES))
def test_a_play_in_which_a_kind_of_changes_never_flows_fails(kind: str) -> None:
    with pytest.raises(AssertionError):
        Met().add(play(**dict.fromkeys((table.partition(".")[2] for table in EVERYTHING), kind)))


def test_a_kind_of_changes_that_no_play_brought_to_a_table_is_named_after_enough_of_them() -> None:
    met = Met()
    for _ in range(ENOUGH - 1):
        met.add(play(bag="update"))
    assert met.missing() == {}
    met.add(play(bag="update"))
    assert met.missing() == {"sim.bag": {"update"}}
