"""Converts an exception of Spark, Delta or Python during a table's merge to one of Tidemark's errors.

Spark's messages quote values of rows. So only the error condition ("DELTA_...") and the class names of the causes are
passed on. The driver's log gets the stack frames (`driver_log`).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from tidemark.errors import DiskFull, LakeFailed, LakeRefused, MergeBroken, MergeFailed, StagedFileGone, TidemarkError
from tidemark.target.driver_log import java_frames
from tidemark.unexpected_errors import NO_SPACE

MAX_CAUSES: Final = 20

# Copying a staged file raises the last one.
_FILE_GONE: Final = frozenset({"PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST", "java.io.FileNotFoundException"})

# Delta's own checks of what a fold guarantees: one row per key, and no NULL in a key.
_FOLD_BROKEN: Final = frozenset(
    {"DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE", "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"}
)

# The operating system's messages for a full disk and for an exhausted quota.
_NO_SPACE: Final = tuple(os.strerror(code) for code in NO_SPACE)

# Exceptions of one connection or one response. An end of file is another one's too: a file may be cut.
_OF_CONNECTIONS: Final = (
    "java.net.",
    "java.io.InterruptedIOException",
    "java.util.concurrent.TimeoutException",
    "org.apache.hadoop.net.",
    "org.apache.hadoop.fs.s3a.",
    "org.apache.hadoop.fs.gs.",
    "org.apache.hadoop.fs.azurebfs.",
    "com.google.cloud.hadoop.",
    "software.amazon.",
    "org.apache.http.",
)
_CONNECTION_EXCEPTIONS: Final = ("java.io.EOFException", *_OF_CONNECTIONS)

# Exceptions of storage, network or cluster, which concern no single table.
_LAKE_EXCEPTIONS: Final = (
    *_OF_CONNECTIONS,
    "java.io.IOException",
    "java.nio.file.FileSystemException",
    "java.nio.file.AccessDeniedException",
    "java.lang.OutOfMemoryError",
    "org.apache.hadoop.security.",
    "com.amazonaws.",
)

_AZURE_EXCEPTION: Final = "org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException"
_SDK: Final = "software.amazon.awssdk."
# The prefix of an exception's class -> its method that returns the HTTP status.
_STATUS_METHODS: Final = {
    _SDK: "statusCode",
    "com.google.cloud.hadoop.repackaged.ossgcs.com.google.cloud.storage.StorageException": "getCode",
    "com.google.cloud.hadoop.repackaged.ossgcs.com.google.api.client.": "getStatusCode",
    _AZURE_EXCEPTION: "getStatusCode",
}
# HTTP statuses by which a store rejects the credentials, or the access that they have. Our clients send no malformed
# request, so a 400 means rejected credentials too; a HEAD response has no body that says more.
_REFUSALS: Final = (400, 401, 403)
_REFUSALS_WITHOUT_STATUS: Final = {
    "java.nio.file.AccessDeniedException": "access denied",
    "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException": "no credentials were found",
}


class LogUnreadable(Exception):
    """The log of a Delta table lacks a commit between the checkpoint and the newest version, or the table's metadata or
    protocol, or has an action that is damaged."""


def as_error(failed: BaseException, table: str, lake: str) -> TidemarkError:
    """Convert an exception to one of Tidemark's errors. It names the table and never a row's value."""
    refused = as_refusal(failed, table, lake)
    if refused is not None:
        return refused
    condition = condition_of(failed)
    if is_missing_file(failed):
        return StagedFileGone(table=table)
    if condition in _FOLD_BROKEN:
        return MergeBroken(table=table, condition=condition)
    if (full := as_disk_full(failed, lake)) is not None:
        return full
    if isinstance(failed, OSError):  # of a file that the driver itself reads; its words hold no value
        return LakeFailed(table=table, condition=failed.strerror or condition)
    if isinstance(failed, Py4JNetworkError):  # the JVM has died
        return LakeFailed(table=table, condition=condition)
    if isinstance(failed, LogUnreadable):  # Delta would raise an exception of its own
        return MergeFailed(table=table, condition=condition)
    if not isinstance(failed, PySparkException | Py4JJavaError):
        return MergeBroken(table=table, condition=condition)
    causes = [str(cause.getClass().getName()) for cause in _causes(failed)]
    if any(cause.startswith(_LAKE_EXCEPTIONS) for cause in causes):
        return LakeFailed(table=table, condition=causes[-1])
    return MergeFailed(table=table, condition=condition)


def as_disk_full(failed: BaseException, lake: str) -> DiskFull | None:
    """DiskFull if the cause is a disk without space, else None.

    The exception does not name the disk: it may hold the table's files or Spark's temporary files.
    """
    errors = [str(cause.getMessage()) for cause in _causes(failed)]
    if isinstance(failed, OSError):
        errors.append(os.strerror(failed.errno or 0))
    if not any(words in error for error in errors for words in _NO_SPACE):
        return None
    return DiskFull.of_a_driver(lake)


def is_missing_file(failed: BaseException) -> bool:
    """Whether the cause is a missing file."""
    if isinstance(failed, FileNotFoundError) or condition_of(failed) in _FILE_GONE:
        return True
    return any(_is_azure_not_found(cause) for cause in _causes(failed))


def is_transient(failed: BaseException) -> bool:
    """Whether an immediate retry may succeed: a connection or a response broke off, and the store refused nothing."""
    if isinstance(failed, Py4JNetworkError) or as_refusal(failed, "", "") is not None:
        return False
    return any(str(cause.getClass().getName()).startswith(_CONNECTION_EXCEPTIONS) for cause in _causes(failed))


def as_refusal(failed: BaseException, what: str, lake: str) -> LakeRefused | None:
    """LakeRefused if the lake's object store rejected the credentials or the access to `what`, else None."""
    for cause in _causes(failed):
        name = str(cause.getClass().getName())
        detail = _REFUSALS_WITHOUT_STATUS.get(name)
        if name.startswith(tuple(_STATUS_METHODS)):
            detail = _refusing_status(cause, name)
        elif detail is not None and cause.getCause() is not None:
            continue  # the exception behind it has the status
        if detail is not None:
            parts = urlsplit(lake)
            return LakeRefused(lake=f"{parts.scheme}://{parts.netloc}", path=what, detail=detail)
    return None


