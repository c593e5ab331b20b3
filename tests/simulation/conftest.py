from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.conftest import create_database, drop_database
from tests.simulation.workload import TABLES
from tests.support.capture import Environment
from tests.support.hung_commit import SERVER_SETTINGS
from tests.support.pipeline import pipeline_config


@pytest.fixture(scope="session")
def hanging_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A source on which a commit can be made to hang."""
    with running(tmp_path_factory.mktemp("hanging"), 18, fsync="off", **SERVER_SETTINGS) as server:
        yield server


@pytest.fixture
def new_backfilled(
    request: pytest.FixtureRequest, hanging_server: PostgresServer, tmp_path: Path
) -> Iterator[Callable[[str, dict[str, int]], Environment]]:
    """A function from name and bounds to a pipeline that is dropped after its test: there are hundreds of them."""
    environments: list[Environment] = []

    def make(name: str, bounds: dict[str, int]) -> Environment:
        config = pipeline_config(name, tmp_path / "lake", TABLES, {"lock_timeout_s": 1, "join_wait_s": 1, **bounds})
        source, ledger = (create_database(hanging_server, prefix) for prefix in ("source", "ledger"))
        environment = Environment(config, source, ledger, tmp_path, lambda: request.getfixturevalue("spark"))
        environments.append(environment)
        return environment

    yield make
    for environment in environments:
        environment.close()
        drop_database(hanging_server, environment.source)
        drop_database(hanging_server, environment.ledger)
