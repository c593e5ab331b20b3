"""Reads, writes and concatenates files of the lake in the driver, through Hadoop's file systems (R10).

A Spark application does everything with the lake through them, so it needs no other client of an object store. A local
file is read without the JVM. It is written through the JVM, since Hadoop may keep a checksum beside it. A small object
of S3 is read by one request; S3A would first ask for its length.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast

from pyspark.sql import SparkSession

from tidemark.storage import commit_safety
from tidemark.target.delta.jvm import java_class

PIECE_BYTES: Final = 4 * 2**20

# Up to which size an object of S3 is read whole, whatever part of it is asked for: another request takes as long.
WHOLE_BYTES: Final = 2**20
_OBJECT: Final = "tidemark.delta.WholeObject"  # in the log store's jar


def open_to_read(spark: SparkSession, uri: str, size: int | None = None) -> BinaryIO:
    """A file of the lake, to be read at any position. Raises FileNotFoundError, or what the file system has to say.

    What is said to be small comes from S3 whole, by one request. For any other file an object store is asked for its
    size, once: by us where it is not said, or else by opening it.
    """
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    if is_local(spark, path):
        return open(path.toUri().getPath(), "rb")
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if size is not None and size <= WHOLE_BYTES and is_object(spark, path):
        return io.BytesIO(bytes(java_class(spark, _OBJECT).read(files, path)))
    builder = files.openFile(path)
    if size is None:
        status = files.getFileStatus(path)
        size = int(status.getLen())
        builder = builder.withFileStatus(status)
    else:
        builder = builder.opt("fs.option.openfile.length", str(size))
    return cast(BinaryIO, io.BufferedReader(_Stream(builder.build().get(), size), buffer_size=2**16))


def read_whole(spark: SparkSession, uri: str, size: int | None = None) -> bytes:
    """A file that fits into memory. Raises what `open_to_read` does."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    if is_object(spark, path):
        files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        return bytes(java_class(spark, _OBJECT).read(files, path))
    with open_to_read(spark, uri, size) as file:
        return file.read()


def exists(spark: SparkSession, uri: str) -> bool:
    """Whether there is such a file; one request of an object store. Raises what the file system has to say."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    return bool(path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).exists(path))


def visible_files(spark: SparkSession, folder: str) -> Iterator[tuple[str, int]]:
    """The name of each file in the folder and below it, and when it was last written, in milliseconds. Left out is what
    Spark takes for hidden: a name that begins with _ or a dot."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(folder)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    waiting = [path]
    while waiting:
        listing = files.listStatusIterator(waiting.pop())
        while listing.hasNext():
            status = listing.next()
            name = str(status.getPath().getName())
            if name.startswith(("_", ".")):
                continue
            if status.isDirectory():
                waiting.append(status.getPath())
            else:
                yield name, int(status.getModificationTime())


def read_piece(spark: SparkSession, path: Any, begins: int, size: int) -> bytes:
    """So many bytes of an object (`is_object`) from a position on; `path` is one of Hadoop's."""
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return bytes(java_class(spark, _OBJECT).read(files, path, begins, size))


def is_object(spark: SparkSession, path: Any) -> bool:
    """Whether one of Hadoop's paths leads to objects that the log store's jar reads: it is there where its log store is
    in use."""
    return str(path.toUri().getScheme()) == "s3a" and spark.conf.get(commit_safety.OF_S3, None) == commit_safety.OWN


def is_local(spark: SparkSession, path: Any) -> bool:
    """Whether one of Hadoop's paths leads to a file of this machine, which is read without the JVM."""
    scheme = path.toUri().getScheme()
    return scheme == "file" or (scheme is None and str(path).startswith("/") and _is_local_by_default(spark))


def write_new(spark: SparkSession, folder: str, content: bytes) -> str:
    """A new Parquet file in the folder, whose name nobody else has; its name. An object store
    shows it when it is closed, and a table's folder may hold it before: until a commit adds it, it is garbage that a
    VACUUM removes."""
    name = f"part-{uuid.uuid4()}.parquet"
    path = java_class(spark, "org.apache.hadoop.fs.Path")(folder, name)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    stream = files.create(path, False)
    try:
        for at in range(0, len(content), PIECE_BYTES):  # each piece is a text on its way to the JVM
            stream.write(bytearray(content[at : at + PIECE_BYTES]))
    finally:
        stream.close()
    return name


@dataclass(frozen=True, slots=True)
class Body:
    """The beginning of a file, so many bytes of it, and what is written behind them."""

    uri: str
    size: int
    behind: bytes


def write_joined(spark: SparkSession, folder: str, bodies: Sequence[Body], end: bytes) -> tuple[str, list[str]]:
    """A new Parquet file in the folder, as `write_new` makes one, of the bodies in their order and the end. What is
    copied stays in the JVM. Returns its name, and the SHA-256 of each whole file that was read for it."""
    name = f"part-{uuid.uuid4()}.parquet"
    path_class = java_class(spark, "org.apache.hadoop.fs.Path")
    path = path_class(folder, name)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    copy = java_class(spark, "org.apache.commons.io.IOUtils").copyLarge
    nowhere = java_class(spark, "java.io.OutputStream").nullOutputStream()
    digests = []
    stream = path.getFileSystem(configuration).create(path, False)
    try:
        for body in bodies:
            digest = java_class(spark, "java.security.MessageDigest").getInstance("SHA-256")
            source = path_class(body.uri)
            opened = source.getFileSystem(configuration).open(source)
            try:
                read = java_class(spark, "java.security.DigestInputStream")(opened, digest)
                copy(read, stream, 0, body.size)
                copy(read, nowhere)
            finally:
                opened.close()
            digests.append(str(java_class(spark, "java.util.HexFormat").of().formatHex(digest.digest())))
            stream.write(bytearray(body.behind))
        stream.write(bytearray(end))
    finally:
        stream.close()
    return name, digests


def _is_local_by_default(spark: SparkSession) -> bool:
    default = spark._jsparkSession.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return str(default).startswith("file:")


class _Stream(io.RawIOBase):
    """An FSDataInputStream as Python's kind of file."""

    def __init__(self, stream: Any, size: int) -> None:
        self._stream = stream
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._size - self._at)
        if size <= 0:
            return 0
        self._stream.seek(self._at)
        content = bytes(self._stream.readNBytes(size))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