def _refusing_status(refused: Any, name: str) -> str | None:
    """The HTTP status if it is a refusal, of S3 with its error code."""
    method = next(method for prefix, method in _STATUS_METHODS.items() if name.startswith(prefix))
    with suppress(Py4JError):  # not every exception of the client comes from a response
        status = int(getattr(refused, method)())
        if status in _REFUSALS:
            details = refused.awsErrorDetails() if name.startswith(_SDK) else None
            code = None if details is None else details.errorCode()
            return f"{status}, {code}" if code else str(status)
    return None


def _is_azure_not_found(cause: Any) -> bool:
    """Whether the exception is Azure's error for a missing file, of accounts with a hierarchical namespace or without.

    Azure's client puts this exception behind a FileNotFoundException of Java's.
    """
    if str(cause.getClass().getName()) != _AZURE_EXCEPTION:
        return False
    with suppress(Py4JError):
        return str(cause.getErrorCode().getErrorCode()) in ("PathNotFound", "BlobNotFound")
    return False


def stack_frames(failed: BaseException) -> str:
    """The stack frames for the driver's log: Python's, then those of the Java exceptions behind them. No messages."""
    return "".join(traceback.format_tb(failed.__traceback__)) + java_frames(_causes(failed))


def condition_of(failed: BaseException) -> str:
    """The innermost of Spark's error conditions, else the class name of the innermost cause; never a message."""
    innermost = failed.getCondition() if isinstance(failed, PySparkException) else None
    causes = list(_causes(failed))
    for cause in causes:
        with suppress(Py4JError):  # not every Java exception has conditions
            innermost = cause.getCondition() or innermost
    if innermost:
        return str(innermost)
    return str(causes[-1].getClass().getName()) if causes else type(failed).__name__


def _causes(failed: BaseException) -> Iterator[Any]:
    """The Java exceptions behind a Python exception, outermost first."""
    cause: Any = getattr(failed, "_origin", None) or getattr(failed, "java_exception", None)
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()
