"""A pipeline whose merges run on a Spark cluster, and that cluster: a Master and two Workers, each on a machine of its
own, and a third machine for the driver.

What a merge is here is the operator of the DAG as it is, with Airflow's Spark hook, a real spark-submit and real
executors. The other stages run in this process, as in tests/support/capture.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyspark
import pytest

from sandbox.services.postgres import free_port, wait_for
from sandbox.services.spark_cluster import Daemon, SparkCluster
from tests.support.airflow_home import delta_jars, postgres_connection
from tests.support.capture import Environment
from tests.support.machines import Machine, network
from tests.support.s3_server import KEY, REGION, SECRET, access
from tidemark.spark_submit.spark_connection import PROGRAMS

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
EXECUTOR = "CoarseGrainedExecutorBackend"
SPARK_OF_THE_IMAGE = Path("/mnt/image/spark")  # below what is each machine's own


@dataclass(slots=True)
class RunningCluster:
    """`here` is this machine's address among the others; `shared` is a folder that all of them see."""

    spark: SparkCluster
    here: str
    driver: Machine
    workers: Sequence[Machine]
    shared: Path
    programs: Path
    driver_port: int = field(default_factory=free_port)  # of a driver's page, where a pipeline has one
    daemons: dict[str, psutil.Process] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """What the Master says of itself."""
        with _DIRECT.open(f"{self.spark.ui}/json/", timeout=10) as answer:
            said: dict[str, Any] = json.loads(answer.read())
            return said

    def executors(self) -> list[psutil.Process]:
        """The executors' processes, those of the first Worker first."""
        workers = [process for name, process in self.daemons.items() if "worker" in name and process.is_running()]
        children = [child for worker in workers for child in worker.children(recursive=True)]
        return [child for child in children if EXECUTOR in " ".join(command_of(child))]

    def applications(self, pipeline: str) -> list[str]:
        """The names of a pipeline's applications that ended, oldest first."""
        mine = [one for one in self.state()["completedapps"] if one["name"] == f"tidemark_{pipeline}"]
        return [one["id"] for one in sorted(mine, key=lambda one: str(one["id"]))]

    def active_tasks(self, executor: str) -> int:
        """How many tasks the driver of the newest application believes to be at work on an executor."""
        try:
            pages = f"http://{self.driver.address}:{self.driver_port}/api/v1/applications"
            with _DIRECT.open(pages, timeout=10) as answer:
                name = json.loads(answer.read())[0]["id"]
            with _DIRECT.open(f"{pages}/{name}/executors", timeout=10) as answer:
                said = json.loads(answer.read())
        except OSError:
            return 0
        return sum(int(one["activeTasks"]) for one in said if one["id"] == executor)

    def variables(self) -> dict[str, str]:
        """What an Airflow that uses the cluster has in its environment."""
        connection = {"conn_type": "spark", "host": self.spark.master}
        extra = {"deploy-mode": "client", "spark-binary": PROGRAMS[-1]}  # the one of `programs`
        return {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({**connection, "extra": extra}),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "SPARK_CONF_DIR": str(self.spark.configuration),
            "SPARK_LOCAL_IP": self.driver.address,
            "TIDEMARK_SPARK_JARS": delta_jars(),
        }

    def conf(self, **more: str) -> dict[str, str]:
        """What a pipeline says of it."""
        return {"spark.cores.max": "2", "spark.ui.port": str(self.driver_port), **more}


@contextmanager
def running(folder: Path) -> Iterator[RunningCluster]:
    """Start it, and end it with the block."""
    with ExitStack() as stack:
        here, (driver, *workers) = stack.enter_context(network(3))
        home = Path(pyspark.__file__).parent
        of_image = SPARK_OF_THE_IMAGE if driver.apart else home
        host = workers[0].address
        port, of_page = _two_free_ports()
        spark = SparkCluster(of_image, folder / "cluster", port, of_page, "of-these-tests", host)
        spark.configure()
        shared, programs = folder / "shared", folder / "programs"
        for made in (shared, programs):
            made.mkdir()
        _write_submit(programs / PROGRAMS[-1], driver)
        cluster = RunningCluster(spark, here, driver, workers, shared, programs)
        stack.callback(_end, cluster)
        jars = Path(delta_jars())
        has = {home: of_image, spark.folder: spark.folder, shared: shared, jars: jars}
        places = [(workers[0], spark.master_daemon())]
        places += [(one, spark.worker_daemon(n, host=one.address)) for n, one in enumerate(workers, 1)]
        for machine, daemon in places:
            _start(cluster, machine, daemon, has, folder)
            if "master" in daemon.name:
                wait_for("the Master answers", lambda: _answers(cluster), 60)
        wait_for("both Workers are there", lambda: cluster.state()["aliveworkers"] == len(workers), 60)
        yield cluster


def _two_free_ports() -> tuple[int, int]:
    """Of two that are asked for one after the other, the second may be the first again."""
    first = free_port()
    return first, next(port for port in iter(free_port, None) if port != first)


