"""Converts an exception of Spark, Delta or Python during a table's merge to an error of the tree, by whose move it is.

Spark's messages quote values of rows. So only the error condition ("DELTA_...") and the class names of the causes are
passed on. The driver's log has the places in code (`driver_log`).
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
from tidemark.target.driver_log import places
from tidemark.unexpected_errors import NO_SPACE

MAX_CAUSES: Final = 20

# The last is what the copy of a staged file ends with.
_FILE_GONE: Final = frozenset({"PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST", "java.io.FileNotFoundException"})

# Delta's own checks of what a fold promises: one row per key, no key without a value.
_PROMISE_BROKEN: Final = frozenset(
    {"DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE", "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"}
)

# What the operating system says of a full disk, or of a quota that is used up.
_NO_SPACE: Final = tuple(os.strerror(code) for code in NO_SPACE)

# Causes that are of storage, network or cluster, and of no table.
_OF_THE_LAKE: Final = (
    "java.net.",
    "java.io.IOException",
    "java.io.InterruptedIOException",
    "java.nio.file.FileSystemException",
    "java.nio.file.AccessDeniedException",
    "java.util.concurrent.TimeoutException",
    "java.lang.OutOfMemoryError",
    "org.apache.hadoop.net.",
    "org.apache.hadoop.fs.s3a.",
    "org.apache.hadoop.fs.gs.",
    "org.apache.hadoop.fs.azurebfs.",
    "org.apache.hadoop.security.",
    "com.google.cloud.hadoop.",
    "com.amazonaws.",
    "software.amazon.",
    "org.apache.http.",
)

# Those of them that are of one connection or answer.
_OF_A_CONNECTION: Final = (
    "java.net.",
    "java.io.EOFException",
    "java.io.InterruptedIOException",
    "java.util.concurrent.TimeoutException",
    "org.apache.hadoop.net.",
    "org.apache.hadoop.fs.s3a.",
    "org.apache.hadoop.fs.gs.",
    "org.apache.hadoop.fs.azurebfs.",
    "com.google.cloud.hadoop.",
    "org.apache.http.",
    "software.amazon.",
)

_OF_AZURE: Final = "org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException"
_SDK: Final = "software.amazon.awssdk."
# Of other stores' clients: how an exception's class begins -> its method that says the status.
_STATUS: Final = {
    "com.google.cloud.hadoop.repackaged.ossgcs.com.google.cloud.storage.StorageException": "getCode",
    "com.google.cloud.hadoop.repackaged.ossgcs.com.google.api.client.": "getStatusCode",
    _OF_AZURE: "getStatusCode",
}
# With these a store says that it does not know who asks, or that they may not: of the requests that are sound by
# construction, any 400 is of that kind, and the answer to a HEAD has no other word for it.
_REFUSALS: Final = (400, 401, 403)
_WITHOUT_ANSWER: Final = {
    "java.nio.file.AccessDeniedException": "access denied",
    "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException": "no credentials were found",
}


def as_error(failed: BaseException, table: str, lake: str) -> TidemarkError:
    """The leaf for what was raised; the table is named, its rows are not."""
    refused = as_refusal(failed, table, lake)
    if refused is not None:
        return refused
    condition = condition_of(failed)
    if is_gone(failed):
        return StagedFileGone(table=table)
    if condition in _PROMISE_BROKEN:
        return MergeBroken(table=table, condition=condition)
    if (full := as_full(failed, lake)) is not None:
        return full
    if isinstance(failed, Py4JNetworkError):  # the JVM is gone
        return LakeFailed(table=table, condition=condition)
    if not isinstance(failed, PySparkException | Py4JJavaError):
        return MergeBroken(table=table, condition=condition)
    causes = [str(cause.getClass().getName()) for cause in _causes(failed)]
    if any(cause.startswith(_OF_THE_LAKE) for cause in causes):
        return LakeFailed(table=table, condition=causes[-1])
    return MergeFailed(table=table, condition=condition)


def as_full(failed: BaseException, lake: str) -> DiskFull | None:
    """For a disk without space. Which one it was nobody says: a table's files, or what Spark puts aside."""
    errors = [str(cause.getMessage()) for cause in _causes(failed)]
    if isinstance(failed, OSError):
        errors.append(os.strerror(failed.errno or 0))
    if not any(words in error for error in errors for words in _NO_SPACE):
        return None
    return DiskFull.of_a_driver(lake)


