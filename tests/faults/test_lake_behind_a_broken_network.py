"""Connections to source, ledger and the lake's bucket break at any byte, by seed: each run is red at worst, and at the
end the tables are equal. The tasks read and write the store by obstore, the driver by S3A."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from py4j.protocol import Py4JJavaError

from tests.faults import workload
from tests.support import broken_network, judge
from tests.support.broken_network import BrokenNetwork
from tests.support.capture import Environment
from tests.support.s3_server import S3Server, put_lake
from tests.support.thorough import seeds_of_faults
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.errors import BackfillClosed, BackfillIsOpen, BackfillRefused, LeaseTaken, RetryError
from tidemark.postgres.postgres_session import outages

ROUNDS = 4
TABLES = ("shop.item", "shop.bag", "shop.event")
# What a task may end with: Airflow tries it again, or the next run goes on.
RED = (RetryError, BackfillClosed, BackfillIsOpen, BackfillRefused, Py4JJavaError)


@contextmanager
def behind(shop: Environment, server: S3Server, seed: int) -> Iterator[list[BrokenNetwork]]:
    """The networks in front of source, ledger and store. None breaks a connection before `breaking` says so."""
    with ExitStack() as stack:
        ports = [int(conninfo_to_dict(database)["port"] or 0) for database in (shop.source, shop.ledger)]
        ports.append(urlsplit(server.url).port or 0)
        networks = [
            stack.enter_context(broken_network.in_front_of(port, seed * len(ports) + number, one_in=0))
            for number, port in enumerate(ports)
        ]
        put_lake(shop, server, f"http://127.0.0.1:{networks[-1].port}")
        yield networks


@contextmanager
def breaking(shop: Environment, networks: list[BrokenNetwork], one_in: int) -> Iterator[None]:
    """While tasks run. The sessions that change rows stay as they are. Most tasks open more connections to the
    databases than to the store, and fail with the first that breaks."""
    sound = shop.source, shop.ledger
    shop.source, shop.ledger = (
        make_conninfo(database, host="127.0.0.1", port=network.port)
        for database, network in zip(sound, networks, strict=False)
    )
    for network in networks:
        network.one_in = one_in if network is networks[-1] else 4 * one_in
    try:
        yield
    finally:
        shop.source, shop.ledger = sound
        for network in networks:
            network.one_in = 0


def attempt(shop: Environment, errors: Counter[str], *tasks: Callable[[], object]) -> None:
    """Up to the first task that fails, as in a DAG run, with one retry each."""
    for task in tasks:
        for _ in range(2):
            try:
                with outages():
                    task()
                break
            except RED as error:
                errors[type(error).__name__] += 1
                if isinstance(error, LeaseTaken):  # of a task whose connection broke as it gave its lease back
                    return
        else:
            return


@pytest.mark.parametrize("seed", seeds_of_faults(1, 9))
def test_runs_and_backfills_whose_connections_break_end_equal(
    seed: int, new_environment: Callable[..., Environment], s3_server: S3Server
) -> None:
    random = Random(seed)
    shop = new_environment(f"network{seed}", workload.TABLES, {"park_after": 1_000})
    errors = Counter[str]()
    with behind(shop, s3_server, seed) as networks:
        workload.create(shop)
        for _ in range(ROUNDS):
            workload.change(shop)
            with breaking(shop, networks, random.choice((2, 4, 8))):
                shop.begin_run()
                attempt(shop, errors, shop.preflight, shop.drain, shop.merge, shop.confirm)
            shop.let_leases_end()
            workload.change(shop)
            with breaking(shop, networks, random.choice((2, 4, 8))):
                shop.begin_backfill(random.choice(TABLES), chunk_rows=7, replace=True)
                attempt(shop, errors, shop.plan, shop.read, shop.drain, shop.merge, shop.confirm)
            shop.let_leases_end()
        shop.run()
        if requested_tables(shop.task()):
            shop.backfill()
            shop.run()
        shop.maintain()
        print(f"seed {seed}: errors {dict(errors)}, broken: {[dict(network.broken) for network in networks]}")
        assert judge.wrongs(shop) == []
        assert judge.second_run_changes_nothing(shop) == []
        assert networks[-1].broken.total() > 0
