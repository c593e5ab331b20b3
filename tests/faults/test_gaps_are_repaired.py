"""Gaps whose WAL the source has, from end to end: the tables and rows that are named for them are read again, no
others, and everything is equal (R8). A pair of PostgreSQL 18 with its own extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running_with_extensions, wait_for
from tests.support import judge
from tests.support.capture import Environment
from tests.support.standby import Standby, standby_of
from tidemark.config import TableRule
from tidemark.errors import ChangesGone, SlotMissing, SourceReplaced

TABLES = ("item", "line", "price", "quiet")


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    with running_with_extensions(tmp_path / "primary", fsync="off", autovacuum="off") as server:
        yield server


@pytest.fixture
def shop(primary: PostgresServer, new_environment: Callable[..., Environment]) -> Environment:
    """Tables whose rows are in the lake, as is the last of their changes."""
    shop = new_environment("gaps", (TableRule("shop.*"),), server=primary)
    shop.execute("CREATE EXTENSION pg_walinspect", "CREATE SCHEMA shop")
    for table in TABLES:
        shop.execute(f"CREATE TABLE shop.{table} (id int PRIMARY KEY, note text)")
        shop.execute(f"INSERT INTO shop.{table} SELECT i, 'from before' FROM generate_series(1, 300) i")
    shop.run()
    shop.backfill()
    settle_behind(shop)
    return shop


def settle_behind(shop: Environment) -> None:
    """Until the slot begins to read above all that there is now, and the ledger knows."""
    now = shop.flush_lsn()

    def is_behind() -> bool:
        shop.sql("SELECT pg_log_standby_snapshot()")
        shop.step("drain")
        shop.step("confirm")
        generation = shop.generation()
        return generation is not None and generation.restart_lsn is not None and generation.restart_lsn > now

    wait_for("the slot reads from behind the rows on", is_behind, 120)


def repair(shop: Environment) -> dict[str, int]:
    """What a backfill reads that names nothing: by table, how many rows."""
    shop.run()
    report = shop.backfill()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    return {table.table: table.read for table in report.tables}


def drop_slot(shop: Environment) -> None:
    def dropped() -> bool:
        with suppress(psycopg.errors.ObjectInUse):
            shop.drop_slot()
            return True
        return False

    wait_for("the slot is free and gone", dropped)


@pytest.mark.thorough
def test_what_a_gap_and_a_promotion_touched_is_read_again_and_all_is_equal(
    shop: Environment, primary: PostgresServer, tmp_path: Path
) -> None:
    drop_slot(shop)
    shop.execute("DELETE FROM shop.line WHERE id % 3 = 0", "UPDATE shop.line SET note = 'in the gap' WHERE id < 50")
    with pytest.raises((ChangesGone, SlotMissing), match=r"tables that are marked: shop\.line; .* 3 others were not"):
        shop.run()
    shop.execute("INSERT INTO shop.quiet VALUES (1000, 'behind the gap')")
    assert repair(shop) == {"shop.line": 200}

    database = str(psycopg.conninfo.conninfo_to_dict(shop.source)["dbname"])
    with standby_of(primary, tmp_path / "standby", database, slots=False, settings=primary.settings) as standby:
        # A base backup has no WAL from before.
        shop.execute("SELECT pg_logical_emit_message(false, 'of a neighbour', repeat('x', 20000), true)")
        settle_behind(shop)
        promote_without(shop, primary, standby, database)
        shop.execute("UPDATE shop.price SET note = 'before there was a slot' WHERE id < 10")
        with pytest.raises(SourceReplaced, match=r"shop\.item \(4 rows\), shop\.price; .* 2 others were not") as raised:
            shop.run()
        assert "The source lost 4 transactions that the lake has" in str(raised.value)
        shop.execute("UPDATE shop.item SET note = 'newer' WHERE id = 4")
        assert repair(shop) == {"shop.item": 3, "shop.price": 300}


def promote_without(shop: Environment, primary: PostgresServer, standby: Standby, database: str) -> None:
    """The standby takes over without what the lake has merged by then, and without the slot."""
    wait_for("the standby has all", lambda: standby.replayed(str(shop.flush_lsn())))
    standby.fall_behind()
    shop.execute("INSERT INTO shop.item VALUES (1000, 'lost')", "UPDATE shop.item SET note = 'lost' WHERE id = 2")
    shop.execute("DELETE FROM shop.item WHERE id = 3", "UPDATE shop.item SET note = 'lost' WHERE id = 4")
    shop.run()
    shop.close()
    primary.stop("immediate")
    standby.promote()
    shop.source = standby.conninfo(database)