def is_gone(failed: BaseException) -> bool:
    """Whether a file was not there."""
    if isinstance(failed, FileNotFoundError) or condition_of(failed) in _FILE_GONE:
        return True
    return any(_is_of_no_file(cause) for cause in _causes(failed))


def may_pass(failed: BaseException) -> bool:
    """Whether it may go well at once: a connection or an answer that broke off, and no refusal."""
    if isinstance(failed, Py4JNetworkError) or as_refusal(failed, "", "") is not None:
        return False
    return any(str(cause.getClass().getName()).startswith(_OF_A_CONNECTION) for cause in _causes(failed))


def as_refusal(failed: BaseException, what: str, lake: str) -> LakeRefused | None:
    """What the lake's object store refused, if it did."""
    for cause in _causes(failed):
        name = str(cause.getClass().getName())
        answer = _WITHOUT_ANSWER.get(name)
        if name.startswith(_SDK):
            answer = _answer(cause) or answer
        elif name.startswith(tuple(_STATUS)):
            answer = _status(cause, name)
        elif answer is not None and cause.getCause() is not None:
            continue  # which says more
        if answer is not None:
            parts = urlsplit(lake)
            return LakeRefused(lake=f"{parts.scheme}://{parts.netloc}", path=what, detail=answer)
    return None


def _answer(refused: Any) -> str | None:
    """The status and S3's own word for it, where they are a refusal."""
    with suppress(Py4JError):  # not every exception of the client's is an answer
        status = int(refused.statusCode())
        details = refused.awsErrorDetails()
        word = details.errorCode() if details is not None else None
        if status in _REFUSALS:
            return f"{status}, {word}" if word else str(status)
    return None


def _status(refused: Any, name: str) -> str | None:
    """The status, where it is a refusal."""
    method = next(method for prefix, method in _STATUS.items() if name.startswith(prefix))
    with suppress(Py4JError):  # not every exception of the client's is an answer
        status = int(getattr(refused, method)())
        if status in _REFUSALS:
            return str(status)
    return None


def _is_of_no_file(cause: Any) -> bool:
    """Whether it is Azure's word for a file that is not there, by its protocol with a namespace or without: its client
    has that behind Java's."""
    if str(cause.getClass().getName()) != _OF_AZURE:
        return False
    with suppress(Py4JError):
        return str(cause.getErrorCode().getErrorCode()) in ("PathNotFound", "BlobNotFound")
    return False


def told(failed: BaseException) -> str:
    """Where it came from, for the driver's log: Python's frames, then those of the Java exceptions behind it."""
    return "".join(traceback.format_tb(failed.__traceback__)) + places(_causes(failed))


def condition_of(failed: BaseException) -> str:
    """The innermost of Spark's error conditions, else the class of the innermost cause; no message."""
    innermost = failed.getCondition() if isinstance(failed, PySparkException) else None
    causes = list(_causes(failed))
    for cause in causes:
        with suppress(Py4JError):  # not every Java exception has conditions
            innermost = cause.getCondition() or innermost
    if innermost:
        return str(innermost)
    return str(causes[-1].getClass().getName()) if causes else type(failed).__name__


def _causes(failed: BaseException) -> Iterator[Any]:
    """The Java exceptions behind what Python got, outermost first."""
    cause: Any = getattr(failed, "_origin", None) or getattr(failed, "java_exception", None)
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()
