"""Which entries of a pipeline file match a table: looked up by name, as if each of them had been asked."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tidemark.config import PipelineConfig, TableRule
from tidemark.names import TableName

PARTS = (
    "shop",
    "Shop",
    "s*",
    "*",
    "?hop",
    "[a-s]hop",
    '"s*"',
    '"shop"',
    "a.b",
    '"a.b"',
    "s\nhop",
    '"say ""so"""',
    "[",
    "]",
)
NAMES = ("shop", "Shop", "s*", "*", "a.b", 'say "so"', "s\nhop", "shop\n", "[", "]", "a")


def config_of(*rules: TableRule) -> PipelineConfig:
    return PipelineConfig("p", "source", "slot", "publication", True, rules, "/lake", "ledger")


@pytest.mark.parametrize("seed", range(20))
def test_the_entries_found_are_those_that_match_in_the_files_order(seed: int) -> None:
    chosen = random.Random(seed)
    patterns = [f"{schema}.{name}" for schema, name in product(PARTS, PARTS) if "a.b" not in (schema, name)]
    rules = [TableRule(pattern, line=line) for line, pattern in enumerate(chosen.sample(patterns, 40))]
    config = config_of(*rules)
    for schema, name in product(NAMES, NAMES):
        table = TableName(schema, name)
        assert config.entries(table) == [rule for rule in rules if rule.matches(table)], (table, patterns)


def test_a_table_takes_what_every_entry_says_that_matches_it() -> None:
    config = config_of(
        TableRule("shop.*", leave_out=("a",)), TableRule("shop.orders", mask={"b": "null"}), TableRule("*.o*")
    )
    rule = config.rule(TableName("shop", "orders"))
    assert rule == TableRule("shop.orders", leave_out=("a",), mask={"b": "null"})
    assert config.rule(TableName("other", "lines")) is None
