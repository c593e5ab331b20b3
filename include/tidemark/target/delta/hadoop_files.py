"""Reads, writes and concatenates files of the lake in the driver, through Hadoop's file systems (R10).

A Spark application uses the lake only through Hadoop, so it needs no other client of an object store. A local file is
read and, if its name is new, written without the JVM. A small object of S3 is read by one request; S3A would first
request its length.
"""

from __future__ import annotations

import io
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from tidemark.storage import log_store_settings
from tidemark.target.delta.jvm import hadoop_configuration, hadoop_setting, java_class

PIECE_BYTES: Final = 4 * 2**20

# Schemes of the stores in which nobody sees a part of a file.
WHOLE_WHEN_CLOSED: Final = ("s3a", "gs")

# S3 objects up to this size are read whole, whichever part is needed: a second request takes as long.
WHOLE_BYTES: Final = 2**20
_OBJECT: Final = "tidemark.delta.WholeObject"  # in the log store's jar


def open_to_read(spark: SparkSession, uri: str, size: int | None = None) -> BinaryIO:
    """Open a file of the lake for reading at any position. Raises FileNotFoundError, or an error of the file system.

    With a `size` up to `WHOLE_BYTES`, an S3 object is read whole by one request. With a greater size, opening costs no
    request for the size. Without a size, one request reads it.
    """
    local = local_path(spark, uri)
    if local is not None:
        return open(local, "rb")
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    files = path.getFileSystem(hadoop_configuration(spark))
    if size is not None and size <= WHOLE_BYTES and is_object(spark, uri):
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
    """Read a whole file, which must fit into memory. Raises the errors of `open_to_read`."""
    if is_object(spark, uri):
        path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
        files = path.getFileSystem(hadoop_configuration(spark))
        return bytes(java_class(spark, _OBJECT).read(files, path))
    with open_to_read(spark, uri, size) as file:
        return file.read()


def exists(spark: SparkSession, uri: str) -> bool:
    """Whether the file exists; costs one request to an object store. Raises errors of the file system."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    return bool(path.getFileSystem(hadoop_configuration(spark)).exists(path))


def visible_files(spark: SparkSession, folder: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the modification time, in milliseconds, of each file in the folder and its subfolders.

    Files and folders that Spark treats as hidden are omitted: their names begin with "_" or ".".
    """
    path = java_class(spark, "org.apache.hadoop.fs.Path")(folder)
    files = path.getFileSystem(hadoop_configuration(spark))
    folders = [path]
    while folders:
        listing = files.listStatusIterator(folders.pop())
        while listing.hasNext():
            status = listing.next()
            name = str(status.getPath().getName())
            if name.startswith(("_", ".")):
                continue
            if status.isDirectory():
                folders.append(status.getPath())
            else:
                yield name, int(status.getModificationTime())


def read_piece(spark: SparkSession, path: Any, begins: int, size: int) -> bytes:
    """Read `size` bytes from position `begins` of an object (`is_object`); `path` is a Hadoop Path."""
    files = path.getFileSystem(hadoop_configuration(spark))
    return bytes(java_class(spark, _OBJECT).read(files, path, begins, size))


def is_object(spark: SparkSession, uri: str) -> bool:
    """Whether the URI names an S3 object that the log store's jar can read.

    The driver has that jar if its log store is configured for S3.
    """
    return uri.startswith("s3a:") and spark.conf.get(log_store_settings.OF_S3, None) == log_store_settings.OWN


def local_path(spark: SparkSession, uri: str) -> str | None:
    """The path of a file of this machine, which is read without the JVM; None if the URI leads elsewhere."""
    if uri.startswith("file:"):
        return re.sub("/+", "/", uri.removeprefix("file:"))
    return uri if uri.startswith("/") and _is_local_by_default(spark) else None


