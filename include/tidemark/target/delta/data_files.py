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

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidemark.lsn import Lsn
from tidemark.target.delta import hadoop_files, internals
from tidemark.target.delta.delta_tables import PinnedTable, WrittenFile
from tidemark.target.delta.internals import Transaction
from tidemark.target.delta.jvm import java_class, sequence
from tidemark.target.driver.arrow_columns import bounds

# What a table may ask of its writers for files to be added, and rows to be masked, without Spark's writer. A table with
# vectors lists all that it asks.
PLAIN_FEATURES: Final = frozenset({"deletionVectors", "appendOnly", "invariants", "timestampNtz", "typeWidening"})

# On files that have rows as the driver wrote them, and nothing else.
ROWS_TAG: Final = "tidemark.rows"

# What stands before and behind a vector in its file ("Deletion Vectors", "Deletion Vector File Storage Format").
_LENGTH: Final = struct.Struct(">i")
_SUM: Final = struct.Struct(">I")

_RELATIVE_PATH: Final = re.compile(r"[^/:][^:]*")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a pinned version: its path in the table's folder, its size, its rows with those that a vector
    masks, between which values its columns of whole numbers are as far as that is known, what whoever added it wrote
    beside it, and Delta's own action for it."""

    path: str
    bytes: int
    rows: int
    low: Mapping[str, int]
    high: Mapping[str, int]
    masked: int
    tags: Mapping[str, str]
    added: Any


def is_plain(table: PinnedTable) -> bool:
    """Whether files can be added to the table and rows of it masked by what `data_files` and `exchange` know of Delta:
    names as they are, vectors in use, no feature that asks more of a writer."""
    if not table.exists or table.logged is not None or table.is_mapped:
        return False
    metadata = table.state.metadata
    properties = metadata.get("configuration", {})
    if properties.get("delta.enableDeletionVectors", "").lower() != "true" or metadata.get("partitionColumns"):
        return False
    return set(table.state.protocol.get("writerFeatures", [])) <= PLAIN_FEATURES


def data_files(table: PinnedTable) -> list[DataFile] | None:
    """The files of the pinned version: from its checksum file, where a table of up to fifty files has them all, else
    from the log, by a Spark job. None if one of them says less of itself than it must."""
    if not table.exists:
        return []
    return _described(*table.snapshot.listed_files())


def files_in_checksum(table: PinnedTable) -> list[DataFile] | None:
    """The same without a Spark job: None where its checksum file does not have them all."""
    added = None if table.logged is not None else table.snapshot.files_in_checksum()
    return None if added is None else _described(added, internals.json_of(table.snapshot.spark, added))


def _described(added: Any, texts: Sequence[Mapping[str, Any]]) -> list[DataFile] | None:
    described = []
    for n, text in enumerate(texts):
        statistics = json.loads(text.get("stats") or "{}")
        if "numRecords" not in statistics or not _RELATIVE_PATH.fullmatch(text["path"]):
            return None
        described.append(
            DataFile(
                unquote(text["path"]),
                text["size"],
                statistics["numRecords"],
                _whole_numbers(statistics.get("minValues", {})),
                _whole_numbers(statistics.get("maxValues", {})),
                (text.get("deletionVector") or {}).get("cardinality", 0),
                text.get("tags") or {},
                added.apply(n),
            )
        )
    return described


def _whole_numbers(values: Mapping[str, Any]) -> dict[str, int]:
    """The log has texts cut short, and other values rounded."""
    return {name: value for name, value in values.items() if isinstance(value, int)}


def rows_in_checksum(table: PinnedTable) -> int | None:
    """How many rows the pinned version has, None if its checksum file does not say so of every file."""
    files = files_in_checksum(table)
    return None if files is None else sum(file.rows - file.masked for file in files)


def names_of(table: PinnedTable, files: Collection[DataFile]) -> set[str]:
    """The names of these files of the pinned version and of their vectors' files, without folders."""
    names = {file.path.rpartition("/")[2] for file in files}
    for vector in (file.added.deletionVector() for file in files if file.masked):
        if vector.isOnDisk():
            names.add(str(vector.absolutePath(table.snapshot.log.dataPath()).getName()))
    return names


def masked_rows(spark: SparkSession, table: PinnedTable, file: DataFile) -> set[int]:
    """The numbers of the file's rows that its vector masks."""
    if not file.masked:
        return set()
    longs = _vector(spark, table, file).toArray()
    buffer = java_class(spark, "java.nio.ByteBuffer").allocate(8 * len(longs))
    buffer.asLongBuffer().put(longs)
    return {row for (row,) in struct.iter_unpack(">q", bytes(buffer.array()))}


def _vector(spark: SparkSession, table: PinnedTable, file: DataFile) -> Any:
    """The file's vector, a bitmap of its own, empty if it has none."""
    if not file.masked:
        return internals.new_bitmap(spark)
    descriptor, folder = file.added.deletionVector(), table.snapshot.log.dataPath()
    content = _object_of(spark, table, descriptor) if hadoop_files.is_object(spark, folder) else None
    if content is not None:
        return internals.bitmap_of(spark, content)
    return internals.vector_store(spark).read(descriptor, folder)


