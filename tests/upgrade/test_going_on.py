"""An upgrade in the middle of everything: a pipeline that an older version ran is gone on with, and ends equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import judge, local_spark
from tests.support.capture import Environment
from tests.upgrade.older_version import live_a_day
from tidemark.capture import by_hand
from tidemark.config import TableRule
from tidemark.errors import LedgerNotReady
from tidemark.ledger import backfills
from tidemark.ledger.migrations import migrate

TABLES = (
    TableRule("shop.*"),
    TableRule("shop.customers", leave_out=("secret",), mask={"email": "sha256"}, line=4),
)

NEXT_DAY = (
    "INSERT INTO shop.orders SELECT i, i, 'after', '2026-03-01' FROM generate_series(2001, 2010) i",
    "UPDATE shop.orders SET note = 'after' WHERE id IN (11, 300)",
    "UPDATE shop.lines SET tags = '{z}' WHERE \"order\" = 100",
    "DELETE FROM shop.customers WHERE id = 3",
    "INSERT INTO shop.visits VALUES ('home', 1.5)",
    "UPDATE shop.parked SET stays = 'after' WHERE id = 1",
    "UPDATE shop.widened SET size = 1 WHERE id = 2",
)


@pytest.mark.thorough
def test_what_an_older_version_left_in_mid_air_is_gone_on_with(new_environment: Callable[..., Environment]) -> None:
    shop = new_environment("upgraded", TABLES)
    live_a_day(
        shop.folder,
        source=shop.source,
        ledger=shop.ledger,
        lake=shop.config.lake,
        pipeline=shop.config.pipeline,
        environment=local_spark.gateway_of(shop.spark()),
    )
    slot_before = shop.confirmed_lsn()
    shop.execute(*NEXT_DAY)
    with pytest.raises(LedgerNotReady, match="at version 11"):
        shop.drain()
    assert shop.confirmed_lsn() == slot_before

    assert migrate(shop.ledger).before == 11
    shop.run()
    assert judge.wrongs(shop, excused=["shop.customers", "shop.parked"]) == []
    with shop.ledger_connection() as ledger:
        planned = backfills.open_of(ledger, "shop.customers")
    assert planned is not None

    text, unparked = by_hand.unpark(shop.config, "shop.parked", ledger=shop.ledger)
    assert unparked, text
    assert {of_table.table for of_table in shop.backfill().tables} == {"shop.customers", "shop.parked"}
    assert shop.again(planned).state == "applied"
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    generation = shop.generation()
    assert generation is not None
    assert generation.number == 1, "a new generation would be a gap"
