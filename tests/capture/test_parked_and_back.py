"""What parked a table is over at the source, or the file follows it: it is built anew beside the old one (R6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture import drain as drain_module
from tidemark.capture.merge_planning import leased_plan
from tidemark.config import TableRule
from tidemark.ledger.staged import positions

ORDERS = "public.orders"
ANEW = f"{ORDERS}~2"
AMOUNT = "ALTER TABLE orders ALTER amount TYPE {} USING amount::{}"


@pytest.fixture
def orders(pipeline: Pipeline) -> Pipeline:
    """A table that is listed in the publication and whole, with one row."""
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note text)")
    pipeline.config = replace(pipeline.config, manage_publication=False, tables=(TableRule(ORDERS),))
    pipeline.execute(f"CREATE PUBLICATION {pipeline.config.publication} FOR TABLE orders")
    pipeline.create_slot()
    pipeline.sound()
    pipeline.execute("INSERT INTO orders VALUES (1, 1.5, 'one')")
    pipeline.drain()
    with pipeline.ledger_connection() as ledger:
        end = pipeline.staged_lsn()
        positions.rise(ledger, 1, {ORDERS: (end, end)})
    is_whole(pipeline)
    return pipeline


def is_whole(orders: Pipeline) -> None:
    """As if a backfill had brought all rows."""
    orders.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, "
        "backfill_since = NULL, columns_in_doubt = NULL RETURNING 1"
    )


def never_merged(orders: Pipeline) -> None:
    orders.ledger_query("DELETE FROM tidemark.positions RETURNING 1")


def evolving(orders: Pipeline, mode: Any) -> None:
    orders.config = replace(orders.config, tables=(TableRule(ORDERS, evolve=mode),))


def publish(orders: Pipeline, what: str) -> None:
    orders.execute(f"ALTER PUBLICATION {orders.config.publication} SET TABLE orders {what}")


def run(orders: Pipeline) -> list[str]:
    """Preflight, drain, and which tables a merge would take."""
    orders.preflight()
    orders.drain()
    return planned(orders)


def planned(orders: Pipeline) -> list[str]:
    with leased_plan(orders.task("merge")) as plan:
        return [] if plan is None else [table.table for table in plan.tables]


def run_where(orders: Pipeline, *altered: str) -> list[str]:
    """As `run`, where these statements come between the run's look at the catalogue and its heartbeat."""
    emit = drain_module.emit_heartbeat

    def altered_first(*args: Any, **options: Any) -> Any:
        orders.execute(*altered)
        return emit(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drain_module, "emit_heartbeat", altered_first)
        return run(orders)


def is_built_anew(orders: Pipeline) -> None:
    """Readers have the old table until a backfill of the new one is through; a further run changes nothing."""
    row = orders.table_row(ANEW)
    assert (row.life.capture, row.life.merge, row.life.needs_backfill) == ("joining", "merging", True)
    assert orders.table_row(ORDERS).life.capture == "left"
    orders.preflight()
    run(orders)
    assert set(orders.table_rows()) == {ORDERS, ANEW}


