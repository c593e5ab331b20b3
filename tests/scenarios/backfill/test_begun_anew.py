"""A table whose Delta tables cannot be continued: removed, begun anew, and filled by a backfill."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tidemark.config import TableRule
from tidemark.ledger.captured.tables import TableRow
from tidemark.observe.table_commands import unpark

ITEM, SHAPED = "anew.item", "anew.shaped"


def row(environment: Environment, table: str) -> TableRow:
    with environment.ledger_connection() as connection:
        table_row = judge.ledger_tables.one(connection, table)
    assert table_row is not None
    return table_row


def remove(environment: Environment, table: str, *steps: str) -> None:
    for step in steps:
        uri = judge.table_uri(environment, step, table)
        environment.store.delete(uri.removeprefix(f"{environment.config.lake}/"))


def let_go_on(environment: Environment, table: str, *, anew: bool) -> tuple[str, bool]:
    return unpark(environment.config, table, ledger=environment.ledger, anew=anew)


@pytest.mark.thorough
def test_a_table_without_its_delta_tables_begins_anew(new_environment: Callable[..., Environment]) -> None:
    shop = new_environment("anew", (TableRule("anew.*"), TableRule(SHAPED, evolve="ask")))
    shop.execute("CREATE SCHEMA anew")
    for table in (ITEM, SHAPED):
        shop.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, what text, extra int)")
        shop.execute(f"INSERT INTO {table} SELECT i, 'row ' || i FROM generate_series(1, 5) AS i")
    shop.run()
    shop.backfill(ITEM, SHAPED)
    shop.execute(f"UPDATE {ITEM} SET what = 'changed' WHERE id = 1")
    shop.execute(f"UPDATE {SHAPED} SET what = 'changed' WHERE id = 1")
    shop.run()
    assert judge.wrongs(shop) == []

    # One lost its files. The other has changes of two shapes, which no Delta table can take both.
    remove(shop, ITEM, "history")
    shop.execute(f"DELETE FROM {ITEM} WHERE id = 2")
    shop.execute(f"UPDATE {SHAPED} SET extra = 1 WHERE id = 3")
    shop.drain()
    shop.execute(f"ALTER TABLE {SHAPED} ALTER COLUMN extra TYPE text")
    shop.execute(f"UPDATE {SHAPED} SET extra = 'two' WHERE id = 3")
    shop.run()
    assert {row(shop, table).life.merge for table in (ITEM, SHAPED)} == {"parked"}
    sentence, goes_on = let_go_on(shop, ITEM, anew=True)
    assert not goes_on
    assert "First remove anew/current/anew/item" in sentence
    remove(shop, ITEM, "current")
    remove(shop, SHAPED, "history", "current")

    # Un-parked as usual, both are parked again: what is staged does not begin at an empty table.
    for table in (ITEM, SHAPED):
        assert let_go_on(shop, table, anew=False)[1]
    shop.execute(f"DELETE FROM {ITEM} WHERE id = 3")
    shop.run()
    assert [row(shop, table).error.kind for table in (ITEM, SHAPED)] == ["PositionBelowPlan", "DefinitionUndecided"]

    for table in (ITEM, SHAPED):
        assert let_go_on(shop, table, anew=True)[1]
        assert row(shop, table).life.needs_backfill
    assert row(shop, ITEM).backfill_kind == "begun_anew"
    shop.execute(f"UPDATE {ITEM} SET what = 'behind' WHERE id = 4")
    shop.execute(f"DELETE FROM {SHAPED} WHERE id = 5")
    shop.run()
    assert shop.confirmed_lsn() == shop.staged_lsn()
    assert {row(shop, table).life.merge for table in (ITEM, SHAPED)} == {"merging"}
    shop.backfill(ITEM, SHAPED)
    assert judge.wrongs(shop) == []
    assert not any(row(shop, table).life.needs_backfill for table in (ITEM, SHAPED))
    assert judge.second_run_changes_nothing(shop) == []
