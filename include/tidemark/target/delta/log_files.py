"""Reads one version of a Delta table from the files of its log, without Delta: version, schema, properties, positions.

It is for a Delta whose own classes are not known (`internals.misfit`). Of the log it takes the newest checkpoint and
the commits behind it, and of both the actions `txn`, `metaData` and `protocol`: all of them stand in the checkpoint
itself, in its second version too. Source: Delta protocol, "Delta Log Entries", "Checkpoints", "Action Reconciliation".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidemark.lsn import Lsn
from tidemark.names import spark_identifier
from tidemark.target.delta import hadoop_files
from tidemark.target.delta.internals import ARRAYS
from tidemark.target.delta.jvm import java_class

# A commit, or a checkpoint: in one file, in parts, or with a name of its own.
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
_WANTED: Final = ("txn", "metaData", "protocol")
# A commit's action is a line of its own, and most lines are of files.
_OF_INTEREST: Final = tuple(f'{{"{action}"' for action in _WANTED)


class LogIncomplete(Exception):
    """A commit between checkpoint and newest version is missing, or nothing says what the table is."""


@dataclass(slots=True)
class LoggedVersion:
    """One version of a table; `version` is -1 if there is none, and the other facts are of one that is."""

    spark: SparkSession
    path: str
    version: int
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    _files: int | None = None

    def position(self, application: str) -> Lsn | None:
        at = self.positions.get(application)
        return None if at is None else Lsn(at)

    @property
    def is_mapped(self) -> bool:
        return bool(self.metadata.get("configuration", {}).get("delta.columnMapping.mode", "none") != "none")

    @property
    def schema(self) -> str:
        """As JSON."""
        return str(self.metadata["schemaString"])

    @property
    def files(self) -> int:
        if self._files is None:
            self._files = len(self.rows().inputFiles())
        return self._files

    @property
    def bytes(self) -> int | None:
        """Of the newest version: it decides how Spark plans, and no more."""
        return int(self.detail["sizeInBytes"])

    @property
    def detail(self) -> dict[str, Any]:
        """What Delta says of the newest version."""
        described = self.spark.sql(f"DESCRIBE DETAIL delta.{spark_identifier(self.path)}").collect()
        return dict(described[0].asDict())

    def rows(self) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", self.version).load(self.path)


def newest(spark: SparkSession, path: str) -> LoggedVersion:
    """The newest version, listed now. Raises LogIncomplete."""
    folder = f"{path}/_delta_log"
    names = _listed(spark, folder)
    commits = {int(found[1]): name for name in names if (found := _COMMIT.fullmatch(name))}
    if not commits:
        return LoggedVersion(spark, path, -1)
    version = max(commits)
    begins, checkpoint = _newest_checkpoint(names, version)
    state = LoggedVersion(spark, path, version)
    for name in checkpoint:
        _take(state, _of_checkpoint(spark, f"{folder}/{name}"))
    for number in range(begins + 1, version + 1):
        if number not in commits:
            raise LogIncomplete(f"{folder}: commit {number} is missing")
        _take(state, _of_commit(spark, f"{folder}/{commits[number]}"))
    if not state.metadata or not state.protocol:
        raise LogIncomplete(f"{folder}: no metadata up to version {version}")
    return state


def log_is_there(spark: SparkSession, path: str) -> bool:
    """Whether there is a folder for the log, with or without a version in it."""
    return hadoop_files.exists(spark, f"{path}/_delta_log")


def _listed(spark: SparkSession, folder: str) -> list[str]:
    """The names in the log's folder; all of them come as one text, since each would be several calls to the JVM."""
    if not hadoop_files.exists(spark, folder):
        return []
    place = java_class(spark, "org.apache.hadoop.fs.Path")(folder)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    paths = java_class(spark, "org.apache.hadoop.fs.FileUtil").stat2Paths(files.listStatus(place))
    listed = str(java_class(spark, ARRAYS).toString(paths))
    return re.findall(r"/(\d{20}\.[^/,}]+)", listed)


def _newest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """Its version, -1 without any, and its files; one of which not all parts are there does not count."""
    found: dict[int, dict[int, list[str]]] = {}
    for name in names:
        matched = _CHECKPOINT.fullmatch(name)
        if matched and int(matched[1]) <= version:
            found.setdefault(int(matched[1]), {}).setdefault(int(matched[3] or 1), []).append(name)
    for number in sorted(found, reverse=True):
        for parts, files in found[number].items():
            if parts == 1:
                return number, files[:1]  # each of several is a whole one
            if len(files) == parts:
                return number, files
    return -1, []


def _of_commit(spark: SparkSession, uri: str) -> Iterator[dict[str, Any]]:
    for line in hadoop_files.read_whole(spark, uri).decode().splitlines():
        if line.startswith(_OF_INTEREST):
            yield json.loads(line)


def _of_checkpoint(spark: SparkSession, uri: str) -> Iterator[dict[str, Any]]:
    if uri.endswith(".json"):
        yield from _of_commit(spark, uri)
        return
    with hadoop_files.open_to_read(spark, uri) as opened:
        file = pq.ParquetFile(opened)
        there = [name for name in _WANTED if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=there):
            for name in there:
                column = batch.column(batch.schema.names.index(name))
                for action in column.drop_null().to_pylist():
                    yield {name: action}


def _take(state: LoggedVersion, actions: Iterable[dict[str, Any]]) -> None:
    for action in actions:
        if "txn" in action:
            state.positions[action["txn"]["appId"]] = int(action["txn"]["version"])
        elif "metaData" in action:
            metadata = action["metaData"]
            # Parquet's maps are lists of pairs to Arrow.
            configuration = metadata.get("configuration") or {}
            state.metadata = {**metadata, "configuration": dict(configuration)}
        elif "protocol" in action:
            state.protocol = action["protocol"]
