"""Reads one version of a Delta table from the files of its log, without Delta: version, schema, properties, positions.

It is used if Delta's internal classes are not the known ones (`internals.misfit`). It reads the newest checkpoint and
the commits after it, and only the actions `txn`, `metaData` and `protocol`. A checkpoint file holds all of these, also
in version 2. Source: Delta protocol, "Delta Log Entries", "Checkpoints", "Action Reconciliation".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidemark.lsn import Lsn
from tidemark.names import spark_identifier
from tidemark.target.delta import hadoop_files
from tidemark.target.delta.internals import ARRAYS
from tidemark.target.delta.jvm import hadoop_configuration, java_class
from tidemark.target.merge_failures import LogUnreadable

# File names of commits, and of checkpoints: in one file, in parts, or with a UUID (version 2).
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
_WANTED: Final = ("txn", "metaData", "protocol")
# Each line of a commit is one action, and most are actions of files. Only lines that begin so are parsed.
_WANTED_PREFIXES: Final = tuple(f'{{"{action}"' for action in _WANTED)


@dataclass(slots=True)
class LoggedVersion:
    """One version of a table. `version` is -1 if the table has none; then all other fields are empty."""

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
        """The schema as JSON."""
        return str(self.metadata["schemaString"])

    @property
    def files(self) -> int:
        if self._files is None:
            self._files = len(self.rows().inputFiles())
        return self._files

    @property
    def bytes(self) -> int | None:
        """The size of the newest version, not of this one. It only influences how Spark plans."""
        return int(self.detail["sizeInBytes"])

    @property
    def detail(self) -> dict[str, Any]:
        """The row of DESCRIBE DETAIL, which is of the newest version."""
        described = self.spark.sql(f"DESCRIBE DETAIL delta.{spark_identifier(self.path)}").collect()
        return dict(described[0].asDict())

    def rows(self) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", self.version).load(self.path)


def newest(spark: SparkSession, path: str) -> LoggedVersion:
    """The newest version, by a new listing of the log's folder. Raises LogUnreadable."""
    folder = f"{path}/_delta_log"
    names = _log_names(spark, folder)
    commits = {int(match[1]): name for name in names if (match := _COMMIT.fullmatch(name))}
    if not commits:
        return LoggedVersion(spark, path, -1)
    version = max(commits)
    checkpoint_version, checkpoint = _newest_checkpoint(names, version)
    state = LoggedVersion(spark, path, version)
    for name in checkpoint:
        _apply_actions(state, f"{folder}/{name}", _checkpoint_actions)
    for number in range(checkpoint_version + 1, version + 1):
        if number not in commits:
            raise LogUnreadable(f"{folder}: commit {number} is missing")
        _apply_actions(state, f"{folder}/{commits[number]}", _commit_actions)
    if not isinstance(state.metadata.get("schemaString"), str) or not state.protocol:
        raise LogUnreadable(f"{folder}: no metadata up to version {version}")
    return state


def log_exists(spark: SparkSession, path: str) -> bool:
    """Whether the table has a folder for its log, with or without a version in it."""
    return hadoop_files.exists(spark, f"{path}/_delta_log")


def _log_names(spark: SparkSession, folder: str) -> list[str]:
    """The names of commits and checkpoints in the log's folder.

    The JVM returns all names as one text, since a list would take several calls to the JVM per name.
    """
    if not hadoop_files.exists(spark, folder):
        return []
    log_path = java_class(spark, "org.apache.hadoop.fs.Path")(folder)
    files = log_path.getFileSystem(hadoop_configuration(spark))
    paths = java_class(spark, "org.apache.hadoop.fs.FileUtil").stat2Paths(files.listStatus(log_path))
    text = str(java_class(spark, ARRAYS).toString(paths))
    return re.findall(r"/(\d{20}\.[^/,}]+)", text)


def _newest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """The version and files of the newest complete checkpoint; -1 and no files if there is none."""
    candidates: dict[int, dict[int, list[str]]] = {}
    for name in names:
        matched = _CHECKPOINT.fullmatch(name)
        if matched and int(matched[1]) <= version:
            candidates.setdefault(int(matched[1]), {}).setdefault(int(matched[3] or 1), []).append(name)
    for number in sorted(candidates, reverse=True):
        for parts, files in candidates[number].items():
            if parts == 1:
                return number, files[:1]  # each of these files is a complete checkpoint
            if len(files) == parts:
                return number, files
    return -1, []


def _commit_actions(spark: SparkSession, uri: str) -> Iterator[dict[str, Any]]:
    for line in hadoop_files.read_whole(spark, uri).decode().split("\n"):
        if line.startswith(_WANTED_PREFIXES):
            yield json.loads(line)


def _checkpoint_actions(spark: SparkSession, uri: str) -> Iterator[dict[str, Any]]:
    if uri.endswith(".json"):
        yield from _commit_actions(spark, uri)
        return
    with hadoop_files.open_to_read(spark, uri) as opened:
        file = pq.ParquetFile(opened)
        columns = [name for name in _WANTED if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=columns):
            for name in columns:
                column = batch.column(batch.schema.names.index(name))
                for action in column.drop_null().to_pylist():
                    yield {name: action}


def _apply_actions(
    state: LoggedVersion, uri: str, read: Callable[[SparkSession, str], Iterable[dict[str, Any]]]
) -> None:
    """Apply the actions of one file. Raises LogUnreadable, which quotes nothing, and errors of the file system."""
    try:
        for action in read(state.spark, uri):
            _apply(state, action)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, pa.ArrowException):
        raise LogUnreadable(f"{uri}: an action is damaged") from None


def _apply(state: LoggedVersion, action: dict[str, Any]) -> None:
    if "txn" in action:
        state.positions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
    elif "metaData" in action:
        metadata = action["metaData"]
        # Arrow reads Parquet's maps as lists of pairs.
        configuration = metadata.get("configuration") or {}
        state.metadata = {**metadata, "configuration": dict(configuration)}
    elif "protocol" in action:
        state.protocol = dict(action["protocol"])