def _write_submit(program: Path, driver: Machine) -> None:
    """spark-submit on the driver's machine, which has this checkout, as a worker of Airflow has."""
    submit = Path(sys.executable).with_name("spark-submit")
    command = " ".join(driver.command([str(submit)]))
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)


def _start(cluster: RunningCluster, machine: Machine, daemon: Daemon, has: dict[Path, Path], folder: Path) -> None:
    environment = {
        "PATH": os.defpath,
        "JAVA_HOME": os.environ["JAVA_HOME"] if "JAVA_HOME" in os.environ else _java_home(),
        **daemon.environment,
    }
    with (folder / f"{daemon.name}.log").open("wb") as log:
        process = subprocess.Popen(
            machine.command_of_an_image(daemon.command, has),
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    cluster.daemons[daemon.name] = psutil.Process(process.pid)


def _java_home() -> str:
    java = subprocess.run(["which", "java"], check=True, capture_output=True, text=True).stdout.strip()
    return str(Path(java).resolve().parents[1])


def command_of(process: psutil.Process) -> list[str]:
    try:
        return [*process.cmdline()]
    except psutil.Error:  # it has just ended
        return []


def _answers(cluster: RunningCluster) -> bool:
    try:
        return bool(cluster.state()["status"] == "ALIVE")
    except (OSError, ValueError):  # its page is there before what it says
        return False


def _end(cluster: RunningCluster) -> None:
    executors = cluster.executors()
    for process in [*cluster.daemons.values(), *executors]:
        if process.is_running():
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs([*cluster.daemons.values()], timeout=30)


@dataclass
class OnCluster(Environment):
    """A pipeline of which Airflow's operators do what Spark is needed for."""

    variables: dict[str, str] = field(default_factory=dict, kw_only=True)

    @classmethod
    def of(
        cls, pipeline: Environment, shared: Path, variables: Mapping[str, str], conf: Mapping[str, str]
    ) -> OnCluster:
        """The pipeline with its lake in a folder that all machines see; executors do the work, however little."""
        settings = {
            "spark.tidemark.driverFoldRows": "0",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # they live for seconds
            **conf,
        }
        config = replace(
            pipeline.config,
            lake=str(shared / pipeline.config.pipeline),
            spark_connection="spark_default",
            spark_conf=settings,
        )
        made = {name: value for name, value in vars(pipeline).items() if name != "config"}
        return cls(config=config, **made, variables=dict(variables))

    def put_lake_on_s3(self, url: str, bucket: str) -> None:
        """The server's `url` is one that all machines reach; the connection of the lake has its key."""
        connection = {"conn_type": "aws", "login": KEY, "password": SECRET}
        extra = {"endpoint_url": url, "region_name": REGION}
        self.variables["AIRFLOW_CONN_LAKE_S3"] = json.dumps({**connection, "extra": extra})
        self.config = replace(
            self.config, lake=f"s3a://{bucket}/lake", lake_connection="lake_s3", lake_access=access(url)
        )

    def with_variables(self, more: Mapping[str, str]) -> OnCluster:
        """The same pipeline in another thread's hands: of variables and run it keeps what they are now."""
        return replace(self, variables={**self.variables, **more})

    def with_conf(self, more: Mapping[str, str]) -> OnCluster:
        """The same with further settings of Spark."""
        config = replace(self.config, spark_conf={**self.config.spark_conf, **more})
        return replace(self, config=config, variables=dict(self.variables))

    def merge(self, *, by_hand: bool = False) -> None:
        assert not by_hand, "the context says of no run that it is"
        from tidemark_airflow.operators.capture_operators import MergeOperator

        with self.as_a_task():
            MergeOperator(task_id="merge", config=self.config).execute(self.context("merge"))

    def preflight(self) -> None:
        from tidemark_airflow.operators.capture_operators import PreflightOperator

        with self.as_a_task():
            PreflightOperator(task_id="preflight", config=self.config).execute(self.context("preflight"))

    def context(self, task: str) -> Any:
        """What a task's context has that the operators read."""
        from tidemark_airflow.assets import pipeline_alias

        ti = SimpleNamespace(dag_id=self.config.pipeline, run_id=self.report.run_id, task_id=task, map_index=-1)
        events = SimpleNamespace(add=lambda asset, extra: None)
        return {"ti": ti, "outlet_events": {pipeline_alias(self.config.pipeline): events}}

    @contextmanager
    def as_a_task(self, **more: str) -> Iterator[None]:
        """With the variables of Airflow's tasks."""
        connections = {
            "AIRFLOW_CONN_SOURCE": postgres_connection(self.source),
            "AIRFLOW_CONN_LEDGER": postgres_connection(self.ledger),
        }
        with pytest.MonkeyPatch.context() as patched:
            for name, value in {**connections, **self.variables, **more}.items():
                patched.setenv(name, value)
            yield
