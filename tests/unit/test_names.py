"""Names of tables as SQL spells them, and their folders."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from tidemark.formats.layout import changes_file
from tidemark.names import TableName, folder

SPELLED = {
    "orders": "orders",
    "Orders": '"Orders"',
    "Order Items": '"Order Items"',
    "a.b": '"a.b"',
    'we"ird': '"we""ird"',
    "x~2": '"x~2"',
    "größe": '"größe"',
    "50%": '"50%"',
    "back\\slash": '"back\\slash"',
    "line\nbreak\\": 'U&"line\\000Abreak\\\\"',
    "\x1b[31m": 'U&"\\001B[31m"',
    "\U000e0001": 'U&"\\+0E0001"',
}


@pytest.mark.parametrize(("name", "spelled"), SPELLED.items())
def test_a_name_is_spelled_as_sql_does_and_read_back(name: str, spelled: str) -> None:
    for place in (1, 2, 17):
        table = TableName(name, name, place)
        assert str(table) == f"{spelled}.{spelled}" + ("" if place == 1 else f"~{place}")
        assert TableName.parse(str(table)) == table


def test_what_is_not_quoted_is_taken_letter_by_letter() -> None:
    assert TableName.parse("Legacy CRM.Orders") == TableName("Legacy CRM", "Orders")
    assert TableName.parse("shop.orders~3") == TableName("shop", "orders", 3)


NO_NAMES = ("", "orders", "a.b.c", ".b", "a.", 'a."b', "a.b~", "a.b~0", "a.b~x", 'a."b"c', '"".a')


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the name of a table"):
        TableName.parse(text)


def test_folders_are_readable_and_have_no_character_that_means_something() -> None:
    folders = {
        "orders": "orders",
        "OrderItem": "OrderItem.33",
        "Legacy CRM": "Legacy-20CRM.897",
        "größe": "gr-c3-b6-c3-9fe",
        "a=b%20": "a-3db-2520",
        "_delta_log": "-5fdelta_log",
        "~x": "-7ex",
    }
    assert {name: folder(name) for name in folders} == folders
    assert TableName("shop", "Orders", 2).path == "shop/Orders.1-p2"


def test_no_two_tables_share_a_folder_even_where_case_is_ignored() -> None:
    chance = random.Random(7)
    parts = ["a", "A", "b", "1", "2", "-", ".", "_", "p2", "20", "é", "~2", " "]
    short = ["".join(letters) for size in (1, 2, 3) for letters in itertools.product(parts, repeat=size)]
    names = {*short, *("".join(chance.choices(parts, k=chance.randint(4, 9))) for _ in range(3000)), "_delta_log"}
    tables = [TableName("s", name, place) for name in names for place in (1, 2, 12)]
    folders = {table.path.lower() for table in tables}
    assert len(folders) == len(tables)
    assert all(re.fullmatch(r"s/[a-z0-9_.-]+", path) and not path.startswith("s/.") for path in folders)


def test_folders_of_names_of_every_length_fit_a_file_system_and_differ() -> None:
    names = [letter * length + end for letter in "aA é" for length in (63, 100, 255, 400) for end in ("x", "X", "y")]
    tables = [TableName(name, name, place) for name in names for place in (1, 2, 999)]
    assert max(len(folder.encode()) for table in tables for folder in table.path.split("/")) <= 210
    assert len({table.path.lower() for table in tables}) == len(tables)
    staged = {changes_file("batch", table, 1, 1).lower() for table in tables}
    assert len(staged) == len(tables)
    assert max(len(file.split("/")[1]) for file in staged) <= 200


def test_staged_folders_of_two_tables_differ_even_where_case_is_ignored() -> None:
    names = ["a", "A", "b", "B", "1", "3", "aBcD", "abcd", "p2", "10"]
    tables = [TableName(*pair, place) for pair in itertools.product(names, names) for place in (1, 2)]
    assert len({table.path.replace("/", ".").lower() for table in tables}) == len(tables)
