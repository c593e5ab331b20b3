"""A shop per test, at each PostgreSQL of the tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer
from tests.capture.preflight.shop import Shop
from tests.conftest import create_database, drop_database
from tests.support import servers
from tests.support.pipeline import pipeline_config
from tidemark.config import TableRule

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=servers.ANY)
def databases(request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, str, str]]:
    """A server with a source and a ledger; each test has a pipeline of its own, and empties the source."""
    server: PostgresServer = request.getfixturevalue(servers.NAMES[request.param])
    source, ledger = create_database(server, "source"), create_database(server, "ledger")
    yield server, source, ledger
    drop_database(server, source)
    drop_database(server, ledger)


@pytest.fixture
def shop(databases: tuple[PostgresServer, str, str], tmp_path: Path) -> Iterator[Shop]:
    server, source, ledger = databases
    name = f"preflight_{next(_numbers)}"
    config = pipeline_config(
        name, tmp_path / "lake", (TableRule("shop.*", line=3),), {"lock_timeout_s": 1}, path="shop.yaml"
    )
    new_shop = Shop(config, source, ledger, server=server)
    new_shop.sql("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, note text)")
    yield new_shop
    new_shop.close()
    # On a busy machine a drain's process at the server may outlive the test, and would fail all tests behind it.
    new_shop.sql(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
        f"WHERE slot_name = '{config.slot}' AND active"
    )
    new_shop.drop_slot()
    new_shop.sql(
        f"DROP PUBLICATION IF EXISTS {config.publication}",
        "DROP SCHEMA shop CASCADE",
        "DROP TABLE IF EXISTS public.other",
    )
