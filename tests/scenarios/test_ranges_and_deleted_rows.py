"""Validity ranges and deleted rows of a whole pipeline, through truncates, changes of keys and backfills, whoever
merges: at each moment they are the rows that the source had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tests.support.merge_ways import leave_to_spark, take_the_public_path
from tidemark.config import TableRule
from tidemark.lake import Lake, Position

pytestmark = pytest.mark.thorough

WAYS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "driver": lambda _: None,
    "spark": leave_to_spark,
    "public_path": take_the_public_path,
}
Rows = dict[int, str]


@pytest.mark.parametrize("way", WAYS)
def test_ranges_and_deleted_rows_are_what_the_source_had(
    new_environment: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    WAYS[way](monkeypatch)
    shop = new_environment(f"ranges_{way}", (TableRule("shop.*"),))  # a slot is named per server
    states: list[tuple[Position, Rows]] = []

    def table() -> Any:
        return Lake(f"{shop.config.lake}/{shop.config.pipeline}", spark=shop.spark()).table("shop.orders")

    def note() -> None:
        """What the source has now, under the position that the table has reached."""
        states.append((table().newest().position, source_rows(shop)))

    shop.execute("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, note text)")
    shop.execute("INSERT INTO shop.orders SELECT n, 'older than the slot' FROM generate_series(1, 5) n")
    shop.run()
    shop.execute("UPDATE shop.orders SET id = 12 WHERE id = 2", "INSERT INTO shop.orders VALUES (6, 'new')")
    shop.run()
    shop.backfill("shop.orders", chunk_rows=2)
    note()
    shop.execute("UPDATE shop.orders SET id = 22 WHERE id = 12", "DELETE FROM shop.orders WHERE id = 3")
    shop.execute("UPDATE shop.orders SET note = 'changed' WHERE id = 1")
    shop.run()
    note()
    # Changes that no stream has: the backfill sweeps the one and reads the other.
    shop.execute(f"ALTER PUBLICATION {shop.config.publication} DROP TABLE shop.orders")
    shop.execute("DELETE FROM shop.orders WHERE id = 4", "INSERT INTO shop.orders VALUES (40, 'not in the stream')")
    shop.run()
    shop.backfill("shop.orders")
    note()
    shop.execute("TRUNCATE shop.orders", "INSERT INTO shop.orders VALUES (1, 'again'), (7, 'behind the truncate')")
    shop.run()
    note()
    shop.execute("DELETE FROM shop.orders WHERE id = 7", "INSERT INTO shop.orders VALUES (6, 'again')")
    shop.backfill("shop.orders")
    note()
    assert judge.wrongs(shop) == []
    operations = {row["_op"] for row in table().history().collect()}
    assert operations == {"insert", "update", "delete", "truncate", "read", "sweep"}

    ranges = table().validity().collect()
    for at, rows in states:
        assert valid_at(ranges, at) == rows, at
    assert {row["id"]: row["note"] for row in ranges if row["is_current"]} == states[-1][1]
    last: Rows = {}
    for _, rows in states:
        last |= rows
    kept = table().with_deleted().collect()
    assert {row["id"]: row["note"] for row in kept} == last
    assert len(kept) == len(last)
    assert {row["id"] for row in kept if row["_deleted_at"] is None} == set(states[-1][1])


def source_rows(shop: Environment) -> Rows:
    return dict(shop.query("SELECT id, note FROM shop.orders"))


def valid_at(ranges: list[Any], at: Position) -> Rows:
    """The states that began below the position and had not ended there."""
    valid = [
        row
        for row in ranges
        if (row["_generation"], row["_commit_lsn"]) < (at.generation, at.lsn)
        and (row["is_current"] or (row["_until_generation"], row["_until_lsn"]) >= (at.generation, at.lsn))
    ]
    assert len({row["id"] for row in valid}) == len(valid)
    return {row["id"]: row["note"] for row in valid}
