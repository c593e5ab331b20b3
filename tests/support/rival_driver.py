"""Another driver's JVM with the log store of a table: `python -m tests.support.rival_driver`, its `Commits` as JSON in
the first line of its input.

For each further line, a version, it writes that commit, and answers with "won" or the class of what was thrown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from sandbox.setup.log_store import JAR
from tests.support import local_spark
from tests.support.s3_server import KEY, REGION, SECRET


@dataclass(frozen=True, slots=True)
class Commits:
    """How a JVM commits to a table: by which log store of Delta's, with which settings of Hadoop's, secrets among them,
    which jars beside Delta's, and which properties of its own."""

    table: str
    log_store: str
    settings: Mapping[str, str]
    jars: Sequence[str]
    properties: Mapping[str, str] = field(default_factory=dict)


def on_s3(endpoint: str, table: str) -> Commits:
    settings = {
        "impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "impl.disable.cache": "true",
        "access.key": KEY,
        "secret.key": SECRET,
        "endpoint": endpoint,
        "endpoint.region": REGION,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "retry.interval": "10ms",
        "fast.upload.buffer": "bytebuffer",  # the session's local file system is not the one it expects
    }
    of_s3a = {f"fs.s3a.{key}": value for key, value in settings.items()}
    return Commits(table, "tidemark.delta.ConditionalLogStore", of_s3a, [local_spark.s3a_jars(), str(JAR)])


class Driver:
    """One JVM's log store; `who` stands in each commit that it writes."""

    def __init__(self, jvm: Any, commits: Commits, who: str) -> None:
        self._jvm = jvm
        self._table = commits.table
        self._who = who
        self._configuration = jvm.org.apache.hadoop.conf.Configuration(False)
        for key, value in commits.settings.items():
            self._configuration.set(key, value)
        self._store = getattr(jvm, commits.log_store)(self._configuration)

    def make_log(self) -> None:
        """The folder, which a table's first writer makes, and which some log stores ask for."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._table}/_delta_log")
        assert path.getFileSystem(self._configuration).mkdirs(path)

    def commit(self, version: int, overwrite: bool = False) -> str:
        """ "won", or the class of the exception."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._table}/_delta_log/{version:020}.json")
        actions = self._jvm.java.util.ArrayList()
        for line in (f'{{"commitInfo":{{"who":"{self._who}"}}}}', "{}"):
            actions.add(line)
        try:
            self._store.write(path, actions.iterator(), overwrite, self._configuration)
        except Py4JJavaError as thrown:
            return str(thrown.java_exception.getClass().getName())
        return "won"

    def read(self, name: str) -> list[str] | str:
        """The lines of a file of the log, or the class of the exception."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._table}/_delta_log/{name}")
        try:
            lines = self._store.read(path, self._configuration)
        except Py4JJavaError as thrown:
            return str(thrown.java_exception.getClass().getName())
        listed = []
        while lines.hasNext():
            listed.append(str(lines.next()))
        return listed

    def listing(self, version: int) -> Any:
        """The log store's own answer for the log from a version on."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._table}/_delta_log/{version:020}.")
        return self._store.listFrom(path, self._configuration)

    def listed(self, version: int) -> list[str] | str:
        """The names in the log from a version on, or the class of the exception."""
        try:
            listed = self.listing(version)
        except Py4JJavaError as thrown:
            return str(thrown.java_exception.getClass().getName())
        names = []
        while listed.hasNext():
            names.append(str(listed.next().getPath().getName()))
        return names


@contextmanager
def running(commits: Commits) -> Iterator[subprocess.Popen[str]]:
    """One that waits for versions, until the block ends."""
    command = [sys.executable, "-m", "tests.support.rival_driver"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=local_spark.REPOSITORY
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(asdict(commits)), file=process.stdin, flush=True)
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def asked(rival: subprocess.Popen[str], version: int) -> None:
    assert rival.stdin is not None
    print(version, file=rival.stdin, flush=True)


def answered(rival: subprocess.Popen[str]) -> str:
    assert rival.stdout is not None
    return rival.stdout.readline().strip()


def main() -> None:
    commits = Commits(**json.loads(sys.stdin.readline()))
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.driver.extraClassPath", os.pathsep.join([*commits.jars, *local_spark.jars().split(",")]))
    options = " ".join(f"-D{name}={value}" for name, value in commits.properties.items())
    conf.set("spark.driver.extraJavaOptions", options)
    gateway = launch_gateway(conf)
    try:
        driver = Driver(gateway.jvm, commits, "rival")
        print("ready", flush=True)
        for line in sys.stdin:
            print(driver.commit(int(line)), flush=True)
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main()
