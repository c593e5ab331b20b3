"""Tables that do not follow a change of their definition by themselves, and what was decided, in the ledger."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture.definitions import evolve_decisions
from tidemark.capture.merge_planning import leased_plan
from tidemark.config import Evolve, TableRule
from tidemark.ledger.captured import definition_changes, tables
from tidemark.ledger.staged import positions
from tidemark.names import TableName
from tidemark.observe import table_commands

ORDERS = "public.orders"
ADDED = 'column "more" was added'


def with_rules(pipeline: Pipeline, evolve: Evolve, *rules: TableRule) -> Pipeline:
    pipeline.with_tables(*(rules or (TableRule("public.*", evolve=evolve),)))
    return pipeline


@pytest.fixture
def orders(pipeline: Pipeline) -> Pipeline:
    """Two tables whose first rows are in their targets."""
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "CREATE TABLE other (id int PRIMARY KEY)")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)", "INSERT INTO other VALUES (1)")
    drained_and_applied(pipeline)
    return pipeline


def drained_and_applied(pipeline: Pipeline) -> None:
    pipeline.drain()
    with pipeline.ledger_connection() as ledger:
        end = pipeline.staged_lsn()
        positions.rise(ledger, 1, {ORDERS: (end, end), "public.other": (end, end)})


def planned(pipeline: Pipeline) -> list[str]:
    with leased_plan(pipeline.task("merge")) as plan:
        return [] if plan is None else [table.table for table in plan.tables]


def decided(pipeline: Pipeline, table: str = ORDERS) -> list[tuple[str, str, int | None, int | None, str | None]]:
    with pipeline.ledger_connection() as ledger:
        changes = definition_changes.of_table(ledger, table)
    return [(c.decided, c.reason, c.before, c.after, c.decided_by) for c in reversed(changes)]


def test_what_is_followed_marked_and_parked_is_kept_with_both_definitions(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (2)")
    orders.drain()
    orders.execute("ALTER TABLE orders ALTER note TYPE int USING 1", "INSERT INTO orders VALUES (3)")
    orders.execute("ALTER TABLE other ADD COLUMN at timestamptz DEFAULT clock_timestamp()")
    with_rules(orders, "ask").drain()
    followed, parked = decided(orders)
    assert followed == ("followed", ADDED, 1, 2, None)
    assert (parked[0], parked[2:]) == ("parked", (2, 3, None))
    assert 'column "note" changed from text (string) to integer (int)' in parked[1]
    ((how, reason, *versions),) = decided(orders, "public.other")
    assert (how, versions) == ("marked", [1, 2, None])
    assert "rewritten" in reason
    kept = orders.ledger_query("SELECT before -> 'columns', after -> 'columns', lsn FROM tidemark.definition_changes")
    assert [len(columns) for columns in kept[0][:2]] == [2, 3]


@pytest.mark.parametrize("evolve", ["ask", "freeze"])
def test_a_table_that_may_not_follow_by_itself_is_stopped_and_the_others_go_on(
    orders: Pipeline, evolve: Evolve
) -> None:
    strict = with_rules(orders, "follow", TableRule("public.*"), TableRule(ORDERS, evolve=evolve))
    orders.execute("INSERT INTO orders VALUES (2)", "INSERT INTO other VALUES (2)")
    strict.drain()
    assert planned(strict) == [ORDERS, "public.other"]
    orders.execute("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (3)")
    strict.drain()
    assert planned(strict) == ["public.other"]
    row = strict.table_row(ORDERS)
    assert (row.life.merge, ADDED in (row.error.message if row.error else "")) == ("parked", True)
    assert decided(strict)[1:] == [("asked" if evolve == "ask" else "frozen", ADDED, 1, 2, None)]


def test_what_another_run_stages_while_leases_are_taken_stops_a_table_too(
    orders: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = with_rules(orders, "ask")
    orders.execute("INSERT INTO orders VALUES (2)", "INSERT INTO other VALUES (2)")
    asking.drain()
    look = evolve_decisions.hold

    def look_too_early(*arguments: Any) -> list[str]:
        held = look(*arguments)
        orders.execute("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (3)")
        asking.drain()
        return held

    monkeypatch.setattr(evolve_decisions, "hold", look_too_early)
    assert planned(asking) == ["public.other"]
    assert asking.table_row(ORDERS).life.is_parked


def test_who_goes_on_with_a_table_is_kept_and_it_is_not_stopped_for_that_again(orders: Pipeline) -> None:
    asking = with_rules(orders, "ask")
    orders.execute("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (2)")
    asking.drain()
    assert planned(asking) == []
    said, done = table_commands.unpark(asking.config, ORDERS, ledger=asking.ledger, who="somebody")
    assert done, said
    assert decided(asking)[-1] == ("accepted", ADDED, 1, 2, "somebody")
    assert planned(asking) == [ORDERS]
    orders.execute("ALTER TABLE orders DROP COLUMN note", "INSERT INTO orders VALUES (3)")
    asking.drain()
    assert planned(asking) == []
    assert decided(asking)[-1][1] == f'{ADDED}; column "note" was dropped'


def test_a_frozen_table_goes_on_by_itself_once_the_file_says_so_and_not_before(orders: Pipeline) -> None:
    frozen = with_rules(orders, "freeze")
    orders.execute("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (2)")
    frozen.drain()
    assert planned(frozen) == []
    said, done = table_commands.unpark(frozen.config, ORDERS, ledger=frozen.ledger, who="somebody")
    assert not done
    assert "freeze" in said
    assert planned(frozen) == []
    follows = with_rules(frozen, "follow")
    assert planned(follows) == [ORDERS]
    assert decided(follows)[-1] == ("accepted", ADDED, 1, 2, None)


def test_the_first_definition_and_one_that_came_back_stop_nothing(pipeline: Pipeline) -> None:
    asking = with_rules(pipeline, "ask")
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    asking.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    asking.drain()
    assert planned(asking) == [ORDERS]
    assert decided(asking) == []


def test_the_file_says_it_for_all_tables_or_for_some(orders: Pipeline) -> None:
    config = dataclasses.replace(
        orders.config, evolve="freeze", tables=(TableRule("public.*"), TableRule(ORDERS, evolve="ask", line=2))
    )
    with orders.ledger_connection() as ledger:
        rows = {row.table: row for row in tables.all_of(ledger)}
        assert evolve_decisions.hold(ledger, config) == []
    assert set(rows) == {ORDERS, "public.other"}
    assert [config.evolves(TableName.parse(table)) for table in rows] == ["ask", "freeze"]
    twice = dataclasses.replace(config, tables=(*config.tables, TableRule("public.o*", evolve="follow", line=3)))
    assert twice.conflicts(TableName.parse(ORDERS)) == [
        "public.orders: line 2 says evolve ask, the entry in line 3 says evolve follow"
    ]
