"""Reads the data files of one version of a Delta table, and commits masked rows and added files without a Spark job.

    pinned version ─► data_files, masked_rows ─► which rows, by file and number ─► exchange

`exchange` names rows by their numbers in the files of the pinned version. So a commit in between that adds or removes
any file is a conflict, and the caller reads the newest version before it tries again. Source: Delta protocol, "Deletion
Vectors", "Add File and Remove File".
"""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from tidemark.lsn import Lsn
from tidemark.target.delta import hadoop_files, internals, public_path
from tidemark.target.delta.delta_tables import PinnedTable, WrittenFile
from tidemark.target.delta.internals import Transaction
from tidemark.target.delta.jvm import java_class, sequence
from tidemark.target.driver.arrow_columns import bounds

# Writer features with which the driver can add files and mask rows without Spark's writer. A table with deletion
# vectors lists all of its features.
PLAIN_FEATURES: Final = frozenset({"deletionVectors", "appendOnly", "invariants", "timestampNtz", "typeWidening"})

# The tag of files that the driver wrote from rows.
ROWS_TAG: Final = "tidemark.rows"

# A vector file begins with its version. A length stands before each vector, and a checksum after it (Delta protocol,
# "Deletion Vector File Storage Format").
_VERSION: Final = b"\x01"
_LENGTH: Final = struct.Struct(">i")
_SUM: Final = struct.Struct(">I")

_RELATIVE_PATH: Final = re.compile(r"[^/:][^:]*")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a pinned version.

    `path` is relative to the table's folder. `rows` includes the `masked` rows, which a deletion vector masks. `low`
    and `high` have the bounds of its integer columns, as far as they are known. The file is the one of this `number` in
    `actions`, a sequence of the JVM.
    """

    path: str
    bytes: int
    rows: int
    low: Mapping[str, int]
    high: Mapping[str, int]
    masked: int
    tags: Mapping[str, str]
    actions: Any
    number: int = 0

    @property
    def added(self) -> Any:
        """Delta's own AddFile action."""
        return self.actions.apply(self.number)


def is_plain(table: PinnedTable) -> bool:
    """Whether `data_files` and `exchange` can add files to the table and mask its rows.

    They need unmapped column names, deletion vectors, no partitions, and no feature beyond `PLAIN_FEATURES`.
    """
    if not table.exists or table.logged is not None or table.is_mapped:
        return False
    metadata = table.state.metadata
    properties = metadata.get("configuration", {})
    if properties.get("delta.enableDeletionVectors", "").lower() != "true" or metadata.get("partitionColumns"):
        return False
    return set(table.state.protocol.get("writerFeatures", [])) <= PLAIN_FEATURES


def data_files(table: PinnedTable) -> list[DataFile] | None:
    """The files of the pinned version, None if a file lacks its number of rows or has an absolute path.

    The checksum file of a table with up to fifty files lists them all. Otherwise a Spark job reads them from the log.
    """
    if not table.exists:
        return []
    return _parse_files(*table.snapshot.listed_files())


def files_in_checksum(table: PinnedTable) -> list[DataFile] | None:
    """The files of the pinned version without a Spark job; None also if its checksum file does not list them."""
    added = None if table.logged is not None else table.snapshot.files_in_checksum()
    return None if added is None else _parse_files(added, internals.json_of(table.snapshot.spark, added))


def _parse_files(added: Any, actions: Sequence[Mapping[str, Any]]) -> list[DataFile] | None:
    files = []
    for n, action in enumerate(actions):
        statistics = json.loads(action.get("stats") or "{}")
        if "numRecords" not in statistics or not _RELATIVE_PATH.fullmatch(action["path"]):
            return None
        files.append(
            DataFile(
                unquote(action["path"]),
                action["size"],
                statistics["numRecords"],
                _integers(statistics.get("minValues", {})),
                _integers(statistics.get("maxValues", {})),
                (action.get("deletionVector") or {}).get("cardinality", 0),
                action.get("tags") or {},
                added,
                n,
            )
        )
    return files


