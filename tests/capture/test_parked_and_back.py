"""What parked a table is over at the source: the table goes on by itself, or as its error says (R6)."""

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
AMOUNT = "ALTER TABLE orders ALTER amount TYPE {} USING amount::{}"
MISSED = "it was parked while changes came without column "


@pytest.fixture
def orders(pipeline: Pipeline) -> Pipeline:
    """A table that is listed in the publication and whole, with one row; `evolve: ask`, which has any other shape park
    it."""
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


def mark(orders: Pipeline, table: str = ORDERS) -> tuple[str | None, list[int] | None]:
    row = orders.table_row(table)
    return row.backfill_reason, row.columns_in_doubt


def run_where(orders: Pipeline, *altered: str) -> list[str]:
    """As `run`, where these statements come between the run's look at the catalogue and its heartbeat."""
    emit = drain_module.emit_heartbeat

    def altered_first(*args: Any, **options: Any) -> Any:
        orders.execute(*altered)
        return emit(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drain_module, "emit_heartbeat", altered_first)
        return run(orders)


def test_a_column_that_is_published_again_ends_the_park_with_the_next_change(orders: Pipeline) -> None:
    publish(orders, "(id, amount)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    assert run(orders) == []
    error = orders.table_row(ORDERS).error
    assert error is not None
    assert 'column "note" was dropped, renamed or left out' in error.message
    assert run(orders) == []
    publish(orders, "")
    assert run(orders) == []
    assert run(orders) == []
    orders.execute("INSERT INTO orders VALUES (3, 3, 'three')")
    assert run(orders) == [ORDERS]
    assert orders.table_row(ORDERS).life.needs_backfill


def test_a_table_of_which_nothing_was_merged_yet_leaves_too(orders: Pipeline) -> None:
    never_merged(orders)
    publish(orders, "(id, amount)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    assert run(orders) == []
    publish(orders, "")
    assert run(orders) == []
    orders.execute("INSERT INTO orders VALUES (3, 3, 'three')")
    orders.drain()
    is_whole(orders)
    assert planned(orders) == [ORDERS]
    assert mark(orders) == (f'{MISSED}"note"', [3])


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


def test_a_look_from_before_a_column_was_left_out_ends_no_park(orders: Pipeline) -> None:
    left_out = f"ALTER PUBLICATION {orders.config.publication} SET TABLE orders (id, amount)"
    assert run_where(orders, left_out, "INSERT INTO orders VALUES (2, 2, 'two')") == []
    assert orders.table_row(ORDERS).life.merge == "parked"
    assert run(orders) == []
    assert orders.table_row(ORDERS).life.merge == "parked"


def test_a_column_that_was_published_at_the_look_alone_ends_no_park(orders: Pipeline) -> None:
    """No change is of the shape that the look saw, so that none would tell that the column is left out again."""
    publish(orders, "(id, amount)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    assert run(orders) == []
    publish(orders, "")
    left_out = f"ALTER PUBLICATION {orders.config.publication} SET TABLE orders (id, amount)"
    assert run_where(orders, left_out, "INSERT INTO orders VALUES (3, 3, 'three')") == []
    assert orders.table_row(ORDERS).life.merge == "parked"


def test_a_look_from_before_a_column_got_a_name_that_is_taken_ends_no_park(orders: Pipeline) -> None:
    added = ("ALTER TABLE orders ADD _commit_lsn int", "INSERT INTO orders VALUES (2, 2, 'two', 22)")
    assert run_where(orders, *added) == []
    assert orders.table_row(ORDERS).life.merge == "parked"
    orders.execute("ALTER TABLE orders RENAME _commit_lsn TO lsn")
    assert run(orders) == [ORDERS]
    assert mark(orders) == (f'{MISSED}"lsn"', [4])


def test_what_changed_without_the_column_is_marked_though_nothing_else_says_it(orders: Pipeline) -> None:
    """Whatever the looks at the catalogue said was for a backfill that was through before the park ended."""
    publish(orders, "(id, amount)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    run(orders)
    publish(orders, "")
    orders.execute("INSERT INTO orders VALUES (3, 3, 'three')")
    orders.drain()
    is_whole(orders)
    assert planned(orders) == [ORDERS]
    assert mark(orders) == (f'{MISSED}"note"', [3])


@pytest.mark.parametrize(
    ("given", "taken_back", "expected"),
    [
        ("ADD _commit_lsn int", "DROP _commit_lsn", (None, None)),
        ("ADD _commit_lsn int", "RENAME _commit_lsn TO lsn", (f'{MISSED}"lsn"', [4])),
        ('ADD "NOTE" int', 'DROP "NOTE"', (None, None)),
        ('ADD "NOTE" int', "DROP note", (f'{MISSED}"NOTE"', [4])),
    ],
)
@pytest.mark.parametrize("behind", ["nothing", "a change"])
def test_a_name_that_no_column_has_any_more_ends_the_park(
    orders: Pipeline, given: str, taken_back: str, expected: tuple[str | None, list[int] | None], behind: str
) -> None:
    orders.execute(f"ALTER TABLE orders {given}", "INSERT INTO orders VALUES (2, 2, 'two', 22)")
    assert run(orders) == []
    assert run(orders) == []
    orders.execute(f"ALTER TABLE orders {taken_back}")
    if behind == "a change":
        orders.execute("INSERT INTO orders VALUES (3, 3)")
    assert run(orders) == [ORDERS]
    assert mark(orders) == expected


def test_a_column_that_is_still_left_out_keeps_the_table_parked(orders: Pipeline) -> None:
    orders.execute("ALTER TABLE orders ADD more int", "UPDATE orders SET more = 1")
    orders.drain()
    publish(orders, "(id, amount)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    assert run(orders) == []
    publish(orders, "(id, amount, more)")
    orders.execute("INSERT INTO orders VALUES (3, 3, 'three', 3)")
    assert run(orders) == []
    assert orders.table_row(ORDERS).life.merge == "parked"


BACK = {
    "type": (AMOUNT.format("text", "text"), AMOUNT.format("numeric(10,2)", "numeric")),
    "key": ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD PRIMARY KEY (id)"),
    "identity": ("ALTER TABLE orders REPLICA IDENTITY NOTHING", "ALTER TABLE orders REPLICA IDENTITY DEFAULT"),
}


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
    assert "write `evolve: follow` for the table in the pipeline file: the next run goes on with it" in error.message
    evolving(orders, "follow")
    run(orders)
    row = orders.table_row(f"{ORDERS}~2")
    assert (row.life.capture, row.life.merge, row.life.needs_backfill) == ("joining", "merging", True)
    assert orders.table_row(ORDERS).life.capture == "left"
    orders.preflight()
    assert run(orders) == []
    assert f"{ORDERS}~3" not in orders.table_rows()


@pytest.mark.parametrize("behind", ["nothing", "a change"])
def test_a_key_that_is_published_again_goes_on_beside(orders: Pipeline, behind: str) -> None:
    publish(orders, "(amount, note)")
    orders.execute("INSERT INTO orders VALUES (2, 2, 'two')")
    assert run(orders) == []
    publish(orders, "")
    if behind == "a change":
        orders.execute("INSERT INTO orders VALUES (3, 3, 'three')")
    run(orders)
    assert orders.table_row(f"{ORDERS}~2").life.needs_backfill
