from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from sandbox.services.postgres import PostgresServer
from tests.support.capture import Environment
from tidemark.config import TableRule

_numbers = itertools.count(1)

ITEM = "CREATE TABLE shop.item (id int PRIMARY KEY, note text)"


@pytest.fixture
def new_item(new_environment: Callable[..., Environment]) -> Callable[..., Environment]:
    """A function that makes a pipeline of one table, shop.item, for which nothing is done yet."""

    def make(name: str, *rules: TableRule, server: PostgresServer | None = None, **bounds: int) -> Environment:
        on = {} if server is None else {"server": server}
        shop = new_environment(f"{name}{next(_numbers)}", rules or (TableRule("shop.*"),), bounds, **on)
        shop.execute("CREATE SCHEMA shop", ITEM)
        return shop

    return make


@pytest.fixture
def begun(new_item: Callable[..., Environment]) -> Callable[..., Environment]:
    """The same, captured, with three rows in it and in the lake."""

    def make(name: str, *rules: TableRule, server: PostgresServer | None = None, **bounds: int) -> Environment:
        shop = new_item(name, *rules, server=server, **bounds)
        shop.run()
        shop.execute("INSERT INTO shop.item SELECT i, 'row ' || i FROM generate_series(1, 3) AS i")
        shop.run()
        return shop

    return make


def another_row(shop: Environment) -> None:
    """What has to arrive when all is over."""
    shop.execute("INSERT INTO shop.item SELECT coalesce(max(id), 0) + 1, 'one more' FROM shop.item")
