"""A table that begins anew takes the shape that it has by then, in the place that it has: of its old rows, and of what
was staged of it, there is nothing left that another shape would not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture.waiting import changes_waiting
from tidemark.config import TableRule
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import Claim
from tidemark.ledger.captured import backfill_marks, joins, merge_states
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.staged import positions
from tidemark.observe import table_commands

ITEM, OTHER = "public.item", "public.other"
BOTH = (ITEM, OTHER)
BROKEN = ErrorRecord("TargetDiffers", "BACKFILL", "it is broken")


def execute(shop: Pipeline, statement: str) -> None:
    for table in ("item", "other"):
        shop.execute(statement.format(table))


def as_text(shop: Pipeline) -> None:
    shop.with_tables(TableRule("public.*"), *(TableRule(table, target={"number": "text"}) for table in BOTH))


def altered(statement: str) -> Callable[[Pipeline], None]:
    return lambda shop: execute(shop, statement)


ALTERATIONS = {
    "rule": as_text,
    "type": altered("ALTER TABLE {0} ALTER number TYPE text USING 'number ' || number"),
    "key": altered("ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (number)"),
    "identity": altered("ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_number_key"),
    "default": altered("ALTER TABLE {0} ADD COLUMN at timestamptz DEFAULT clock_timestamp()"),
}
EACH = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "rule" else pytest.mark.thorough) for kind in ALTERATIONS]
)


@pytest.fixture
def shop(pipeline: Pipeline) -> Pipeline:
    """Two captured tables with a staged row each."""
    execute(pipeline, "CREATE TABLE {0} (id int PRIMARY KEY, number int NOT NULL UNIQUE)")
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.begin()
    pipeline.sound()
    execute(pipeline, "INSERT INTO {0} VALUES (1, 1)")
    pipeline.drain()
    return pipeline


def begin_anew(shop: Pipeline) -> None:
    for table in BOTH:
        with shop.ledger_connection() as book:
            merge_states.park(book, table, BROKEN)
        sentence, done = table_commands.unpark(shop.config, table, ledger=shop.ledger, anew=True)
        assert done, sentence


def backfilled(shop: Pipeline) -> list[Backfill]:
    planned = shop.plan(tables=BOTH, replace=True)
    shop.read()
    return planned


def kept_as(shop: Pipeline) -> list[str]:
    return sorted(table for (table,) in shop.ledger_query('SELECT "table" FROM tidemark.relations'))


def claimed(shop: Pipeline) -> list[tuple[str, Claim]]:
    """Those of the newest batch."""
    return [(table.table, claim) for table in shop.manifests()[-1].tables for claim in table.claims]


@EACH
def test_the_backfill_is_claimed_in_the_shape_that_the_table_has(shop: Pipeline, kind: str) -> None:
    """No drain comes before the backfill: its look would have been the first at the new shape. A column that was added
    and storage that was written anew wait for a run, the other alterations do not."""
    begin_anew(shop)
    shop.confirm()
    ALTERATIONS[kind](shop)
    shop.sound()
    assert changes_waiting(shop.config, source=shop.source, ledger=shop.ledger).waiting == (kind in ("default", "type"))
    planned = backfilled(shop)
    shop.drain()
    assert [table for table, _ in claimed(shop)] == list(BOTH)
    assert kept_as(shop) == list(BOTH)
    for backfill in planned:
        now, row = shop.again(backfill), shop.table_row(backfill.table)
        assert (now.state, row.life.is_merged) == ("open", True)
        assert row.marks == now.marks, "its end takes the mark away"


@pytest.mark.thorough
@EACH
def test_a_change_in_the_new_shape_is_staged_for_the_table(shop: Pipeline, kind: str) -> None:
    begin_anew(shop)
    ALTERATIONS[kind](shop)
    execute(shop, "INSERT INTO {0} (id, number) VALUES (2, '2')")
    shop.sound()
    shop.drain()
    backfilled(shop)
    shop.drain()
    assert [table for table, _ in claimed(shop)] == list(BOTH)
    assert kept_as(shop) == list(BOTH)
    assert [row["id"] for row in shop.staged(ITEM)] == [1, 2]


@EACH
def test_it_begins_anew_once_more_in_yet_another_shape(shop: Pipeline, kind: str) -> None:
    for again in (False, True):
        begin_anew(shop)
        if again:
            ALTERATIONS[kind](shop)
        shop.sound()
        backfilled(shop)
        shop.drain()
        assert [table for table, _ in claimed(shop)] == list(BOTH)
    assert kept_as(shop) == list(BOTH)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["type", "key", "identity"])
@pytest.mark.parametrize("first", ["a change", "a chunk"])
def test_what_was_staged_since_has_a_shape(shop: Pipeline, kind: str, first: str) -> None:
    begin_anew(shop)
    shop.sound()
    if first == "a change":
        execute(shop, "INSERT INTO {0} VALUES (2, 2)")
    else:
        backfilled(shop)
    shop.drain()
    ALTERATIONS[kind](shop)
    shop.sound()
    shop.drain()
    assert kept_as(shop) == [f"{table}~2" for table in BOTH]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["type", "key", "identity"])
def test_no_chunk_goes_beside_a_change_of_another_shape_in_one_batch(shop: Pipeline, kind: str) -> None:
    """The change is from before the alteration, and the look of its run, as the chunk, from behind it."""
    begin_anew(shop)
    shop.sound()
    execute(shop, "INSERT INTO {0} VALUES (2, 2)")
    ALTERATIONS[kind](shop)
    planned = backfilled(shop)
    shop.drain()
    assert claimed(shop) == []
    assert all(shop.chunks(backfill)[0].rejected is not None for backfill in planned)
    shop.drain()
    assert kept_as(shop) == [f"{table}~2" for table in BOTH]


@pytest.mark.thorough
def test_what_was_merged_since_has_a_shape_though_its_batches_are_forgotten(shop: Pipeline) -> None:
    begin_anew(shop)
    execute(shop, "INSERT INTO {0} VALUES (2, 2)")
    shop.drain()
    with shop.ledger_connection() as book:
        positions.rise(book, 1, {ITEM: (shop.staged_lsn(), shop.staged_lsn())})
        book.execute("DELETE FROM tidemark.batch_tables")
        assert backfill_marks.restarted(book) == {OTHER}


@pytest.mark.thorough
def test_the_mark_says_what_was_done_last(shop: Pipeline) -> None:
    """Passed over, a table keeps its Delta tables, and the shape that they have."""
    with shop.ledger_connection() as book:
        backfill_marks.mark(book, ITEM, "source_changed", "")
    begin_anew(shop)
    assert shop.table_row(ITEM).backfill_kind == backfill_marks.BEGUN_ANEW
    with shop.ledger_connection() as book:
        merge_states.park(book, ITEM, BROKEN)
        assert joins.pass_over(book, ITEM)
        assert backfill_marks.restarted(book) == {OTHER}
    assert shop.table_row(ITEM).backfill_kind == backfill_marks.GAP
