from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database, drop_database
from tests.definitions.book import RULES
from tests.support.pipeline import Pipeline, pipeline_config


@pytest.fixture(scope="session")
def make_pipeline(
    postgres: PostgresServer, migrated_ledger: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], AbstractContextManager[Pipeline]]:
    """A function to a pipeline with databases and a lake of its own, which go with the block."""

    numbers = itertools.count(1)

    @contextmanager
    def make() -> Iterator[Pipeline]:
        folder: Path = tmp_path_factory.mktemp("definitions")
        source, ledger = create_database(postgres, "source"), create_database(postgres, "ledger", migrated_ledger)
        bounds = {"lock_timeout_s": 2, "join_wait_s": 5, "drain_stall_s": 60}
        config = pipeline_config(f"defined_{next(numbers)}", folder / "lake", RULES, bounds)
        pipeline = Pipeline(config, source, ledger)
        try:
            yield pipeline
        finally:
            pipeline.close()
            drop_database(postgres, source)
            drop_database(postgres, ledger)
            shutil.rmtree(folder)

    return make