def test_a_column_that_is_left_out_is_not_in_the_table_that_is_built_anew(orders: Pipeline) -> None:
    publish(orders, "(id, amount)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    assert run(orders) == [ANEW]
    is_built_anew(orders)


@pytest.mark.some(2)
@pytest.mark.parametrize("behind", ["nothing", "a change"])
@pytest.mark.parametrize("columns", ["(id, amount)", "(id, note)"])
def test_a_column_that_is_published_again_is_marked_there(orders: Pipeline, columns: str, behind: str) -> None:
    publish(orders, columns)
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    run(orders)
    orders.preflight()
    run(orders)
    is_whole(orders)
    publish(orders, "")
    if behind == "a change":
        orders.execute("INSERT INTO orders VALUES (3, 3, 'three')")
    run(orders)
    reason = orders.table_row(ANEW).backfill_reason
    column = "note" if columns == "(id, amount)" else "amount"
    assert f'column "{column}" was there before and is captured only now' in str(reason)


def test_a_shape_that_chunks_alone_have_keeps_a_table_parked_that_does_not_fit_it(orders: Pipeline) -> None:
    evolving(orders, "ask")
    never_merged(orders)
    orders.ledger_query("UPDATE tidemark.schema_versions SET streamed = false RETURNING 1")
    orders.execute(AMOUNT.format("text", "text"), "INSERT INTO orders VALUES (2, 2, 'two')")
    orders.drain()
    orders.execute("ALTER TABLE orders ADD more int", "INSERT INTO orders VALUES (3, 3, 'three', 3)")
    orders.drain()
    evolving(orders, "follow")
    assert planned(orders) == []
    assert orders.table_row(ORDERS).life.merge == "parked"


def test_a_look_from_before_a_column_got_a_name_that_is_taken_ends_no_park(orders: Pipeline) -> None:
    added = ("ALTER TABLE orders ADD _commit_lsn int", "INSERT INTO orders VALUES (2, 2, 'two', 22)")
    assert run_where(orders, *added) == []
    assert orders.table_row(ORDERS).life.merge == "parked"
    assert run(orders) == []
    assert orders.table_row(ORDERS).life.merge == "parked"
    orders.execute("ALTER TABLE orders RENAME _commit_lsn TO lsn")
    run(orders)
    is_built_anew(orders)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("given", "taken_back"),
    [
        ("ADD _commit_lsn int", "DROP _commit_lsn"),
        ("ADD _commit_lsn int", "RENAME _commit_lsn TO lsn"),
        ('ADD "NOTE" int', 'DROP "NOTE"'),
        ('ADD "NOTE" int', "DROP note"),
    ],
)
@pytest.mark.parametrize("behind", ["nothing", "a change"])
def test_a_name_that_no_column_has_any_more_ends_the_park(
    orders: Pipeline, given: str, taken_back: str, behind: str
) -> None:
    orders.execute(f"ALTER TABLE orders {given}", "INSERT INTO orders VALUES (2, 2, 'two', 22)")
    assert run(orders) == []
    assert run(orders) == []
    assert orders.table_row(ORDERS).life.merge == "parked"
    orders.execute(f"ALTER TABLE orders {taken_back}")
    if behind == "a change":
        orders.execute("INSERT INTO orders VALUES (3, 3)")
    run(orders)
    is_built_anew(orders)


BACK = {
    "type": (AMOUNT.format("text", "text"), AMOUNT.format("numeric(10,2)", "numeric")),
    "key": ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD PRIMARY KEY (id)"),
    "identity": ("ALTER TABLE orders REPLICA IDENTITY NOTHING", "ALTER TABLE orders REPLICA IDENTITY DEFAULT"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("what", list(BACK))
@pytest.mark.parametrize("behind", ["nothing", "a change"])
def test_what_came_back_as_it_was_goes_on_beside_once_the_file_says_follow(
    orders: Pipeline, what: str, behind: str
) -> None:
    """What is staged of the time between fits into no table with the rest, so that it cannot leave by itself."""
    evolving(orders, "ask")
    altered, restored = BACK[what]
    orders.execute(altered, "INSERT INTO orders VALUES (2)")
    assert run(orders) == []
    orders.execute(restored)
    if behind == "a change":
        orders.execute("INSERT INTO orders VALUES (3)")
    assert run(orders) == []
    error = orders.table_row(ORDERS).error
    assert error is not None
    assert "Write `evolve: follow` for the table in the pipeline file: the next run builds it anew" in error.message
    evolving(orders, "follow")
    run(orders)
    is_built_anew(orders)


@pytest.mark.parametrize("behind", ["nothing", "a change"])
def test_a_key_that_is_published_again_goes_on_beside(orders: Pipeline, behind: str) -> None:
    publish(orders, "(amount, note)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    assert run(orders) == [ANEW]
    publish(orders, "")
    if behind == "a change":
        orders.execute("INSERT INTO orders VALUES (3, 3, 'three')")
    run(orders)
    assert orders.table_row(f"{ORDERS}~3").life.needs_backfill
