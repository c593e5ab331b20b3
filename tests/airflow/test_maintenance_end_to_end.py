"""The maintenance, as Airflow runs it: one Spark application inspects all tables and compacts `current` of those that
need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.captured_shop import FIRST_ORDERS, Shop
from tests.support import delta_files
from tidemark.formats import layout
from tidemark.names import TableName

pytestmark = pytest.mark.thorough

# More than `table_compaction.LITTLE_BYTES` in Delta, and more than `DELETED_SHARE` of them deleted afterwards.
MANY_BYTES = """
INSERT INTO shop.orders (customer, total, note)
    SELECT n, 1, (SELECT string_agg(md5((n * 1000 + i)::text), '') FROM generate_series(1, 200) i)
    FROM generate_series(1, 8000) n
"""
MANY_DELETED = "DELETE FROM shop.orders WHERE customer % 3 = 0"


def test_one_application_inspects_all_tables_and_compacts_current(shop: Shop) -> None:
    current = Path(shop.config.lake) / layout.current_table("shop", TableName.parse("shop.orders"))
    shop.sql(FIRST_ORDERS)
    for change in (MANY_BYTES, MANY_DELETED):
        shop.sql(change)
        shop.dags_test("shop_capture")
    assert has_deleted_rows(current)
    told = shop.dags_test("shop_maintenance")
    assert told.count("compact_tables.py --manifest") == 1
    assert "current of shop.orders: " in told
    assert not has_deleted_rows(current), told[-6000:]
    assert shop.differences() == {}
    for root in (layout.orders_root("shop"), layout.maintenance_root("shop")):
        assert shop.store.list(root) == []


def has_deleted_rows(table: Path) -> bool:
    """Whether a file of the table still has rows that a merge only marked as deleted."""
    newest = delta_files.read(table)
    assert newest is not None
    return any(vector is not None for _, vector in newest.files)
