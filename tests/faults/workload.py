"""The tables of the fault tests and a few changes of every kind on them, different each time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.support.capture import Environment
from tidemark.config import TableRule

TABLES = (TableRule("shop.*"),)

_CREATE = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.item (id int PRIMARY KEY, name text, body text STORAGE EXTERNAL)",
    "CREATE TABLE shop.bag (what text, n int)",
    "ALTER TABLE shop.bag REPLICA IDENTITY FULL",
    "CREATE TABLE shop.event (id int PRIMARY KEY, what text)",
)

_numbers: Iterator[int] = itertools.count(1)


def create(environment: Environment) -> None:
    """The empty tables, and the first run: the pipeline is open and every table in sync."""
    for statement in _CREATE:
        environment.execute(statement)
    environment.run()


def change(environment: Environment) -> None:
    """Inserts, an unchanged large value, a moved key, deletes, duplicates, a truncate, in several transactions."""
    n = next(_numbers)
    first, second, third = n * 10, n * 10 + 1, n * 10 + 2
    for statement in (
        f"INSERT INTO shop.item SELECT i, 'new', repeat('{n % 10}', 4000) FROM generate_series({first}, {third}) i",
        f"UPDATE shop.item SET name = 'changed {n}' WHERE id % 10 < 2",
        f"UPDATE shop.item SET id = -id WHERE id = {first}",
        f"DELETE FROM shop.item WHERE id = {second}",
        f"INSERT INTO shop.bag VALUES ('twice', {n}), ('twice', {n}), ('once', {n})",
        f"DELETE FROM shop.bag WHERE ctid = (SELECT min(ctid) FROM shop.bag WHERE n = {n})",
        f"BEGIN; TRUNCATE shop.event; INSERT INTO shop.event VALUES ({n}, 'after'); COMMIT",
        f"INSERT INTO shop.event SELECT i, 'more' FROM generate_series({n + 1}, {n + 5}) i",
    ):
        environment.execute(statement)
