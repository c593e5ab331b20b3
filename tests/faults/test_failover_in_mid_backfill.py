"""The primary dies while a backfill is read, and its standby lacks the newest of what the chunks saw (R7).

The promoted standby gives the transaction ids out again that the chunks' snapshots took for seen. So what was read of
the lost part is no base for anything, and what happens there afterwards must not be hidden by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.support import judge
from tests.support.capture import Environment
from tests.support.standby import Standby, standby_of
from tidemark.config import TableRule
from tidemark.ledger import backfills
from tidemark.postgres_session import connect_walsender

BURNT = 200  # transaction ids that the standby never hears of


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "primary", 18, fsync="off") as server:
        yield server


@pytest.fixture
def shop(primary: PostgresServer, new_environment: Callable[..., Environment]) -> Environment:
    return new_environment("promoted", (TableRule("shop.*"),), server=primary)


@pytest.fixture
def standby(primary: PostgresServer, shop: Environment, tmp_path: Path) -> Iterator[Standby]:
    """A table with rows from before its capture, and a standby that has the slot and everything up to now."""
    shop.execute("CREATE SCHEMA shop")
    shop.execute("CREATE TABLE shop.item (id int PRIMARY KEY, name text)")
    shop.execute("INSERT INTO shop.item SELECT i, 'from before' FROM generate_series(1, 6) i")
    shop.run()
    database = psycopg.conninfo.conninfo_to_dict(shop.source)["dbname"]
    with connect_walsender(shop.source, application_name="a_test") as walsender:
        walsender.execute(f"ALTER_REPLICATION_SLOT {shop.config.slot} (FAILOVER true)")
    with standby_of(primary, tmp_path / "standby", str(database)) as started:

        def carried_over() -> bool:
            shop.execute("SELECT pg_log_standby_snapshot()")
            shop.step("drain")
            shop.step("confirm")
            return started.has_slot(shop.config.slot)

        wait_for("the slot was carried over", carried_over)
        yield started


def fail_over(shop: Environment, primary: PostgresServer, standby: Standby) -> None:
    database = psycopg.conninfo.conninfo_to_dict(shop.source)["dbname"]
    shop.close()
    primary.stop("immediate")
    standby.promote()
    shop.source = standby.conninfo(str(database))


def lost_part(shop: Environment) -> None:
    """What only the old primary ever knows, many transactions of it."""
    shop.execute("INSERT INTO shop.item VALUES (10, 'a phantom')")
    shop.execute("UPDATE shop.item SET name = 'lost with the primary' WHERE id = 1")
    shop.execute("DELETE FROM shop.item WHERE id = 4")
    for _ in range(BURNT):
        shop.execute("SELECT pg_current_xact_id()")


def test_what_chunks_saw_of_a_lost_primary_is_read_again(
    shop: Environment, primary: PostgresServer, standby: Standby
) -> None:
    wait_for("the standby has all", lambda: standby.replayed(str(shop.staged_lsn())))
    standby.fall_behind()
    lost_part(shop)
    shop.begin_backfill("shop.item", chunk_rows=2)
    run_id = shop.report.run_id
    shop.plan()
    shop.read()
    fail_over(shop, primary, standby)
    shop.execute("UPDATE shop.item SET name = 'after the promotion' WHERE id = 2")
    shop.execute("INSERT INTO shop.item VALUES (20, 'new after the promotion')")
    shop.execute("UPDATE shop.item SET name = 'newer' WHERE id = 20")
    shop.begin_run(run_id)
    shop.drain()
    shop.merge()
    shop.read()
    shop.end_backfill()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    with shop.ledger_connection() as book:
        assert [b.state for b in backfills.of_run(book, run_id)] == ["applied"]
