from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.faults import workload
from tests.support.capture import Environment

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared_shop(new_environment: Callable[..., Environment]) -> Environment:
    environment = new_environment("faults", workload.TABLES)
    workload.create(environment)
    return environment


@pytest.fixture
def shop(shared_shop: Environment) -> Environment:
    """A pipeline that the tests of a module share: each of them leaves its tables equal to the source."""
    shared_shop.let_leases_end()
    return shared_shop


@pytest.fixture
def new_shop(new_environment: Callable[..., Environment]) -> Callable[[str], Environment]:
    """A function from a name to a pipeline of its own, for tests that end with marked tables or break the slot."""

    def make(name: str) -> Environment:
        environment = new_environment(f"{name}{next(_numbers)}", workload.TABLES)
        workload.create(environment)
        return environment

    return make


@pytest.fixture
def source_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A source server of the test's own, durable and in no hurry to checkpoint, which the test may crash."""
    with running(tmp_path_factory.mktemp("source"), 18, checkpoint_timeout="1h") as server:
        yield server


@pytest.fixture
def shop_on_its_own_server(
    source_server: PostgresServer, new_environment: Callable[..., Environment]
) -> tuple[Environment, PostgresServer]:
    environment = new_environment("crashing", workload.TABLES, server=source_server)
    workload.create(environment)
    return environment, source_server
