"""What a driver asks the lake's bucket for, when the lake is young and when it is ten times as old: the same. What
tasks ask beside it, tests/object_store/test_requests_of_a_run.py has.

The ages are a multiple of ten versions apart, so that the tables' logs are as far behind their last checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.capture import Environment
from tests.support.s3_proxy import Proxy, Request, in_front_of
from tests.support.s3_server import S3Server, put_lake
from tidemark.config import TableRule

pytestmark = pytest.mark.thorough

YOUNG, OLD = 3, 33
TABLES: Final = ("customer", "item", "purchase")


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with in_front_of(s3_server.url) as proxy:
        yield proxy


@pytest.fixture
def shop(new_environment: Callable[..., Environment], s3_server: S3Server, proxy: Proxy) -> Environment:
    shop = new_environment("asked", (TableRule("shop.*"),))
    put_lake(shop, s3_server, proxy.url)
    shop.execute("CREATE SCHEMA shop", *(f"CREATE TABLE shop.{t} (id int PRIMARY KEY, n int)" for t in TABLES))
    shop.execute(*(f"INSERT INTO shop.{table} SELECT i, 0 FROM generate_series(1, 100) i" for table in TABLES))
    shop.run()
    return shop


def drain(shop: Environment) -> None:
    """As much in each run: two rows of each table, and one that comes and goes."""
    for table in TABLES:
        shop.execute(
            f"UPDATE shop.{table} SET n = n + 1 WHERE id <= 2",
            f"DELETE FROM shop.{table} WHERE id > 100",
            f"INSERT INTO shop.{table} SELECT 101 + max(n) FROM shop.{table}",
        )
    shop.begin_run()
    shop.drain()


def age(shop: Environment, runs: int) -> None:
    for _ in range(runs):
        drain(shop)
        shop.merge()
        shop.confirm()


def asked(shop: Environment, proxy: Proxy) -> Counter[str]:
    """How often each kind of request was made by a merge whose driver has a JVM of its own, as each run's has: it knows
    of no table yet."""
    drain(shop)
    proxy.forget()
    driver = shop.start("merge", own_jvm=True)
    said, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, said[-3000:]
    requests = Counter(kind(request) for request in proxy.requests)
    shop.confirm()
    return requests


def kind(request: Request) -> str:
    """A data file of a table apart: how many there are, its size and its deletes decide, and merges gather them."""
    path = unquote(urlsplit(request.target).path)
    of_data = "/_delta_log/" not in path and ("/current/" in path or "/history/" in path)
    return f"{request.kind} of data" if of_data and request.kind in ("GET", "HEAD") else request.kind


def test_a_driver_asks_a_lake_that_is_ten_times_as_old_no_more(shop: Environment, proxy: Proxy) -> None:
    age(shop, YOUNG - 1)
    young = asked(shop, proxy)
    age(shop, OLD - YOUNG - 1)
    old = asked(shop, proxy)
    assert {kind: (young[kind], count) for kind, count in old.items() if count > young[kind]} == {}, (young, old)
