"""Keys that PostgreSQL takes for equal and that are stored as different texts, as 1.5 and 1.50."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tidemark.backfill.range_planning import KEYS_PER_RANGE
from tidemark.config import TableRule
from tidemark.ledger.captured import backfill_marks

ITEM = "equal.item"
ROWS = KEYS_PER_RANGE + 200


@pytest.mark.thorough
def test_a_row_that_the_lake_has_under_an_equal_key_is_there_once(new_environment: Callable[..., Environment]) -> None:
    shop = new_environment("equal", (TableRule("equal.*"),))
    shop.execute("CREATE SCHEMA equal")
    shop.execute(f"CREATE TABLE {ITEM} (price numeric PRIMARY KEY, what text)")
    shop.execute(f"INSERT INTO {ITEM} SELECT i + 0.5, 'row ' || i FROM generate_series(1, {ROWS}) AS i")
    shop.run()
    shop.backfill(ITEM)
    assert judge.wrongs(shop) == []
    keys = tuple((f"{i}.{cents}",) for cents in ("50", "5") for i in range(1, ROWS + 1))
    current = judge.table_uri(shop, "current", ITEM)

    # The form has both, and current none.
    shop.spark().sql(f"DELETE FROM delta.`{current}`").collect()
    (chosen,) = shop.backfill(ITEM, mode="keys", keys=keys).tables
    assert (chosen.read, chosen.inserted) == (ROWS, ROWS)
    assert judge.wrongs(shop) == []

    # Current has what an UPDATE made of the keys that the source lost: its keys come first, then those from before it.
    shop.spark().sql(f"UPDATE delta.`{current}` SET price = concat(price, '0')").collect()
    with shop.ledger_connection() as book:
        backfill_marks.mark_lost(book, ITEM, "lost", keys)
    (lost,) = shop.backfill().tables
    assert (lost.read, lost.inserted, lost.swept) == (ROWS, ROWS, ROWS)
    assert judge.wrongs(shop) == []

    # The stream says which key was meant.
    shop.execute(f"UPDATE {ITEM} SET price = price * 1.0 WHERE price < 10")
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
