"""What is not certain of a definition is never guessed: the table is built again beside itself, and is never parked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.pipeline import Pipeline
from tidemark.errors import KeyValueUnfit, SchemaNotFollowed, TidemarkError
from tidemark.ledger.captured import merge_states
from tidemark.ledger.staged import positions

ORDERS = "public.orders"
WIDER = 'column "amount" changed from numeric(10,2) (decimal(10,2)) to numeric(12,2) (decimal(12,2))'


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


def kept_as(orders: Pipeline) -> str:
    """The table that goes on with the relation."""
    ((table,),) = orders.ledger_query('SELECT "table" FROM tidemark.relations')
    return str(table)


def parked(orders: Pipeline) -> list[str]:
    return [table for table, row in orders.table_rows().items() if row.life.is_parked]


def altered_and_parked(orders: Pipeline, statement: str, error: TidemarkError) -> None:
    """As another `evolve` left it."""
    follows, orders.config = orders.config, replace(orders.config, evolve="ask")
    orders.execute(statement, "INSERT INTO orders VALUES (2)")
    orders.drain()
    orders.config = follows
    with orders.ledger_connection() as ledger:
        merge_states.unpark(ledger, ORDERS)
        merge_states.park(ledger, ORDERS, error.record())


def test_a_table_that_is_parked_for_its_shape_is_built_anew_by_the_next_run(orders: Pipeline) -> None:
    widened = "ALTER TABLE orders ALTER amount TYPE numeric(12,2)"
    altered_and_parked(orders, widened, SchemaNotFollowed(table=ORDERS, difference=WIDER))
    orders.drain()
    assert kept_as(orders) != ORDERS
    assert orders.table_row(kept_as(orders)).life.needs_backfill


def test_an_error_of_another_kind_stays_whatever_became_of_the_shape(orders: Pipeline) -> None:
    statement = "ALTER TABLE orders ALTER amount TYPE numeric(12,2)"
    altered_and_parked(orders, statement, KeyValueUnfit(table=ORDERS, columns="id"))
    orders.drain()
    assert (kept_as(orders), parked(orders)) == (ORDERS, [ORDERS])


@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE orders RENAME note TO remark",
            "ALTER TABLE orders ADD note text",
            "ALTER TABLE orders DROP amount",
        ),
        ("ALTER TABLE orders DROP note, ADD note text",),
        ("INSERT INTO orders VALUES (5)", "ALTER TABLE orders DROP note", "ALTER TABLE orders ADD more text"),
        ("ALTER PUBLICATION {publication} SET TABLE orders (id, amount)",),
    ],
)
def test_what_can_be_read_in_more_than_one_way_builds_the_table_anew(
    orders: Pipeline, statements: tuple[str, ...]
) -> None:
    """One that has been read from the start of the interval on goes on in the table that is built anew."""
    publication = orders.config.publication
    if "PUBLICATION" in statements[-1]:
        orders.execute(f"DROP PUBLICATION {publication}", f"CREATE PUBLICATION {publication} FOR TABLE orders")
        orders.drain()
    orders.execute(*[one.format(publication=publication) for one in statements], "INSERT INTO orders VALUES (2)")
    orders.drain()
    orders.execute("INSERT INTO orders VALUES (3)")
    orders.drain()
    assert kept_as(orders) != ORDERS
    assert parked(orders) == []
    assert orders.table_row(kept_as(orders)).life.needs_backfill


@pytest.mark.parametrize("began", ["before", "between the two runs"])
def test_rows_that_had_no_key_before_the_table_had_one_build_it_anew(pipeline: Pipeline, began: str) -> None:
    """Under FULL identity no message says whether a row is from before the key, which its NULL does."""
    pipeline.begin()
    pipeline.execute("CREATE TABLE orders (id int, note text)", "ALTER TABLE orders REPLICA IDENTITY FULL")
    pipeline.execute("INSERT INTO orders VALUES (1, 'stays'), (NULL, 'goes')")
    if began == "before":
        pipeline.drain()
    pipeline.execute("DELETE FROM orders WHERE id IS NULL", "ALTER TABLE orders ADD PRIMARY KEY (id)")
    pipeline.drain()
    row = pipeline.table_row(kept_as(pipeline))
    assert (row.life.is_parked, row.life.needs_backfill) == (False, True)
    assert "rows from before it had its key" in str(row.backfill_reason)
    pipeline.execute("INSERT INTO orders VALUES (2, 'later')")
    pipeline.drain()
    assert pipeline.table_row(kept_as(pipeline)).table == row.table


@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE orders ADD c text DEFAULT 'x'",
            "INSERT INTO orders VALUES (2)",
            "ALTER TABLE orders RENAME c TO d",
        ),
        ("INSERT INTO orders VALUES (2)", "ALTER TABLE orders DROP note"),
        (
            "ALTER TABLE orders RENAME note TO x",
            "INSERT INTO orders VALUES (2)",
            "ALTER TABLE orders RENAME amount TO note",
        ),
    ],
)
def test_what_leaves_one_way_to_read_it_is_followed(orders: Pipeline, statements: tuple[str, ...]) -> None:
    orders.execute(*statements, "INSERT INTO orders VALUES (3)")
    orders.drain()
    row = orders.table_row(ORDERS)
    assert (kept_as(orders), parked(orders), row.life.needs_backfill) == (ORDERS, [], False), row.backfill_reason
