"""What readers of the lake see while a table is built in another shape, before and behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tidemark.capture import lake_folder
from tidemark.config import TableRule
from tidemark.lake import Lake

pytestmark = pytest.mark.thorough


def test_readers_see_the_old_table_whole_and_then_the_new_one(new_environment: Callable[..., Environment]) -> None:
    shop = new_environment("reshaped", (TableRule("shop.*"),))
    shop.execute("CREATE SCHEMA shop", "CREATE TABLE shop.item (id int PRIMARY KEY, size int)")
    shop.execute("INSERT INTO shop.item SELECT n, n FROM generate_series(1, 3) n")
    shop.run()
    shop.execute("INSERT INTO shop.item VALUES (4, 4)")
    shop.run()
    shop.backfill("shop.item")
    shop.execute("UPDATE shop.item SET size = 4 WHERE id = 4")
    shop.run()
    lake = Lake(f"{shop.config.lake}/{shop.config.pipeline}", spark=shop.spark())

    def seen() -> dict[int, object]:
        return {row["id"]: row["size"] for row in lake.table("shop.item").rows().collect()}

    shop.execute("DELETE FROM shop.item WHERE id = 1")
    shop.execute("ALTER TABLE shop.item ALTER size TYPE text USING 'size ' || size")
    shop.execute("INSERT INTO shop.item VALUES (5, 'five')", "UPDATE shop.item SET size = '3' WHERE id = 3")
    shop.with_bounds(batch_rows=1)
    shop.run()
    as_it_ended = {2: 2, 3: 3, 4: 4}
    assert seen() == as_it_ended
    ended = lake.table("shop.item").newest().position
    assert ended.lsn < shop.staged_lsn(), "what follows is none of its changes"
    shop.execute("UPDATE shop.item SET size = 'two' WHERE id = 2")
    shop.run()
    assert seen() == as_it_ended
    assert lake.table("shop.item").newest().is_exact
    assert lake.table("shop.item").newest().position == ended
    shop.backfill()
    assert judge.wrongs(shop) == []
    assert seen() == as_it_ended, "until a merge says so"
    shop.run()
    assert seen() == {2: "two", 3: "3", 4: "size 4", 5: "five"}, "a merge of nothing, where the source is idle"
    shop.execute("INSERT INTO shop.item VALUES (6, 'six')")
    shop.run()
    assert seen() == {2: "two", 3: "3", 4: "size 4", 5: "five", 6: "six"}
    assert lake.table("shop.item").newest().is_exact
    assert {row["id"] for row in lake.table("shop.item~1").rows().collect()} == set(as_it_ended)
    shop.run()
    shop.config = replace(shop.config, maintenance=shop.config.maintenance.model_copy(update={"put_aside_days": 0}))
    shop.maintain()
    assert not lake_folder.has_delta_table(shop.store, f"{shop.config.pipeline}/history/shop/item")
    left = shop.store.list(f"{shop.config.pipeline}/history/shop/item")
    assert left == (["_delta_log"] if shop.store.is_bucket else []), "a mark of Hadoop's that a folder was there"
    shop.execute("INSERT INTO shop.item VALUES (7, 'seven')")
    shop.run()
    assert judge.wrongs(shop) == []
    assert seen()[7] == "seven"
