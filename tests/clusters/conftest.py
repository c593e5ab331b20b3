from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.faults import workload
from tests.support.airflow_home import REPOSITORY
from tests.support.capture import Environment
from tests.support.on_cluster import OnCluster, RunningCluster, running

# Airflow reads its home when it is first imported.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="tidemark-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(REPOSITORY / "plugins")

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A Master, two Workers and a machine for drivers."""
    with running(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture
def new_shop(new_environment: Callable[..., Environment], cluster: RunningCluster) -> Callable[..., OnCluster]:
    """A function from settings of Spark to a pipeline, its lake in a folder that all machines see; it has no table."""

    def make(**conf: str) -> OnCluster:
        pipeline = new_environment(f"shop_{next(_numbers)}", workload.TABLES)
        return OnCluster.of(pipeline, cluster.shared, cluster.variables(), cluster.conf(**conf))

    return make