def _object_of(spark: SparkSession, table: PinnedTable, descriptor: Any) -> bytes | None:
    """The vector's bytes by one request, once a version; None where Delta's own reader is to say what is wrong."""
    if not descriptor.isOnDisk():
        return None
    place = str(descriptor.uniqueId())
    if place not in table.vectors:
        size, offset = int(descriptor.sizeInBytes()), descriptor.offset()
        begins = int(offset.get()) if offset.isDefined() else 0
        path = descriptor.absolutePath(table.snapshot.log.dataPath())
        piece = hadoop_files.read_piece(spark, path, begins, _LENGTH.size + size + _SUM.size)
        content, end = piece[_LENGTH.size : -_SUM.size], piece[-_SUM.size :]
        if piece[: _LENGTH.size] != _LENGTH.pack(size) or end != _SUM.pack(zlib.crc32(content)):
            return None
        table.vectors[place] = content
    return table.vectors[place]


def _masking(
    spark: SparkSession, table: PinnedTable, vectors: _VectorFile, file: DataFile, rows: Sequence[int] | None
) -> list[Any]:
    """The actions by which these rows of the file, which none masks yet, are gone; None are all of them."""
    if rows is None or file.masked + len(rows) == file.rows:
        return [file.added.removeWithTimestamp(java_class(spark, "java.lang.System").currentTimeMillis(), True)]
    both = file.added.removeRows(vectors.stored(_vector(spark, table, file), rows), True, True)
    return [both._1(), both._2()]


def vector_of(spark: SparkSession, table: PinnedTable, rows: Sequence[int]) -> dict[str, Any]:
    """A vector that masks these rows of a file that is still to be added: its descriptor, as JSON has it."""
    with closing(_VectorFile(spark, table)) as vectors:
        stored = vectors.stored(internals.new_bitmap(spark), rows)
    described: dict[str, Any] = internals.json_of(spark, stored)
    return described


class _VectorFile:
    """The file of the table's folder in which the vectors of one commit stand, one behind the other (Delta protocol,
    "Deletion Vectors"); it is made for the first of them, and is whole once it is closed.

    The protocol lets a small vector stand in the log itself, but Delta's VACUUM ends with an error where one does, in a
    file that is there or in one that was removed of late.
    """

    def __init__(self, spark: SparkSession, table: PinnedTable) -> None:
        self._spark = spark
        self._table = table
        self._writer: Any = None
        self._number: Any = None

    def stored(self, bitmap: Any, rows: Sequence[int]) -> Any:
        """The descriptor of the bitmap with these rows besides."""
        spark = self._spark
        gateway: Any = spark.sparkContext._gateway
        longs = gateway.new_array(java_class(spark, "long"), len(rows))
        packed = bytearray(struct.pack(f">{len(rows)}q", *rows))
        java_class(spark, "java.nio.ByteBuffer").wrap(packed).asLongBuffer().get(longs)
        bitmap.addAll(sequence(spark, java_class(spark, "java.util.Arrays").stream(longs).boxed().toList()))
        bitmap.runOptimize()
        content = internals.bytes_of(spark, bitmap)
        at = self._opened().write(content).offset()
        return internals.descriptor(spark, self._number, len(content), int(bitmap.cardinality()), at)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _opened(self) -> Any:
        if self._writer is None:
            store = internals.vector_store(self._spark)
            self._number = java_class(self._spark, "java.util.UUID").randomUUID()
            folder = store.pathWithFileSystem(self._table.snapshot.log.dataPath())
            self._writer = store.createWriter(store.generateFileNameInTable(folder, self._number, ""))
        return self._writer


def write_rows(spark: SparkSession, table: PinnedTable, rows: pa.Table, key: Sequence[str]) -> list[WrittenFile]:
    """One Parquet file in the table's folder, by the way that the drain writes its own; none of no rows."""
    if not rows.num_rows:
        return []
    # Arrow's bounds of floating point leave NaN out, which to Spark is above all numbers: it would pass the rows over.
    bounded = [f.name for f in rows.schema if not pa.types.is_floating(f.type) and not pa.types.is_nested(f.type)]
    sink = io.BytesIO()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=bounded,
        version="2.6",
    )
    content = sink.getvalue()
    name = hadoop_files.write_new(spark, table.path, content)
    between = dict(bounds(rows, ["_commit_lsn", *key]))
    return [WrittenFile(name, len(content), rows.num_rows, between, tags={ROWS_TAG: "1"})]


def exchange(
    spark: SparkSession,
    table: PinnedTable,
    masked: Sequence[tuple[DataFile, Sequence[int] | None]],
    added: Sequence[WrittenFile | DataFrame],
    application: str,
    end: Lsn,
) -> None:
    """One commit that masks rows of the pinned version's files, adds files that lie in the folder and frames, which
    Spark writes, and sets the position, on that version. A file of which no row is left goes.

    Raises what `is_contested` recognises if another commit came in between.
    """
    transaction = Transaction(table.snapshot)
    transaction.move(application, end)
    transaction.read_all()
    with closing(_VectorFile(spark, table)) as vectors:
        for file, rows in masked:
            for action in _masking(spark, table, vectors, file, rows):
                transaction.add(action)
    for one in added:
        if isinstance(one, DataFrame):
            transaction.write(one)
        else:
            transaction.add_json(one.to_json(transaction.now_ms))
    transaction.commit()
