"""Merges on YARN, Hadoop's own in one process, in both deploy modes: the driver a child of the task, or a container of
YARN's that has neither this checkout on its path nor anything of Airflow's environment."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from sandbox.services.postgres import wait_for
from tests.clusters.halting import Task, halted_drivers
from tests.faults import workload
from tests.faults.rows_from_before import old_tables
from tests.support import judge
from tests.support.airflow_home import REPOSITORY, delta_jars
from tests.support.capture import Environment
from tests.support.on_cluster import OnCluster, command_of
from tidemark import failpoints
from tidemark.spark_submit import spark_jars

pytestmark = pytest.mark.thorough

# Four hundred megabytes that would be uploaded for each application, if they were not everywhere.
CONF = {"spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*", "spark.executor.instances": "1"}
OF_THE_CLUSTER = {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable}
_numbers = itertools.count(1)
NewShop = Callable[..., OnCluster]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, psutil.Process]]:
    """The folder of its configuration, and its process."""
    folder = tmp_path_factory.mktemp("yarn")
    with (folder / "yarn.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.mini_yarn", str(folder), f"{delta_jars()}/yarn"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "include")])},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        site = folder / "yarn-site.xml"
        wait_for(f"YARN runs ({folder}/yarn.log)", lambda: site.exists() or process.poll() is not None, 180)
        assert site.exists(), (folder / "yarn.log").read_text()[-3000:]
        yield folder, psutil.Process(process.pid)
    finally:
        below = psutil.Process(process.pid).children(recursive=True)
        process.communicate(timeout=60)
        for left in below:
            if left.is_running():
                left.kill()


@pytest.fixture
def new_shop(new_environment: Callable[..., Environment], yarn: tuple[Path, psutil.Process], tmp_path: Path) -> NewShop:
    """A function from a deploy mode to a pipeline with its tables in sync."""

    def make(mode: str, **conf: str) -> OnCluster:
        connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": mode}}
        variables = {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            "HADOOP_CONF_DIR": str(yarn[0]),
            "TIDEMARK_SPARK_JARS": f"local:{delta_jars()}",
        }
        variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = {**CONF, **(OF_THE_CLUSTER if mode == "cluster" else {}), **conf}
        shop = OnCluster.of(
            new_environment(f"on_yarn_{next(_numbers)}", workload.TABLES), tmp_path, variables, settings
        )
        workload.create(shop)
        return shop

    return make


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_capture_and_backfill_end_equal(new_shop: NewShop, mode: str) -> None:
    shop = new_shop(mode)
    workload.change(shop)
    shop.run()
    old = old_tables(shop)
    shop.backfill(*old.tables, chunk_rows=5)
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


def test_a_driver_in_the_cluster_that_outlives_its_task_changes_nothing(
    new_shop: NewShop, yarn: tuple[Path, psutil.Process]
) -> None:
    """spark-submit is killed with its task, the application goes on in its container, and stands still there until the
    next run has merged further (R5)."""
    shop = new_shop("cluster")
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    variable = f"spark.yarn.appMasterEnv.{failpoints.VARIABLE}"
    task = Task(shop.with_conf({variable: "merge.before_current:stop"}))
    task.start()
    (driver,) = wait_for("a driver stands still", lambda: halted_drivers(yarn[1], task), 300)
    try:
        below = {process: command_of(process) for process in psutil.Process().children(recursive=True)}
        of_submit = {"org.apache.spark.deploy.SparkSubmit", spark_jars.application("merge_batch", os.environ)}
        (submit,) = [process for process, command in below.items() if of_submit <= set(command)]
        submit.kill()
        task.join(timeout=60)
        assert "SparkApplicationFailed" in repr(task.raised)
        shop.let_leases_end()
        workload.change(shop)
        shop.run("the next run")
        assert judge.wrongs(shop) == []
    finally:
        driver.resume()
    driver.wait(timeout=300)
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
