"""Columns that come and go before the stream brought a change of their table, of which a backfill alone read rows."""

from __future__ import annotations

import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture.definitions.marks import SOURCE_CHANGED
from tidemark.ledger.captured import tables
from tidemark.schema.table import TableSchema


@pytest.fixture
def items(captured: Pipeline) -> Pipeline:
    """A table whose rows a backfill has read, and no change of it has come."""
    captured.execute("CREATE TABLE item (id int PRIMARY KEY, size int, name text)")
    captured.execute("INSERT INTO item SELECT n, n FROM generate_series(1, 3) n")
    captured.capture()
    captured.drain()
    captured.plan(tables=("public.item",))
    captured.read()
    captured.drain()
    captured.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, "
        "backfill_since = NULL RETURNING 1"  # as if it were merged
    )
    return captured


def newest(items: Pipeline) -> TableSchema:
    with items.ledger_connection() as ledger:
        return tables.versions(ledger, "public.item")[-1]


def state(items: Pipeline) -> tuple[str, str | None]:
    row = items.table_row("public.item")
    return row.life.merge, row.backfill_kind


@pytest.mark.parametrize("type_", ["text", pytest.param("int", marks=pytest.mark.thorough)])
def test_a_column_of_a_dropped_ones_name_is_another_one(items: Pipeline, type_: str) -> None:
    items.execute("ALTER TABLE item DROP size")
    items.drain()
    items.execute(f"ALTER TABLE item ADD size {type_}", "UPDATE item SET size = '7' WHERE id = 1")
    items.drain()
    assert state(items) == ("merging", SOURCE_CHANGED), "marked, since no change was staged in between, and not parked"
    assert [(c.name, c.attnum) for c in newest(items).columns] == [("id", 1), ("name", 3), ("size", 4)]


@pytest.mark.thorough
def test_one_that_came_before_anybody_looked_marks_the_table(items: Pipeline) -> None:
    items.execute(
        "ALTER TABLE item DROP size", "ALTER TABLE item ADD size int", "UPDATE item SET size = 7 WHERE id = 1"
    )
    items.drain()
    assert state(items) == ("merging", SOURCE_CHANGED)


@pytest.mark.thorough
def test_a_column_that_is_dropped_is_followed(items: Pipeline) -> None:
    items.execute("ALTER TABLE item DROP size", "UPDATE item SET name = 'new' WHERE id = 1")
    items.drain()
    assert state(items) == ("merging", None)
    assert [(c.name, c.attnum) for c in newest(items).columns] == [("id", 1), ("name", 3)]
