"""What a scenario file cannot say: several pipelines, and what an operator does by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tidemark.config import TableRule
from tidemark.errors import LeaseTaken
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import merge_states


@pytest.fixture(scope="module")
def two(new_environment: Callable[..., Environment]) -> tuple[Environment, Environment]:
    """Two pipelines on two source databases that share one ledger and one lake."""
    left = new_environment("left", (TableRule("public.*"),))
    right = new_environment("right", (TableRule("public.*"),))
    right.ledger = left.ledger
    right.config = dataclasses.replace(right.config, lake=left.config.lake)
    for environment in (left, right):
        environment.execute("CREATE TABLE item (id int PRIMARY KEY, whose text)")
        environment.run()
    return left, right


def test_two_pipelines_on_two_databases_run_side_by_side(two: tuple[Environment, Environment]) -> None:
    left, right = two
    for environment in two:
        environment.execute(f"INSERT INTO item SELECT i, '{environment.config.pipeline}' FROM generate_series(1, 3) i")
        environment.begin_run()
    left.drain()
    right.drain()
    right.merge()
    left.execute("UPDATE item SET whose = 'left again' WHERE id = 1")
    left.merge()
    right.confirm()
    left.confirm()
    left.run()
    for environment in two:
        assert judge.wrongs(environment) == []
        assert judge.second_run_changes_nothing(environment) == []
    rows = judge.read(right, "current", "public.item")
    assert rows is not None
    assert {row["whose"] for row in rows.rows()} == {"right"}


def test_a_lease_of_one_pipeline_stops_no_other(two: tuple[Environment, Environment]) -> None:
    left, right = two
    with left.holding_lease("slot"):
        left.begin_run()
        with pytest.raises(LeaseTaken):
            left.drain()
        right.run()


def test_an_unparked_table_gets_all_its_batches_in_order(new_environment: Callable[..., Environment]) -> None:
    environment = new_environment("unparking", (TableRule("public.*"),))
    for table in ("broken", "sound"):
        environment.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")
    environment.run()
    environment.execute("INSERT INTO broken VALUES (1, 'a')")
    environment.run()
    with environment.ledger_connection() as connection:
        merge_states.park(
            connection,
            "public.broken",
            ErrorRecord("Test", "FIX_TARGET", "broken by hand"),
        )
    for name in "bcd":
        environment.execute(f"UPDATE broken SET name = '{name}'")
        environment.execute(f"INSERT INTO sound VALUES ({ord(name)}, '{name}')")
        environment.run()
        assert environment.confirmed_lsn() == environment.staged_lsn(), "a parked table holds the slot back"
    assert judge.wrongs(environment, ["public.sound"]) == []
    assert judge.current_equals_source(environment, "public.broken") != []
    with environment.ledger_connection() as connection:
        assert merge_states.unpark(connection, "public.broken")
    environment.run()
    assert judge.wrongs(environment) == []
    assert judge.second_run_changes_nothing(environment) == []
    history = judge.read(environment, "history", "public.broken")
    assert history is not None
    assert [row["name"] for row in judge.in_order(history.rows())] == ["a", "b", "c", "d"]
