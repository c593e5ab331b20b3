"""Which tables somebody means who types a name into a form, or has the page fill it in."""

from __future__ import annotations

import pytest

from tidemark.backfill.named_tables import matching_tables
from tidemark.names import TableName

ODD = ("a.b", 'we"ird', "a*b", "lines[1]", "größe", "with space", "50%", "tilde~2", "Capital")
NAMES = {str(name): name for name in [TableName("shop", table) for table in ("orders", "lines1", "acb", *ODD)]}


@pytest.mark.parametrize("table", NAMES)
def test_a_table_is_meant_by_its_name_as_it_is_shown(table: str) -> None:
    assert matching_tables(table, NAMES) == [table]


def test_a_pattern_means_all_that_it_matches_and_nonsense_none() -> None:
    assert matching_tables("shop.*", NAMES) == list(NAMES)
    assert matching_tables("shop.[ol]*", NAMES) == ["shop.orders", "shop.lines1", 'shop."lines[1]"']
    assert [matching_tables(text, NAMES) for text in ("shop", "shop.none", 'shop."', "")] == [[], [], [], []]


def test_of_tables_that_swapped_their_names_the_one_that_has_it_and_the_one_that_had_it_are_meant() -> None:
    swapped = {"shop.a": TableName("shop", "b"), "shop.b": TableName("shop", "a"), "shop.c~2": TableName("shop", "c")}
    assert matching_tables("shop.a", swapped) == ["shop.a", "shop.b"]
    assert matching_tables("shop.c~2", swapped) == matching_tables("shop.c", swapped) == ["shop.c~2"]
