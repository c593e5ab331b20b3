"""A transaction that is open while its table is marked: no backfill that does not see it takes the mark away (R7, R11).

Its rows may be in no stream, since the table was not published when it wrote them. Or they are in the stream and the
table does not have them any more, since they are in a partition that is being detached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.conftest import create_database
from tests.definitions.list_of_rows import Lake
from tests.support.hung_commit import SERVER_SETTINGS, HungCommit
from tests.support.pipeline import Pipeline
from tidemark.backfill import planning
from tidemark.errors import JoinHorizonAhead, JoinHorizonBlocked

Step = Callable[[Pipeline], None]

DETACH = "ALTER TABLE item DETACH PARTITION item_2 CONCURRENTLY"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running(tmp_path_factory.mktemp("hanging"), 18, fsync="off", **SERVER_SETTINGS) as started:
        yield started


@pytest.fixture
def source(server: PostgresServer) -> str:
    return create_database(server, "source")


@pytest.fixture
def published(captured: Pipeline) -> Pipeline:
    """A partitioned table with a publication that is not managed, and no mark."""
    publication = captured.config.publication
    captured.config = replace(captured.config, manage_publication=False)
    captured.with_bounds(join_wait_s=1)
    captured.execute(
        "CREATE TABLE item (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
        "CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1)",
        "CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2)",
        f"CREATE PUBLICATION {publication} FOR TABLE item WHERE (id < 50) WITH (publish_via_partition_root)",
    )
    captured.create_slot()
    captured.sound()
    captured.execute("INSERT INTO item VALUES (1, 1), (2, 2)")
    captured.drain()
    assert not captured.table_row("public.item").life.needs_backfill
    return captured


def out(pipeline: Pipeline) -> None:
    """Take the table out of the publication; another one keeps it from being empty."""
    pipeline.execute(
        "CREATE TABLE other (id int PRIMARY KEY)",
        f"ALTER PUBLICATION {pipeline.config.publication} SET TABLE other",
    )


def back(pipeline: Pipeline, condition: str = "id < 50") -> None:
    pipeline.execute(f"ALTER PUBLICATION {pipeline.config.publication} SET TABLE item WHERE ({condition})")


def begin_detaching(pipeline: Pipeline) -> None:
    """The first of the two transactions; the second one waits for whoever uses the partition."""
    pipeline.execute("SET lock_timeout = '100ms'", session="concurrent")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        pipeline.execute(DETACH, session="concurrent")


def ends_equal(pipeline: Pipeline, lake: Lake) -> None:
    """One backfill, behind which the table has no mark and the source's rows."""
    pipeline.plan(tables=("public.item",))
    pipeline.read()
    pipeline.drain()
    lake.merge()
    assert not pipeline.table_row("public.item").life.needs_backfill
    target = lake.target("public.item")
    assert target is not None
    assert sorted((row["id"], row["part"]) for row in target.rows) == sorted(pipeline.query("SELECT * FROM item"))


@pytest.mark.parametrize(
    ("before", "row", "behind"),
    [
        pytest.param(out, "(3, 1)", back, id="out of the publication"),
        pytest.param(lambda _: None, "(70, 1)", lambda p: back(p, "id < 100"), id="a wider row filter"),
    ],
)
def test_a_backfill_waits_for_rows_that_no_stream_has(
    published: Pipeline, before: Step, row: str, behind: Step
) -> None:
    lake = Lake(published)
    before(published)
    published.execute("BEGIN", f"INSERT INTO item VALUES {row}", session="open")
    behind(published)
    published.execute("INSERT INTO item VALUES (4, 1)")
    published.drain()
    lake.merge()
    assert published.table_row("public.item").life.needs_backfill
    with pytest.raises(JoinHorizonBlocked):
        published.plan(tables=("public.item",))
    published.execute("COMMIT", session="open")
    ends_equal(published, lake)


def test_a_restored_ledger_knows_what_the_backfill_waits_for(
    published: Pipeline, new_database: Callable[..., str]
) -> None:
    older = new_database("older", like=published.ledger)
    out(published)
    published.execute("BEGIN", "INSERT INTO item VALUES (3, 1)", session="open")
    back(published)
    published.drain()
    published.ledger = older
    published.drain()
    assert published.table_row("public.item").life.needs_backfill
    with pytest.raises(JoinHorizonBlocked):
        published.plan(tables=("public.item",))


def test_a_backfill_waits_for_rows_that_the_table_lost_with_a_partition(published: Pipeline) -> None:
    """The stream has the row before anybody can see it."""
    lake = Lake(published)
    open_one = psycopg.connect(published.source, autocommit=True)
    open_one.execute("BEGIN")
    open_one.execute("INSERT INTO item VALUES (3, 2)")
    begin_detaching(published)
    hung = HungCommit(published.source, (), open_one)
    try:
        published.drain()
        lake.merge()
        assert [row["id"] for row in published.staged("public.item")] == [1, 2, 3]
        with pytest.raises(JoinHorizonBlocked):
            published.plan(tables=("public.item",))
    finally:
        hung.release()
        open_one.close()
    ends_equal(published, lake)


def test_a_snapshot_from_before_the_mark_opens_no_backfill(
    published: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    out(published)
    published.execute("BEGIN", "INSERT INTO item VALUES (3, 1)", session="open")
    back(published)

    def mark(point: str) -> None:
        if point == "plan.before_open":
            published.drain()

    monkeypatch.setattr(planning, "reach", mark)
    with pytest.raises(JoinHorizonAhead):
        published.plan(tables=("public.item",))
    assert published.table_row("public.item").life.needs_backfill
    assert published.ledger_query("SELECT * FROM tidemark.backfills") == []


def test_a_backfill_from_before_the_mark_is_read_beside_it(published: Pipeline) -> None:
    """It does not take the mark away, so that nothing depends on the open transaction."""
    lake = Lake(published)
    (backfill,) = published.plan(tables=("public.item",))
    published.execute("BEGIN", "INSERT INTO item VALUES (3, 2)", session="open")
    begin_detaching(published)
    published.drain()
    published.read()
    published.drain()
    lake.merge()
    assert published.again(backfill).state == "applied"
    assert published.table_row("public.item").life.needs_backfill
