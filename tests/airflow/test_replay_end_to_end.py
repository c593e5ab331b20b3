"""The replay, as Airflow runs it: `current` that was lost is made anew, all tables as of one moment, and what staging
holds of a table is applied once more beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sandbox.checks.comparison import Comparison
from tests.airflow.captured_shop import FIRST_ORDERS, MORE_ORDERS, TABLES, Shop
from tests.support import delta_files, judge
from tidemark.formats import layout
from tidemark.names import TableName

pytestmark = pytest.mark.thorough


def test_a_replay_makes_a_lost_current_anew_and_tables_as_of_a_moment(shop: Shop) -> None:
    shop.sql(FIRST_ORDERS)
    shop.dags_test("shop_capture")
    moment = shop.flush_lsn()
    shop.sql("CREATE SCHEMA seen", *(f"CREATE TABLE {_seen(table)} AS SELECT * FROM {table}" for table in TABLES))
    shop.sql(MORE_ORDERS)
    shop.dags_test("shop_capture")
    lake = Path(shop.config.lake)
    shutil.rmtree(lake / layout.current_table("shop", TableName.parse("shop.orders")))
    assert set(shop.differences()) == {"shop.orders"}
    shop.dags_test("shop_replay", step="rebuild", tables=["shop.orders"], other_tables=["shop.audit"])
    assert shop.differences() == {}
    shop.dags_test("shop_replay", step="as_of", tables=list(TABLES), moment=str(moment))
    (made,) = (lake / "shop" / "as_of").iterdir()
    assert made.name == f"g1-{moment.hex16}"
    for table in TABLES:
        there = delta_files.read(lake / layout.as_of_table("shop", 1, moment, TableName.parse(table)))
        compared = judge.compare(shop.source, there, _seen(table))
        assert compared.source_rows
        assert compared.equal, f"{table}: {compared.examples}"
    told = shop.dags_test("shop_replay", 1, step="rebuild", tables=["shop.orders"], moment="0/1")
    assert "takes no moment" in told
    shop.sql("INSERT INTO shop.orders (customer, total) VALUES (7, 7)")
    shop.dags_test("shop_capture")
    assert shop.differences() == {}
    shop.dags_test("shop_replay", step="staged", tables=["shop.orders"])
    assert compared_with(shop, "shop.orders~2").equal
    shop.sql("INSERT INTO shop.orders (customer, total) VALUES (8, 8)")
    shop.dags_test("shop_capture")
    anew = compared_with(shop, "shop.orders~2")
    assert anew.equal, anew.examples
    assert set(shop.differences()) == {"shop.orders"}, "the old pair stays as it was when the new one took its place"
    told = shop.dags_test("shop_replay", 1, step="staged", tables=["shop.nothing"])
    assert "ReplayRefused" in told


def compared_with(shop: Shop, table: str) -> Comparison:
    """The rows of shop.orders at the source beside those of the Delta table."""
    there = delta_files.read(Path(shop.config.lake) / layout.current_table("shop", TableName.parse(table)))
    return judge.compare(shop.source, there, "shop.orders")


def _seen(table: str) -> str:
    return f"seen.{table.partition('.')[2]}"
