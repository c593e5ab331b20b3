"""A table that an older version parked for what is followed by now leaves by itself, and no other one does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture.merge_planning import leased_plan
from tidemark.errors import KeyValueUnfit, SchemaNotFollowed, TidemarkError
from tidemark.ledger.captured import tables
from tidemark.ledger.staged import positions

ORDERS = "public.orders"
WIDER = 'column "amount" changed from numeric(10,2) (decimal(10,2)) to numeric(12,2) (decimal(12,2))'
KEY = 'the key changed from "id" to "number"'
RENAMED = 'column "note" was dropped, renamed or left out'


@pytest.fixture
def orders(pipeline: Pipeline) -> Pipeline:
    """A table whose first row is in its target."""
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note text)")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 1.5)")
    pipeline.drain()
    with pipeline.ledger_connection() as ledger:
        end = pipeline.staged_lsn()
        positions.rise(ledger, 1, {ORDERS: (end, end)})
    return pipeline


def altered_and_parked(orders: Pipeline, statement: str, error: TidemarkError) -> None:
    """As an older version left it."""
    follows, orders.config = orders.config, replace(orders.config, evolve="ask")
    orders.execute(statement, "INSERT INTO orders VALUES (2)")
    orders.drain()
    orders.config = follows
    with orders.ledger_connection() as ledger:
        tables.unpark(ledger, ORDERS)
        tables.park(ledger, ORDERS, error.record())


def planned(orders: Pipeline) -> list[str]:
    with leased_plan(orders.task("merge")) as plan:
        return [] if plan is None else [table.table for table in plan.tables]


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("ALTER TABLE orders ALTER amount TYPE numeric(12,2)", WIDER),
        ("ALTER TABLE orders RENAME note TO remark", RENAMED),
        ("ALTER TABLE orders DROP note", RENAMED),
        ("ALTER TABLE orders RENAME id TO number", f"{RENAMED.replace('note', 'id')}; {KEY}"),
    ],
)
def test_a_table_parked_for_what_is_followed_by_now_is_merged_by_the_next_run(
    orders: Pipeline, statement: str, difference: str
) -> None:
    altered_and_parked(orders, statement, SchemaNotFollowed(table=ORDERS, difference=difference))
    assert planned(orders) == [ORDERS]
    assert orders.table_row(ORDERS).life.merge == "merging"


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        # Nothing in the shapes says so, but the error does.
        ("ALTER TABLE orders ALTER amount TYPE numeric(12,2)", f"{WIDER}; {RENAMED}"),
        ("ALTER TABLE orders ALTER amount TYPE numeric(12,2)", "the key's columns id are left out"),
        # The error was told by what is followed, and the shapes are not.
        ("ALTER TABLE orders ALTER amount TYPE numeric(10,4)", WIDER),
    ],
)
def test_a_table_that_is_parked_for_anything_else_stays(orders: Pipeline, statement: str, error: str) -> None:
    altered_and_parked(orders, statement, SchemaNotFollowed(table=ORDERS, difference=error))
    assert planned(orders) == []
    assert orders.table_row(ORDERS).life.merge == "parked"


def test_an_error_of_another_kind_stays_whatever_became_of_the_shape(orders: Pipeline) -> None:
    statement = "ALTER TABLE orders ALTER amount TYPE numeric(12,2)"
    altered_and_parked(orders, statement, KeyValueUnfit(table=ORDERS, columns="id"))
    assert planned(orders) == []


def test_a_table_whose_names_moved_waits_for_a_message_that_shows_which_column_is_which(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders RENAME note TO remark", "ALTER TABLE orders ADD COLUMN note text")
    orders.execute("ALTER TABLE orders DROP amount", "INSERT INTO orders VALUES (2, 'remark', 'note')")
    orders.drain()
    assert orders.table_row(ORDERS).life.merge == "parked"
    assert planned(orders) == []
    orders.execute("INSERT INTO orders VALUES (3, 'remark', 'note')")
    orders.drain()
    with leased_plan(orders.task("merge")) as plan:
        assert plan is not None
        (table,) = plan.tables
    assert [{c.name: c.attnum for c in schema.columns} for schema in table.schemas] == 2 * [
        {"id": 1, "remark": 3, "note": 4}
    ]
    assert (table.called["note"], [column.name for column in table.dropped]) == (3, ["amount"])


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        (
            "ALTER TABLE orders RENAME more TO note",
            'column "note" has a name by now that the target has for a dropped one',
        ),
        (
            "ALTER TABLE orders ADD note int",
            'column "note" was dropped and added again as integer (int), and the target has the dropped one (string)',
        ),
    ],
)
def test_a_table_parked_for_the_name_of_a_dropped_column_goes_on(
    orders: Pipeline, statement: str, difference: str
) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN more text", "INSERT INTO orders VALUES (12)")
    orders.execute("ALTER TABLE orders DROP note", "INSERT INTO orders VALUES (13)")
    orders.drain()
    altered_and_parked(orders, statement, SchemaNotFollowed(table=ORDERS, difference=difference))
    assert planned(orders) == [ORDERS]
