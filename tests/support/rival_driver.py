"""Another driver's JVM with Delta's log store for S3: `python -m tests.support.rival_driver <endpoint> <table>`.

For each line of its input, a version, it writes that commit, and answers with "won" or the class of what was thrown.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from sandbox.setup.log_store import JAR
from tests.support import local_spark
from tests.support.s3_server import KEY, REGION, SECRET

LOG_STORE = "tidemark.delta.ConditionalLogStore"


class Driver:
    """One JVM's log store; `who` stands in each commit that it writes."""

    def __init__(self, jvm: Any, endpoint: str, table: str, who: str) -> None:
        self._jvm = jvm
        self._table = table
        self._who = who
        self._configuration = jvm.org.apache.hadoop.conf.Configuration(False)
        for key, value in {
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
        }.items():
            self._configuration.set(f"fs.s3a.{key}", value)
        self._store = getattr(jvm, LOG_STORE)(self._configuration)

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

    def listed(self, version: int) -> list[str] | str:
        """The names in the log from a version on, or the class of the exception."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._table}/_delta_log/{version:020}.")
        try:
            listed = self._store.listFrom(path, self._configuration)
        except Py4JJavaError as thrown:
            return str(thrown.java_exception.getClass().getName())
        names = []
        while listed.hasNext():
            names.append(str(listed.next().getPath().getName()))
        return names


def main(endpoint: str, table: str) -> None:
    conf = SparkConf(loadDefaults=False)
    delta = local_spark.jars().split(",")
    conf.set("spark.driver.extraClassPath", os.pathsep.join([local_spark.s3a_jars(), *delta, str(JAR)]))
    gateway = launch_gateway(conf)
    try:
        driver = Driver(gateway.jvm, endpoint, table, "rival")
        print("ready", flush=True)
        for line in sys.stdin:
            print(driver.commit(int(line)), flush=True)
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