def write_new(spark: SparkSession, folder: str, content: bytes, name: str | None = None) -> str:
    """Write a new file into the folder, and return its name: by default a unique one of a Parquet file.

    An object store shows the file when it is closed. The folder may be a table's: until a commit adds the file, no
    version has it, and VACUUM removes it.
    """
    name = name or f"part-{uuid.uuid4()}.parquet"
    local, mode = local_path(spark, folder), _mode_of_files(spark)
    if local is not None and mode is not None:
        _write_local(f"{local}/{name}", content, mode)
        return name
    path = java_class(spark, "org.apache.hadoop.fs.Path")(folder, name)
    stream = path.getFileSystem(hadoop_configuration(spark)).create(path, False)
    try:
        for at in range(0, len(content), PIECE_BYTES):  # py4j sends each piece to the JVM as a text
            stream.write(bytearray(content[at : at + PIECE_BYTES]))
    finally:
        stream.close()
    return name


def _mode_of_files(spark: SparkSession) -> int | None:
    """The permissions that Hadoop gives to new files, None if its umask is symbolic."""
    umask = hadoop_setting(spark, "fs.permissions.umask-mode", "022")
    return 0o666 & ~int(umask, 8) if re.fullmatch("[0-7]+", umask) else None


def _write_local(path: str, content: bytes, mode: int) -> None:
    """Without its native library, which pip's Spark lacks, Hadoop starts two processes for each file: ten milliseconds.

    Hadoop also writes a checksum file, which a new file does not need.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def write_whole(spark: SparkSession, uri: str, content: bytes) -> None:
    """Write a file of this name, so that a reader gets all of it or none, also if this fails midway.

    S3 and Google's store show a file when it is closed: it is closed only behind its last byte, and all bytes are in
    the JVM before it is created. Elsewhere a temporary file is renamed, on a disk after it is synced. An existing file
    is replaced, but not on Azure. Raises FileExistsError there, OSError, or an error of the file system.
    """
    local, mode = local_path(spark, uri), _mode_of_files(spark)
    if local is not None and mode is not None:
        _replace_local(local, content, mode)
        return
    buffer = java_class(spark, "java.io.ByteArrayOutputStream")(len(content))
    for at in range(0, len(content), PIECE_BYTES):  # py4j sends each piece to the JVM as a text
        buffer.writeBytes(bytearray(content[at : at + PIECE_BYTES]))
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    files = path.getFileSystem(hadoop_configuration(spark))
    temporary = path if urlsplit(uri).scheme in WHOLE_WHEN_CLOSED else path.suffix(f".{uuid.uuid4()}.tmp")
    stream = files.create(temporary, True)
    buffer.writeTo(stream)
    stream.close()
    if temporary is not path and not files.rename(temporary, path):
        files.delete(temporary, False)
        raise (FileExistsError if files.exists(path) else OSError)(f"could not rename {temporary} to {uri}")


def _replace_local(path: str, content: bytes, mode: int) -> None:
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{uuid.uuid4()}.tmp"
    try:
        _write_local(temporary, content, mode)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        # Where Hadoop wrote the name before, it kept a checksum of that content, and a reader compares.
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/.{name}.crc")
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@dataclass(frozen=True, slots=True)
class Body:
    """The first `size` bytes of a file, and the bytes to write after them."""

    uri: str
    size: int
    suffix: bytes


def write_joined(spark: SparkSession, folder: str, bodies: Sequence[Body], end: bytes) -> tuple[str, list[str]]:
    """Write the bodies in their order, and then `end`, to a new Parquet file as `write_new` does.

    The JVM copies the bodies; they do not pass through Python. Returns the new file's name, and the SHA-256 of each
    whole source file.
    """
    name = f"copied-{uuid.uuid4()}.parquet"
    path_class = java_class(spark, "org.apache.hadoop.fs.Path")
    path = path_class(folder, name)
    configuration = hadoop_configuration(spark)
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
            stream.write(bytearray(body.suffix))
        stream.write(bytearray(end))
    finally:
        stream.close()
    return name, digests


def _is_local_by_default(spark: SparkSession) -> bool:
    return hadoop_setting(spark, "fs.defaultFS", "file:///").startswith("file:")


class _Stream(io.RawIOBase):
    """Wraps Hadoop's FSDataInputStream as a raw file of Python."""

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
