"""Backfills of a part, of chosen keys, and of tables that come to the pipeline file later and leave it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tidemark.config import TableRule

ITEM, LATER = "part.item", "part.later"


@pytest.fixture(scope="module")
def filled(new_environment: Callable[..., Environment]) -> Environment:
    """A table that was backfilled, and then altered in the lake by somebody else."""
    environment = new_environment("parts", (TableRule(ITEM),))
    environment.execute("CREATE SCHEMA part")
    environment.execute("CREATE TABLE part.item (id int PRIMARY KEY, what text)")
    environment.execute("INSERT INTO part.item SELECT i, 'row ' || i FROM generate_series(1, 6) AS i")
    environment.execute("CREATE TABLE part.later (id int PRIMARY KEY, what text)")
    environment.execute("INSERT INTO part.later VALUES (1, 'old')")
    environment.run()
    environment.backfill(ITEM)
    assert judge.wrongs(environment) == []
    item = judge.table_uri(environment, "current", ITEM)
    for statement in (
        f"UPDATE delta.`{item}` SET what = 'altered' WHERE id IN (2, 6)",
        f"DELETE FROM delta.`{item}` WHERE id = 5",
        f"INSERT INTO delta.`{item}` (id, what) VALUES (-1, 'invented'), (70, 'invented')",
    ):
        environment.spark().sql(statement).collect()
    return environment


def rows(environment: Environment, table: str = ITEM) -> dict[int, str]:
    current = judge.read(environment, "current", table)
    return {} if current is None else {row["id"]: row["what"] for row in current.rows()}


@pytest.mark.thorough
def test_parts_chosen_keys_and_tables_that_come_and_go(filled: Environment) -> None:
    # A part: what its filter names is as at the source, and nothing is swept, within it or without.
    (outcome,) = filled.backfill(ITEM, row_filter="id < 4").tables
    assert (outcome.read, outcome.repaired, outcome.unchanged, outcome.swept) == (3, 1, 2, None)
    assert rows(filled) == {
        -1: "invented",
        1: "row 1",
        2: "row 2",
        3: "row 3",
        4: "row 4",
        6: "altered",
        70: "invented",
    }

    # Chosen keys, of which one is not at the source; a table that is in the file from now on joins beside them.
    filled.config = dataclasses.replace(filled.config, tables=(TableRule(ITEM), TableRule(LATER)))
    filled.run()
    filled.execute("UPDATE part.later SET what = 'streamed' WHERE id = 1")
    filled.execute("INSERT INTO part.later VALUES (2, 'streamed')")
    (keys,) = filled.backfill(ITEM, mode="keys", keys=(("5",), {"id": 70})).tables
    assert (keys.read, keys.inserted, keys.swept) == (1, 1, None)
    assert rows(filled).keys() == {-1, 1, 2, 3, 4, 5, 6, 70}
    assert judge.marked(judge.captured(filled)[LATER]) == "needs backfill: it had rows before it was captured"

    # Without tables the form takes what is wanted: the table that joined, and no other one.
    (later,) = filled.backfill().tables
    assert (later.table, later.read) == (LATER, 2)
    assert judge.wrongs(filled, [LATER]) == []
    assert 70 in rows(filled)

    # One that leaves the file is left as it is, and the other one goes on; the whole restores what is left.
    filled.config = dataclasses.replace(filled.config, tables=(TableRule(ITEM),))
    filled.execute("INSERT INTO part.later VALUES (3, 'not captured')")
    filled.execute("INSERT INTO part.item VALUES (7, 'row 7')")
    filled.run()
    assert judge.captured(filled).keys() == {ITEM}
    assert rows(filled, LATER).keys() == {1, 2}
    (whole,) = filled.backfill(ITEM).tables
    assert (whole.read, whole.repaired, whole.swept) == (7, 1, 2)
    assert judge.wrongs(filled) == []
    assert judge.second_run_changes_nothing(filled) == []
