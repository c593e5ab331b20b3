"""What the drain does when a table changes as a whole: its name, its partitions, its place in the publication (R11).

Columns: `test_changes_of_definition`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.support.definitions import missing, state
from tests.support.pipeline import Pipeline
from tidemark.capture import drain
from tidemark.config import TableRule
from tidemark.names import TableName


@pytest.mark.parametrize("statement", ["VACUUM FULL orders", "CLUSTER orders USING orders_pkey", "TRUNCATE orders"])
def test_new_storage_alone_is_harmless(orders: Pipeline, statement: str) -> None:
    orders.execute(statement)
    orders.drain()
    assert state(orders) == ("merging", None)


def test_a_dropped_table_is_said_to_be_gone(orders: Pipeline) -> None:
    orders.execute("DROP TABLE orders")
    orders.drain()
    assert "is not at the source any more" in (state(orders)[1] or "")


def test_changes_under_another_name_need_a_backfill_though_the_name_is_back(orders: Pipeline) -> None:
    orders.with_tables(TableRule("public.orders"))
    orders.execute("ALTER TABLE orders RENAME TO other", "INSERT INTO other VALUES (2)")
    orders.execute("ALTER TABLE other RENAME TO orders")
    orders.drain()
    assert "was called public.other for a while" in (state(orders)[1] or "")


TWO_OF_ONE_KEY = (
    "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
    "INSERT INTO orders VALUES (1, 2.5, 'another one')",
    "DELETE FROM orders WHERE note = 'one'",
    "ALTER TABLE orders ADD PRIMARY KEY (id)",
)


@pytest.mark.parametrize(
    ("statements", "is_marked"),
    [
        pytest.param(TWO_OF_ONE_KEY, True, id="two rows had one key"),
        pytest.param(("REINDEX TABLE CONCURRENTLY orders",), False, id="another index"),
        pytest.param(("ALTER TABLE orders RENAME CONSTRAINT orders_pkey TO another",), False, id="another name"),
    ],
)
def test_a_key_that_was_gone_for_a_while_under_full_identity_needs_a_backfill(
    pipeline: Pipeline, statements: tuple[str, ...], is_marked: bool
) -> None:
    """The stream says nothing of the key there: the row that is left would be taken for the one that was deleted."""
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note varchar(20))")
    pipeline.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 1.5, 'one')")
    pipeline.drain()
    pipeline.execute(*statements)
    pipeline.drain()
    assert ("its key was made anew" in (state(pipeline)[1] or "")) is is_marked


def test_a_key_that_a_look_missed_needs_a_backfill_when_it_is_back(pipeline: Pipeline) -> None:
    """Where definitions are not followed, a look at a table without its key leaves the table as it is."""
    pipeline.with_tables(TableRule("public.*", evolve="ask"))
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note varchar(20))")
    pipeline.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 1.5, 'one')")
    pipeline.drain()
    pipeline.execute(TWO_OF_ONE_KEY[0])
    pipeline.drain()
    assert state(pipeline) == ("merging", None)
    pipeline.execute(*TWO_OF_ONE_KEY[1:])
    pipeline.drain()
    assert "its key was made anew" in (state(pipeline)[1] or "")


@pytest.mark.parametrize(
    ("statements", "is_marked"),
    [
        pytest.param(
            (
                "ALTER TABLE orders SET SCHEMA aside",
                "UPDATE aside.orders SET id = 2",
                "ALTER TABLE aside.orders SET SCHEMA public",
            ),
            True,
            id="there and back",
        ),
        pytest.param(
            (
                "VACUUM FULL orders",
                "CREATE INDEX ON orders (note)",
                "ALTER TABLE orders ADD COLUMN more int",
                "ANALYZE",
            ),
            False,
            id="not moved",
        ),
    ],
)
def test_a_table_that_was_in_another_schema_for_a_while_needs_a_backfill(
    pipeline: Pipeline, statements: tuple[str, ...], is_marked: bool
) -> None:
    """Where the publication has the schema, and not the table, nothing of that is in the stream."""
    pipeline.with_tables(TableRule("public.orders"))
    pipeline.execute("CREATE SCHEMA aside", "CREATE TABLE orders (id int PRIMARY KEY, note varchar(20))")
    pipeline.execute(f"CREATE PUBLICATION {pipeline.config.publication} FOR TABLES IN SCHEMA public")
    pipeline.create_slot()
    pipeline.execute("INSERT INTO orders VALUES (1, 'one')")
    pipeline.drain()
    pipeline.execute(*statements)
    pipeline.drain()
    assert ("moved to another schema and back" in (state(pipeline)[1] or "")) is is_marked


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_table_without_columns_is_parked_and_stops_no_other(pipeline: Pipeline, identity: str) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.execute("CREATE TABLE nothing ()", f"ALTER TABLE nothing REPLICA IDENTITY {identity}")
    pipeline.begin()
    pipeline.execute("INSERT INTO nothing DEFAULT VALUES", "INSERT INTO orders VALUES (2)")
    pipeline.drain()
    assert [r["id"] for r in pipeline.staged("public.orders")] == [2]
    assert state(pipeline, "public.nothing")[0] == "parked"


def test_names_of_the_greatest_length_are_staged(pipeline: Pipeline) -> None:
    name = "\N{CYRILLIC SMALL LETTER SHA}" * 31
    pipeline.with_tables(TableRule("*.*"))
    pipeline.execute(f'CREATE SCHEMA "{name}"')
    pipeline.execute(*[f'CREATE TABLE "{name}"."{name[:-1]}{n}" (id int PRIMARY KEY)' for n in (1, 2)])
    pipeline.begin()
    pipeline.execute(*[f'INSERT INTO "{name}"."{name[:-1]}{n}" VALUES ({n})' for n in (1, 2)])
    pipeline.drain()
    for n in (1, 2):
        assert [r["id"] for r in pipeline.staged(str(TableName(name, f"{name[:-1]}{n}")))] == [n]


def test_a_table_taken_out_of_the_publication_and_added_again_needs_a_backfill(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE lines (id int PRIMARY KEY)")
    name = pipeline.config.publication
    pipeline.execute(f"CREATE PUBLICATION {name} FOR TABLE orders, lines")
    pipeline.create_slot()
    pipeline.drain()
    pipeline.execute(f"ALTER PUBLICATION {name} DROP TABLE orders", "INSERT INTO orders VALUES (1)")
    pipeline.execute(f"ALTER PUBLICATION {name} ADD TABLE orders")
    pipeline.drain()
    assert state(pipeline) == ("merging", "the table was taken out of the publication and added again")
    assert state(pipeline, "public.lines") == ("merging", None)


def test_a_row_filter_that_changed_needs_a_backfill(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    name = pipeline.config.publication
    pipeline.execute(f"CREATE PUBLICATION {name} FOR TABLE orders WHERE (id > 10)")
    pipeline.create_slot()
    pipeline.drain()
    pipeline.execute(f"ALTER PUBLICATION {name} SET TABLE orders WHERE (id > 5)")
    pipeline.drain()
    assert "row filter changed" in (state(pipeline)[1] or "")


def test_options_of_the_publication_that_changed_there_and_back_need_a_backfill(orders: Pipeline) -> None:
    name = orders.config.publication
    orders.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert')", "DELETE FROM orders")
    orders.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')")
    orders.drain()
    assert "the publication's options changed" in (state(orders)[1] or "")


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def parted(pipeline: Pipeline) -> Pipeline:
    """A partitioned table with two partitions and a row in each."""
    pipeline.execute(
        "CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE orders_2 PARTITION OF orders FOR VALUES FROM (10) TO (20)",
    )
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1), (11)")
    pipeline.drain()
    return pipeline


def test_partitions_that_bring_or_take_rows_need_a_backfill_and_empty_ones_do_not(pipeline: Pipeline) -> None:
    pipeline.execute(
        "CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10)",
    )
    pipeline.begin()
    pipeline.drain()
    pipeline.execute(
        "CREATE TABLE orders_2 PARTITION OF orders FOR VALUES FROM (10) TO (20)", "INSERT INTO orders VALUES (11)"
    )
    pipeline.drain()
    assert state(pipeline) == ("merging", None)

    pipeline.execute("BEGIN", "CREATE TABLE orders_3 (id int NOT NULL)", "INSERT INTO orders_3 VALUES (21)")
    pipeline.execute("ALTER TABLE orders ATTACH PARTITION orders_3 FOR VALUES FROM (20) TO (30)", "COMMIT")
    pipeline.drain()
    assert state(pipeline) == ("merging", "1 partition was attached with what it held")

    pipeline.execute("ALTER TABLE orders DETACH PARTITION orders_1")
    pipeline.drain()
    assert state(pipeline) == ("merging", "1 partition was detached or dropped")


def test_a_partition_that_left_and_came_back_needs_a_backfill(parted: Pipeline) -> None:
    parted.execute("ALTER TABLE orders DETACH PARTITION orders_1", "INSERT INTO orders_1 VALUES (2)")
    parted.execute("ALTER TABLE orders ATTACH PARTITION orders_1 FOR VALUES FROM (0) TO (10)")
    parted.drain()
    assert state(parted) == ("merging", "1 partition was detached and attached again")


def test_a_truncated_partition_needs_a_backfill_and_a_truncated_root_does_not(parted: Pipeline) -> None:
    parted.execute("TRUNCATE orders", "INSERT INTO orders VALUES (1), (11)")
    parted.drain()
    assert state(parted) == ("merging", None)
    parted.execute("TRUNCATE orders_1")
    parted.drain()
    assert "as TRUNCATE of a partition" in (state(parted)[1] or "")


@pytest.mark.parametrize(
    "statements",
    [
        ("TRUNCATE orders_1", "TRUNCATE orders_2"),
        ("TRUNCATE orders", "INSERT INTO orders VALUES (1)", "TRUNCATE orders_1"),
        ("TRUNCATE orders_1, orders_2",),
        ("TRUNCATE orders", "TRUNCATE orders_1, orders_2"),
    ],
    ids=["every partition by itself", "the root and then one", "all by their names", "the root and then all"],
)
def test_partitions_that_were_truncated_by_themselves_need_a_backfill(
    parted: Pipeline, statements: tuple[str, ...]
) -> None:
    for statement in statements:
        parted.execute(statement)
    parted.drain()
    assert "as TRUNCATE of a partition" in (state(parted)[1] or "")


def test_a_root_truncated_behind_the_look_of_the_run_that_staged_it_needs_no_backfill(
    parted: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = drain.emit_heartbeat

    def truncate_first(*about: Any) -> Any:
        parted.execute("TRUNCATE orders")
        return emit(*about)

    with monkeypatch.context() as patched:
        patched.setattr(drain, "emit_heartbeat", truncate_first)
        parted.drain()
    parted.drain()
    assert state(parted) == ("merging", None)


def test_what_was_truncated_is_asked_by_the_next_run_where_one_ends_before_its_heartbeat(parted: Pipeline) -> None:
    parted.with_bounds(batch_rows=1)
    parted.execute("INSERT INTO orders VALUES (2)", "TRUNCATE orders_1, orders_2")
    parted.drain(run_s=0)
    assert state(parted) == ("merging", None)
    parted.drain()
    assert "as TRUNCATE of a partition" in (state(parted)[1] or "")


def test_the_only_partition_truncated_by_itself_needs_a_backfill(parted: Pipeline) -> None:
    parted.execute("DROP TABLE orders_2")
    parted.drain()
    parted.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_reason = NULL, backfill_kind = NULL RETURNING 1"
    )
    parted.execute("TRUNCATE orders_1")
    parted.drain()
    assert "as TRUNCATE of a partition" in (state(parted)[1] or "")


def test_a_column_with_a_default_is_one_of_the_partitions_rows_too(parted: Pipeline) -> None:
    parted.execute("ALTER TABLE orders ADD COLUMN amount int DEFAULT 5", "INSERT INTO orders (id) VALUES (3)")
    parted.drain()
    assert (state(parted), missing(parted)["amount"]) == (("merging", None), "5")


@pytest.mark.parametrize(
    ("statements", "marked"),
    [
        (("ALTER TABLE orders SET UNLOGGED", "INSERT INTO orders VALUES (2)", "ALTER TABLE orders SET LOGGED"), True),
        (("VACUUM FULL orders", "CLUSTER orders USING orders_pkey", "TRUNCATE orders", "VACUUM FULL orders"), False),
    ],
)
def test_what_was_written_while_a_table_was_unlogged_needs_a_backfill(
    orders: Pipeline, statements: tuple[str, ...], marked: bool
) -> None:
    """A publication of all tables does not keep anybody from it, and no look saw it."""
    orders.execute("ALTER TABLE orders ADD COLUMN body text")
    orders.drain()
    orders.execute(*statements)
    orders.drain()
    assert ("while it was UNLOGGED is in no stream" in (state(orders)[1] or "")) is marked
    orders.drain()
    assert len([1 for manifest in orders.manifests() if manifest.marks]) == int(marked)


def test_rows_of_the_time_unlogged_are_in_doubt_beside_a_new_column(orders: Pipeline) -> None:
    """The new column alone could have given the table its new storage. A backfill of it alone would not do."""
    orders.execute("ALTER TABLE orders SET UNLOGGED", "INSERT INTO orders VALUES (2)", "ALTER TABLE orders SET LOGGED")
    orders.execute("ALTER TABLE orders ADD COLUMN at timestamptz DEFAULT clock_timestamp()")
    orders.drain()
    row = orders.table_row("public.orders")
    assert (row.life.needs_backfill, row.columns_in_doubt) == (True, None)


@pytest.mark.parametrize("column", ["at timestamptz DEFAULT clock_timestamp()", "size int DEFAULT 7"])
def test_rows_of_a_partition_of_the_time_unlogged_are_in_doubt_beside_a_new_column(
    parted: Pipeline, column: str
) -> None:
    parted.execute("ALTER TABLE orders_1 SET UNLOGGED", "INSERT INTO orders VALUES (2)")
    parted.execute("ALTER TABLE orders_1 SET LOGGED", f"ALTER TABLE orders ADD COLUMN {column}")
    parted.drain()
    row = parted.table_row("public.orders")
    assert (row.life.needs_backfill, row.columns_in_doubt) == (True, None)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE UNLOGGED TABLE orders_3 PARTITION OF orders FOR VALUES FROM (200) TO (300)",
        "ALTER TABLE orders_1 SET UNLOGGED",
        "CREATE FOREIGN TABLE orders_3 PARTITION OF orders FOR VALUES FROM (200) TO (300) SERVER nowhere",
    ],
)
def test_a_root_is_marked_by_each_drain_while_a_leaf_writes_no_wal(pipeline: Pipeline, statement: str) -> None:
    """Until a preflight finds it, and takes the table out."""
    pipeline.execute("CREATE TABLE orders (id int, note text) PARTITION BY RANGE (id)")
    pipeline.execute("CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (100)")
    pipeline.execute("ALTER TABLE orders REPLICA IDENTITY FULL", "ALTER TABLE orders_1 REPLICA IDENTITY FULL")
    pipeline.execute("CREATE FOREIGN DATA WRAPPER nowhere", "CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 'one')")
    pipeline.drain()
    pipeline.execute(statement)
    for _ in range(2):
        before = pipeline.table_row("public.orders").marks
        pipeline.drain()
        assert pipeline.table_row("public.orders").marks > before
    assert "write-ahead log" in (state(pipeline)[1] or "")


def test_a_listed_table_cannot_be_unlogged_and_may_be_rewritten(pipeline: Pipeline) -> None:
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    pipeline.execute(f"CREATE PUBLICATION {pipeline.config.publication} FOR TABLE orders")
    pipeline.create_slot()
    pipeline.drain()
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="part of a publication"):
        pipeline.execute("ALTER TABLE orders SET UNLOGGED")
    toast = "SELECT reltoastrelid FROM pg_class WHERE oid = 'orders'::regclass"
    before = pipeline.one(toast)
    pipeline.execute("CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler")
    pipeline.execute("ALTER TABLE orders SET ACCESS METHOD heap2")
    assert pipeline.one(toast) != before
    pipeline.drain()
    assert state(pipeline) == ("merging", None)
