"""Names in Spark's catalogue, which merges give to the tables of the lake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.target.lake import Lake, StagedTable, table_schema
from tests.target.model import Change
from tidemark.formats.merge_plan import PlannedTable, StagedLevel
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.spark_submit.spark_connection import CATALOGUE
from tidemark.target.plans.plan_execution import apply_plan

pytestmark = pytest.mark.thorough

COLUMNS = {"id": "int", "note": "string"}


@pytest.fixture
def shop(lake: Lake) -> Iterator[Lake]:
    lake.spark.conf.set(CATALOGUE, "named")
    yield lake
    lake.spark.conf.unset(CATALOGUE)
    lake.spark.sql("DROP SCHEMA IF EXISTS named CASCADE")
    lake.spark.sql("DROP SCHEMA IF EXISTS named_shop CASCADE")


def staged(lake: Lake, name: str, note: str, place: int = 1) -> StagedTable:
    schema = replace(table_schema(name, COLUMNS), table=TableName("shop", name, place))
    table = lake.table(schema)
    table.stage([Change("insert", {"id": 1, "note": note})])
    return table


def merged(lake: Lake, *planned: PlannedTable, others: tuple[str, ...] = (), **names: str | None) -> None:
    called = {table.replace("_2", "~2").replace("_", ".", 1): name for table, name in names.items()}
    level = StagedLevel(1, Lsn(2**40), None, others, (), called)
    result = apply_plan(lake.spark, replace(lake.plan(*planned), level=level))
    assert [table.error for table in result.tables if table.error] == []


def notes(lake: Lake, name: str) -> list[Any]:
    return [row["note"] for row in lake.spark.table(name).collect()]


def names_in(lake: Lake, schema: str) -> set[str]:
    """Without temporary views, which other tests may leave in the session."""
    listed = lake.spark.sql(f"SHOW TABLES IN {schema}").collect()
    return {row["tableName"] for row in listed if not row["isTemporary"]}


def test_a_name_leads_to_the_table_that_has_it_now(shop: Lake) -> None:
    first = staged(shop, "orders", "first")
    merged(shop, first.planned())
    tables = names_in(shop, "named")
    assert tables == {"orders", "orders__history", "tidemark_positions"}
    assert notes(shop, "named.orders") == notes(shop, "named.orders__history") == ["first"]
    assert shop.spark.table("named.tidemark_positions").count() == 1
    second = staged(shop, "orders", "second", place=2)
    merged(shop, second.planned(), shop_orders=None, shop_orders_2="shop.orders")
    assert notes(shop, "named.orders") == notes(shop, "named.orders__history") == ["second"]
    assert [row[1]["note"] for row in shop.history(first)] == ["first"], "its files are gone with the name"


def test_a_name_that_somebody_else_has_is_left(shop: Lake, tmp_path: Any) -> None:
    shop.spark.sql("CREATE SCHEMA named")
    shop.spark.sql(f"CREATE TABLE named.orders USING DELTA LOCATION '{tmp_path}/theirs' AS SELECT 'theirs' AS note")
    merged(shop, staged(shop, "orders", "ours").planned())
    assert notes(shop, "named.orders") == ["theirs"]
    assert notes(shop, "named.orders__history") == ["ours"]


def test_tables_that_are_there_already_get_names_too_each_in_the_schema_that_it_has(shop: Lake) -> None:
    shop.spark.conf.unset(CATALOGUE)
    merged(shop, staged(shop, "lines", "before").planned())
    shop.spark.conf.set(CATALOGUE, "named_{schema}")
    merged(shop, staged(shop, "orders", "now").planned(), others=("shop.lines", "shop.nothing"))
    assert notes(shop, "named_shop.lines") == ["before"]
    tables = names_in(shop, "named_shop")
    assert tables == {"orders", "orders__history", "lines", "lines__history"}


def test_a_catalogue_that_is_away_costs_no_merge(shop: Lake) -> None:
    shop.spark.conf.set(CATALOGUE, "nowhere.named")
    merged(shop, staged(shop, "orders", "now").planned())
