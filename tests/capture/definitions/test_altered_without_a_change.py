"""Tables that were altered while nobody wrote to them: an idle pipeline's run has work then, once (R11)."""

from __future__ import annotations

import pytest

from tests.definitions.list_of_rows import Lake
from tests.support.pipeline import Pipeline
from tidemark.capture.waiting import altered_table, changes_waiting
from tidemark.ledger.captured import tables

DETACHED = "1 partition was detached or dropped"


@pytest.fixture
def altered(captured: Pipeline) -> Pipeline:
    """A partitioned table and one without partitions, drained, with rows in both."""
    captured.execute(
        "CREATE TABLE item (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
        "CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1)",
        "CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2)",
        "CREATE TABLE empty (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE note (id int PRIMARY KEY, body int)",
        "INSERT INTO item VALUES (1, 1), (2, 2)",
        "INSERT INTO note VALUES (1, 1)",
    )
    captured.sound()
    captured.drain()
    return captured


def sentence(pipeline: Pipeline) -> str | None:
    with pipeline.ledger_connection() as ledger:
        return altered_table(pipeline.connection, tables.last_readings(ledger))


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("statements", "says"),
    [
        pytest.param(("ALTER TABLE item DETACH PARTITION item_2",), "item has partitions", id="detached"),
        pytest.param(
            ("ALTER TABLE item DETACH PARTITION item_2 CONCURRENTLY",), "item has partitions", id="concurrently"
        ),
        pytest.param(("DROP TABLE item_2",), "item has partitions", id="dropped"),
        pytest.param(("TRUNCATE item_2",), "item has partitions", id="truncated"),
        pytest.param(
            (
                "CREATE TABLE one (id int PRIMARY KEY)",
                "INSERT INTO one VALUES (1)",
                "ALTER TABLE empty ATTACH PARTITION one FOR VALUES IN (1)",
            ),
            "empty has partitions",
            id="attached",
        ),
        pytest.param(
            ("ALTER TABLE note ALTER body TYPE bigint USING body + 1",), "note has storage that no run saw", id="type"
        ),
        pytest.param(("ALTER TABLE note ADD more int",), "note has columns that no run saw", id="column"),
    ],
)
def test_what_no_change_shows_is_work_for_one_run(altered: Pipeline, statements: tuple[str, ...], says: str) -> None:
    assert sentence(altered) is None
    altered.execute("CREATE TABLE elsewhere (id int)", *statements, "DROP TABLE elsewhere")
    assert says in (sentence(altered) or "")
    altered.sound()
    altered.drain()
    assert sentence(altered) is None


def test_a_table_that_is_gone_is_no_work(altered: Pipeline) -> None:
    """Its mark stays until it is back, and its last reading with it."""
    altered.execute("DROP TABLE item, note")
    assert sentence(altered) is None


def run(pipeline: Pipeline, lake: Lake) -> None:
    """A run of the capture DAG."""
    pipeline.sound()
    if changes_waiting(pipeline.config, source=pipeline.source, ledger=pipeline.ledger).waiting:
        pipeline.drain()
        lake.merge()
    pipeline.confirm()


def backfill(pipeline: Pipeline, lake: Lake) -> None:
    pipeline.plan(tables=("public.item",))
    pipeline.read()
    pipeline.drain()
    lake.merge()
    pipeline.confirm()


def test_a_partition_that_an_idle_table_lost_takes_one_run_and_one_backfill(altered: Pipeline) -> None:
    lake = Lake(altered)
    run(altered, lake)
    backfill(altered, lake)
    assert not altered.table_row("public.item").life.needs_backfill
    altered.execute("ALTER TABLE item DETACH PARTITION item_2 CONCURRENTLY")
    run(altered, lake)
    assert altered.table_row("public.item").backfill_reason == DETACHED
    backfill(altered, lake)
    assert not altered.table_row("public.item").life.needs_backfill
    target = lake.target("public.item")
    assert target is not None
    assert [row["id"] for row in target.rows] == [1]