def _integers(values: Mapping[str, Any]) -> dict[str, int]:
    """The integers among the bounds: the log truncates texts and rounds other values."""
    return {name: value for name, value in values.items() if isinstance(value, int)}


def rows_in_checksum(table: PinnedTable) -> int | None:
    """The number of rows of the pinned version, None if its checksum file does not have it for every file."""
    files = files_in_checksum(table)
    return None if files is None else sum(file.rows - file.masked for file in files)


def names_of(table: PinnedTable, files: Collection[DataFile]) -> set[str]:
    """The names of these files and of their deletion vectors' files, without folders."""
    names = {file.path.rpartition("/")[2] for file in files}
    for vector in (file.added.deletionVector() for file in files if file.masked):
        if vector.isOnDisk():
            names.add(str(vector.absolutePath(table.snapshot.log.dataPath()).getName()))
    return names


def masked_rows(spark: SparkSession, table: PinnedTable, file: DataFile) -> NDArray[np.int64]:
    """The numbers of the file's rows that its vector masks, in ascending order."""
    if not file.masked:
        return np.empty(0, np.int64)
    longs = _vector(spark, table, file).toArray()
    buffer = java_class(spark, "java.nio.ByteBuffer").allocate(8 * len(longs))
    buffer.asLongBuffer().put(longs)
    return np.frombuffer(bytes(buffer.array()), ">i8").astype(np.int64)


def _vector(spark: SparkSession, table: PinnedTable, file: DataFile) -> Any:
    """The file's deletion vector as a new bitmap, empty if it has none."""
    if not file.masked:
        return internals.new_bitmap(spark)
    descriptor, folder = file.added.deletionVector(), table.snapshot.log.dataPath()
    content = _read_vector(spark, table, descriptor) if hadoop_files.is_object(spark, table.path) else None
    if content is not None:
        return internals.bitmap_of(spark, content)
    return internals.vector_store(spark).read(descriptor, folder)


def _read_vector(spark: SparkSession, table: PinnedTable, descriptor: Any) -> bytes | None:
    """The vector's bytes, read by one request and kept in the pinned table.

    Returns None if the vector is not in a file of its own or is damaged; Delta's own reader then raises the error.
    """
    if not descriptor.isOnDisk():
        return None
    vector_id = str(descriptor.uniqueId())
    if vector_id not in table.vectors:
        size, offset = int(descriptor.sizeInBytes()), descriptor.offset()
        begins = int(offset.get()) if offset.isDefined() else 0
        path = descriptor.absolutePath(table.snapshot.log.dataPath())
        piece = hadoop_files.read_piece(spark, path, begins, _LENGTH.size + size + _SUM.size)
        content, end = piece[_LENGTH.size : -_SUM.size], piece[-_SUM.size :]
        if piece[: _LENGTH.size] != _LENGTH.pack(size) or end != _SUM.pack(zlib.crc32(content)):
            return None
        table.vectors[vector_id] = content
    return table.vectors[vector_id]


def _mask_actions(
    spark: SparkSession, table: PinnedTable, vectors: _VectorFile, file: DataFile, rows: Sequence[int] | None
) -> list[Any]:
    """The actions that remove these rows of the file, which are not masked yet; `rows` None removes the whole file."""
    if rows is None or file.masked + len(rows) == file.rows:
        return [file.added.removeWithTimestamp(java_class(spark, "java.lang.System").currentTimeMillis(), True)]
    actions = file.added.removeRows(vectors.store(_vector(spark, table, file), rows), True, True)
    return [actions._1(), actions._2()]


def vector_of(spark: SparkSession, table: PinnedTable, rows: Sequence[int]) -> dict[str, Any]:
    """Write a vector that masks these rows of a file that is not committed yet. Returns its descriptor as JSON."""
    with closing(_VectorFile(spark, table)) as vectors:
        descriptor = vectors.store(internals.new_bitmap(spark), rows)
    described: dict[str, Any] = internals.json_of(spark, descriptor)
    return described


