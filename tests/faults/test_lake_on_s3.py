"""A pipeline whose lake is a bucket of a real S3 server: capture, backfill, and what is killed, broken, or done twice
end as on a disk: equal. `make faults` plays every scenario there too (TIDEMARK_TEST_LAKE=s3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults import workload
from tests.faults.rows_from_before import old_tables
from tests.support import judge
from tests.support.capture import Environment
from tests.support.s3_proxy import Proxy, in_front_of, one_in
from tests.support.s3_server import S3Server, put_lake
from tests.support.thorough import thorough
from tidemark import failpoints

STAGES = ("drain", "merge", "confirm")


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with in_front_of(s3_server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared(new_environment: Callable[..., Environment], s3_server: S3Server, proxy: Proxy) -> Environment:
    environment = new_environment("on_s3", workload.TABLES)
    put_lake(environment, s3_server, proxy.url)
    workload.create(environment)
    return environment


@pytest.fixture
def shop(shared: Environment, proxy: Proxy) -> Iterator[Environment]:
    """A pipeline that the tests share: each of them leaves its tables equal to the source."""
    shared.let_leases_end()
    proxy.forget()
    yield shared
    proxy.fault = lambda _: None


def test_changes_a_killed_merge_and_a_backfill_end_equal(shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    shop.crash("merge.after_history")
    shop.merge()
    shop.confirm()
    old = old_tables(shop)
    shop.backfill(*old.tables, chunk_rows=5)
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()


def test_whatever_requests_break_nothing_is_lost_and_nothing_there_twice(shop: Environment, proxy: Proxy) -> None:
    workload.change(shop)
    proxy.fault = one_in(7)
    shop.run()
    assert {way for way, _ in proxy.broken} == {"before", "after", "slow down"}
    proxy.fault = lambda _: None
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


@pytest.mark.parametrize("name", thorough(*failpoints.OF_CAPTURE))
def test_a_run_killed_here_is_finished_by_its_retry(name: str, shop: Environment, proxy: Proxy) -> None:
    workload.change(shop)
    proxy.fault = one_in(11)
    stage = name.partition(".")[0]
    shop.begin_run()
    for before in STAGES[: STAGES.index(stage)]:
        getattr(shop, before)()
    shop.crash(name)
    for after in STAGES[STAGES.index(stage) :]:
        getattr(shop, after)()
    proxy.fault = lambda _: None
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()
