"""A merge of 10,000 changes reads each file of `current` in at most three GETs, whether its files are many and small or
few and large. Any file may have one of the keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Literal

import pytest

from benchmarks.large_tables import key_of, rows_of
from tests.support.capture import Environment
from tests.support.s3_proxy import Proxy, in_front_of
from tests.support.s3_server import S3Server, put_lake
from tidemark.config import TableRule

pytestmark = pytest.mark.thorough

ROWS: Final = 1_000_000
CHANGED: Final = 20_000  # half of them by each merge
OTHER_GETS: Final = 60  # of logs, plans and staged files


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with in_front_of(s3_server.url) as proxy:
        yield proxy


def fill(shop: Environment, kind: Literal["bigint", "uuid"], files: int) -> None:
    """The source has only the rows that change; current has all rows, in so many files."""
    keys = ", ".join(f"('{key_of(kind, ROWS // CHANGED * n)}', {n})" for n in range(CHANGED))
    shop.execute(f"CREATE TABLE item (id {kind} PRIMARY KEY, n bigint, note text)")
    shop.begin_run()
    shop.preflight()
    shop.drain()
    shop.execute(f"INSERT INTO item SELECT id::{kind}, n, 'a note' FROM (VALUES {keys}) AS of (id, n)")
    shop.run()
    rows = rows_of(shop.spark(), kind, 0, ROWS).repartition(files)
    rows.write.format("delta").mode("overwrite").save(f"{shop.config.lake}/{shop.config.pipeline}/current/public/item")


def asked(shop: Environment, proxy: Proxy, number: int) -> Counter[str]:
    """How often each kind of request was made by a merge of half of the source's rows, by a driver of its own."""
    shop.execute(f"UPDATE item SET note = note || '!' WHERE n % 2 = {number}")
    shop.begin_run()
    shop.drain()
    proxy.forget()
    driver = shop.start("merge", own_jvm=True)
    said, _ = driver.communicate(timeout=600)
    assert driver.returncode == 0, said[-3000:]
    requests = Counter(request.kind for request in proxy.requests)
    shop.confirm()
    return requests


@pytest.mark.parametrize(("kind", "files"), [("bigint", 500), ("uuid", 8)])
def test_a_merge_asks_at_most_three_times_for_each_file(
    new_environment: Callable[..., Environment],
    s3_server: S3Server,
    proxy: Proxy,
    kind: Literal["bigint", "uuid"],
    files: int,
) -> None:
    shop = new_environment(f"large_{kind}_{files}", (TableRule("public.item"),))
    put_lake(shop, s3_server, proxy.url)
    fill(shop, kind, files)
    unmasked, masked = (asked(shop, proxy, number) for number in range(2))
    assert files <= unmasked["GET"] <= 3 * files + OTHER_GETS
    assert files <= masked["GET"] <= 3 * files + OTHER_GETS
