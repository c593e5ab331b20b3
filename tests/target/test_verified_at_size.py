"""A million rows, of which somebody flipped one cell, took one and added one: all three are found, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tidemark.config import TableRule
from tidemark.names import spark_identifier

ROWS = 1_000_000
TABLE = "size.item"
BY_HAND = (
    "UPDATE {} SET note = 'flipped' WHERE id = 123456",
    "DELETE FROM {} WHERE id = 777777",
    "INSERT INTO {} (id, n, note, at) SELECT 2000000, n, note, at FROM {} WHERE id = 5",
)
FILL = (
    "CREATE SCHEMA size",
    f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, n int, note text, at timestamptz)",
    f"INSERT INTO {TABLE} SELECT i, i % 1000, 'note ' || i, '2026-01-01'::timestamptz + i * interval '1 second' "
    f"FROM generate_series(1, {ROWS}) AS i",
    f"ANALYZE {TABLE}",
)


@pytest.mark.thorough
def test_three_faults_among_a_million_rows_are_found_and_repaired(new_environment: Callable[..., Environment]) -> None:
    shop = new_environment("size", (TableRule("size.*"),))
    shop.execute(*FILL)
    shop.run()
    shop.backfill(TABLE)
    (proof,) = shop.verify(TABLE).tables
    assert (proof.outcome.rows, proof.outcome.differences, proof.unproven) == (ROWS, 0, None)
    current = f"delta.{spark_identifier(judge.table_uri(shop, 'current', TABLE))}"
    for statement in BY_HAND:
        shop.spark().sql(statement.replace("{}", current)).collect()
    for repair in (False, True):
        shop.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id BETWEEN 1 AND 100")
        (proof,) = shop.verify(TABLE, repair=repair).tables
        outcome = proof.outcome
        assert (outcome.missing, outcome.extra, outcome.differs, outcome.columns) == (1, 1, 1, {"note": 1}), outcome
        assert proof.repaired is repair
    (proof,) = shop.verify(TABLE).tables
    assert (proof.outcome.rows, proof.outcome.differences, proof.unproven) == (ROWS, 0, None)
    shop.run()
    assert judge.current_equals_source(shop, TABLE) == []
