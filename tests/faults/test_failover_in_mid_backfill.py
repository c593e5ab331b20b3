"""The primary dies while a backfill or verify goes on, and its standby lacks the newest of what the chunks saw, or of
what is merged already (R7).

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
from tests.support.remedies import Told
from tests.support.standby import Standby, standby_of
from tidemark.config import TableRule
from tidemark.errors import SourceForked
from tidemark.ledger.reading import backfills

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


KEYS = """
    CREATE TABLE shop.keyed (id int, label text, raw bytea, at timestamptz, day date, price numeric(8,2), yes bool,
                             ident uuid, note text, PRIMARY KEY (label, id, raw, at, day, price, yes, ident))
"""
KEYED = """
    INSERT INTO shop.keyed
    SELECT i, 'a "quoted" \\ label', '\\x00ff', '2026-01-02 03:04:05.678901+02', '2026-01-02', i + 0.5, i % 2 = 0,
           '00000000-0000-0000-0000-00000000000a', 'common'
      FROM generate_series({first}, {last}) i
"""


@pytest.mark.thorough
@pytest.mark.walks("SourceForked")
def test_rows_that_a_promotion_lost_are_made_right_and_no_others_are_read(
    shop: Environment, primary: PostgresServer, standby: Standby, told: Told
) -> None:
    """The lake has them merged already: what was inserted is swept, what was changed or deleted is as it was before."""
    shop.execute(KEYS, KEYED.format(first=1, last=6), "CREATE TABLE shop.event (id int PRIMARY KEY)")
    shop.run()
    shop.backfill()
    wait_for("the standby has all", lambda: standby.replayed(shop.one("SELECT pg_current_wal_flush_lsn()::text")))
    standby.fall_behind()
    shop.execute(KEYED.format(first=7, last=8))
    shop.execute("UPDATE shop.keyed SET note = 'lost' WHERE id = 2", "DELETE FROM shop.keyed WHERE id = 3")
    shop.execute("UPDATE shop.keyed SET id = 40 WHERE id = 4", "DELETE FROM shop.item WHERE id > 4")
    shop.run()
    fail_over(shop, primary, standby)
    shop.execute("UPDATE shop.keyed SET note = 'after the promotion' WHERE id = 5", "INSERT INTO shop.event VALUES (1)")
    # Between the promotion and the repair: a key that was lost is there again, another one is changed.
    shop.execute(KEYED.format(first=8, last=8), "UPDATE shop.keyed SET note = 'newer' WHERE id = 4")
    with told(SourceForked, "lost 5 transactions", "_backfill that names no table reads exactly that again"):
        shop.step("drain")
    shop.run()
    assert judge.wrongs(shop, ["shop.event"]) == []
    report = shop.backfill()
    assert {table.table: table.read for table in report.tables} == {"shop.item": 2, "shop.keyed": 4}
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    history = judge.read(shop, "history", "shop.keyed")
    assert history is not None
    brought = [(row["_op"], row["id"]) for row in history.rows() if row["_generation"] == 2 and row["_xid"] is None]
    assert sorted(brought) == [("read", 2), ("read", 3), ("sweep", 7), ("sweep", 40)]