class _VectorFile:
    """Writes the deletion vectors of one commit to one file in the table's folder (Delta protocol, "Deletion Vectors").

    The file is written when it is closed, if it has a vector. The protocol also allows a small vector
    in the log itself. But Delta's VACUUM fails if a present or recently removed file has such a vector.
    """

    def __init__(self, spark: SparkSession, table: PinnedTable) -> None:
        self._spark = spark
        self._table = table
        self._number = java_class(spark, "java.util.UUID").randomUUID()
        self._content = bytearray()

    def store(self, bitmap: Any, rows: Sequence[int]) -> Any:
        """Add these rows to the bitmap and write it. Returns Delta's descriptor of the vector."""
        spark = self._spark
        gateway: Any = spark.sparkContext._gateway
        longs = gateway.new_array(java_class(spark, "long"), len(rows))
        packed = bytearray(struct.pack(f">{len(rows)}q", *rows))
        java_class(spark, "java.nio.ByteBuffer").wrap(packed).asLongBuffer().get(longs)
        bitmap.addAll(sequence(spark, java_class(spark, "java.util.Arrays").stream(longs).boxed().toList()))
        bitmap.runOptimize()
        content = internals.bytes_of(spark, bitmap)
        at = len(self._content) or len(_VERSION)
        self._content += (b"" if self._content else _VERSION) + _LENGTH.pack(len(content)) + content
        self._content += _SUM.pack(zlib.crc32(content))
        return internals.descriptor(spark, self._number, len(content), int(bitmap.cardinality()), at)

    def close(self) -> None:
        if self._content:
            name = f"deletion_vector_{self._number.toString()}.bin"
            hadoop_files.write_new(self._spark, self._table.path, bytes(self._content), name)


def write_rows(spark: SparkSession, table: PinnedTable, rows: pa.Table, bounded: Sequence[str]) -> list[WrittenFile]:
    """Write the rows to one Parquet file in the table's folder, as the drain writes its files. No rows, no file.

    The log gets the bounds of those of the columns `bounded` that are of integers or have commit times.
    """
    if not rows.num_rows:
        return []
    # No statistics of floating-point columns: Arrow's bounds omit NaN, which Spark orders above all numbers. Spark
    # would skip the rows that have it.
    ordered = [f.name for f in rows.schema if not pa.types.is_floating(f.type) and not pa.types.is_nested(f.type)]
    sink = io.BytesIO()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=ordered,
        version="2.6",
    )
    content = sink.getvalue()
    name = hadoop_files.write_new(spark, table.path, content)
    return [WrittenFile(name, len(content), rows.num_rows, dict(bounds(rows, bounded)), tags={ROWS_TAG: "1"})]


def add_rows(spark: SparkSession, table: PinnedTable, rows: pa.Table, bounded: Sequence[str]) -> None:
    """Make one commit that adds the rows as a file of `write_rows`.

    The commit declares no read, so several such commits at the same time do not conflict.
    """
    if table.logged is not None:
        public_path.append_rows(table.logged, spark.createDataFrame(rows))
        return
    transaction = Transaction(table.snapshot)
    for file in write_rows(spark, table, rows, bounded):
        transaction.add_json(file.to_json(transaction.now_ms))
    transaction.commit()


def exchange(
    spark: SparkSession,
    table: PinnedTable,
    masked: Sequence[tuple[DataFile, Sequence[int] | None]],
    added: Sequence[WrittenFile | DataFrame],
    application: str,
    end: Lsn,
) -> None:
    """Make one commit on the pinned version: mask rows of its files, add files and frames, and set the position.

    `masked` has the rows to mask by file, None for the whole file. A file with no row left is removed. Each added file
    lies in the table's folder already; Spark writes the frames. Raises an error that `delta_tables.is_contested`
    recognises if another commit came in between.
    """
    transaction = Transaction(table.snapshot)
    transaction.move(application, end)
    transaction.read_all()
    with closing(_VectorFile(spark, table)) as vectors:
        for file, rows in masked:
            for action in _mask_actions(spark, table, vectors, file, rows):
                transaction.add(action)
    for item in added:
        if isinstance(item, DataFrame):
            transaction.write(item)
        else:
            transaction.add_json(item.to_json(transaction.now_ms))
    transaction.commit()
