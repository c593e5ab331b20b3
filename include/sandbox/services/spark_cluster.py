"""A standalone Spark cluster of this machine: a Master and its Workers as processes, of pyspark's own jars.

    Master ◄── Worker 1 ──► executors       each of them a command that somebody else starts and stops:
       ▲  ◄─── Worker 2 ──► executors       `make up CLUSTER=1`, and the tests of clusters
    driver (spark-submit, a child of the task)

pyspark has no start scripts (`sbin/`), but the classes that they call. Whoever reaches a Master may run programs as its
user, and on a machine with several users all of them reach the loopback address: so Master, Workers, drivers and
executors ask each other for a secret, and speak encrypted. It stands in a file that the user alone may read, and in no
command line. Spark: "Spark Standalone Mode", "Spark Security".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandbox.services.daemon import Daemon

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
# Of Master and Worker, which pass messages on; executors get their memory by `spark.executor.memory`.
_DAEMON: Final = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """`home` is Spark's, `folder` keeps configuration and the Workers' files; the Master listens on `host`."""

    home: Path
    folder: Path
    port: int
    ui_port: int
    secret: str = field(repr=False)
    host: str = "127.0.0.1"

    @property
    def master(self) -> str:
        """What a driver gets as `--master`."""
        return f"spark://{self.host}:{self.port}"

    @property
    def ui(self) -> str:
        return f"http://{self.host}:{self.ui_port}"

    @property
    def configuration(self) -> Path:
        """SPARK_CONF_DIR of whoever belongs to the cluster: Master, Workers, drivers."""
        return self.folder / "conf"

    def configure(self, more: Mapping[str, str] | None = None) -> None:
        """Write the configuration, and `more` settings with it."""
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.network.crypto.enabled": "true",
            "spark.ui.killEnabled": "false",
            "spark.master.rest.enabled": "false",  # it would start whatever anybody sends, and asks for no secret
            # What a driver sent of jars stays with each Worker, run after run.
            "spark.worker.cleanup.enabled": "true",
            "spark.worker.cleanup.appDataTtl": "3600",
            **(more or {}),
        }
        self.configuration.mkdir(parents=True, exist_ok=True)
        file = self.configuration / "spark-defaults.conf"
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.writelines(f"{name} {value}\n" for name, value in settings.items())

    def master_daemon(self) -> Daemon:
        options = ("--host", self.host, "--port", str(self.port), "--webui-port", str(self.ui_port))
        return self._daemon("spark-master", self.host, _MASTER, *options)

    def worker_daemon(self, number: int, *, host: str = "127.0.0.1", cores: int = 1, memory: str = "1g") -> Daemon:
        """A Worker; `host` is where executors of it are reached."""
        name = f"spark-worker-{number}"
        work = self.folder / name
        options = ("--host", host, "--cores", str(cores), "--memory", memory, "--work-dir", str(work))
        return self._daemon(name, host, _WORKER, *options, "--webui-port", "0", self.master)

    def _daemon(self, name: str, host: str, of: str, *options: str) -> Daemon:
        environment = {
            **_DAEMON,
            "SPARK_HOME": str(self.home),
            "SPARK_CONF_DIR": str(self.configuration),
            "SPARK_LOCAL_IP": host,  # where their pages are served too, which is everywhere unless it is said
        }
        return Daemon(name, (str(self.home / "bin" / "spark-class"), of, *options), environment)
