"""Both Delta tables of a table were spoiled in the last days: what staging holds is applied once more, beside them, by
drivers that die in between; the new pair has the history of the old one, and the rows of the source."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tests.support.remedies import ends_equal
from tidemark.config import TableRule
from tidemark.lake.lake_tables import Lake
from tidemark.ledger.captured import put_aside, successors
from tidemark.maintenance.replay_runs import ReplayRequest, begin_replay

pytestmark = pytest.mark.thorough

TABLES = ("shop.item", "shop.bag")
NEW = [f"{table}~2" for table in TABLES]


@pytest.fixture
def shop(new_environment: Callable[..., Environment]) -> Environment:
    """A table with a key and one without, with rows from before, and changes of every kind in six batches."""
    shop = new_environment("replayed", (TableRule("shop.*"),))
    shop.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.item (id int PRIMARY KEY, note text, large text)",
        "ALTER TABLE shop.item ALTER large SET STORAGE EXTERNAL",
        "INSERT INTO shop.item SELECT i, 'from before', repeat(i::text, 9000) FROM generate_series(1, 9) i",
        "CREATE TABLE shop.bag (id int, note text)",
        "ALTER TABLE shop.bag REPLICA IDENTITY FULL",
        "INSERT INTO shop.bag SELECT i / 2, 'from before' FROM generate_series(1, 9) i",
        "ALTER TABLE shop.item ADD grade int DEFAULT 5",
    )
    shop.run()
    shop.backfill()
    for number in range(1, 7):
        change(shop, number)
        shop.run()
    return shop


def change(shop: Environment, number: int) -> None:
    shop.execute(
        f"INSERT INTO shop.item VALUES ({10 * number}, 'new', repeat('n', 9000), {number})",
        f"INSERT INTO shop.item VALUES ({10 * number + 1}, 'new')",
        f"UPDATE shop.item SET note = 'changed {number}' WHERE id % 5 = {number % 5}",
        f"DELETE FROM shop.item WHERE id = {number + 2}",
        f"UPDATE shop.item SET id = id + 1000, note = 'moved' WHERE id = {10 * number}",
        f"INSERT INTO shop.bag VALUES ({number}, 'new'), ({number}, 'new')",
        f"DELETE FROM shop.bag WHERE ctid = (SELECT ctid FROM shop.bag WHERE id = {number} LIMIT 1)",
    )


def rows(shop: Environment, kind: str, table: str) -> list[str]:
    there = judge.read(shop, kind, table)
    assert there is not None
    return sorted(repr(sorted((name, value) for name, value in row.items())) for row in there.rows())


def dies(shop: Environment, failpoint: str) -> None:
    process = shop.start("merge", failpoint)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL, output[-3000:]
    shop.let_leases_end()


def built(shop: Environment) -> dict[str, Any]:
    with shop.ledger_connection() as book:
        return successors.all_of(book)


def test_what_was_spoiled_is_built_anew_by_drivers_that_die(shop: Environment) -> None:
    told = {table: {kind: rows(shop, kind, table) for kind in ("history", "current")} for table in TABLES}
    lost = int([manifest.start_lsn for manifest in shop.manifests() if manifest.tables][-4])
    for table in TABLES:
        history = judge.table_uri(shop, "history", table)
        shop.spark().sql(f"DELETE FROM delta.`{history}` WHERE _commit_lsn >= {lost} AND _ordinal % 2 = 0")
        shop.spark().sql(f"UPDATE delta.`{judge.table_uri(shop, 'current', table)}` SET note = 'spoiled'")
    shop.begin_run("replay")
    assert begin_replay(shop.task("replay", run_id="replay"), ReplayRequest("staged", TABLES)) == sorted(NEW)
    for failpoint in ("replay.after_history", "replay.before_commit", "replay.after_commit", "merge.before_current"):
        dies(shop, failpoint)
    shop.merge()
    for table, new in zip(TABLES, NEW, strict=True):
        assert {kind: rows(shop, kind, new) for kind in ("history", "current")} == told[table], table
        assert rows(shop, "history", table) != told[table]["history"]
    assert all(one.placed_at is not None for one in built(shop).values())
    lake = Lake(f"{shop.config.lake}/{shop.config.pipeline}", spark=shop.spark())
    assert lake.table("shop.item").rows().where("note = 'spoiled'").count() == 0
    change(shop, 7)
    shop.execute("ALTER TABLE shop.item ADD added text DEFAULT 'older'")
    change(shop, 8)
    shop.run()
    with shop.ledger_connection() as book:
        assert [pair.table for pair in put_aside.all_of(book)] == sorted(TABLES)
    ends_equal(shop)
