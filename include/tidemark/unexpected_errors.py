"""Converts exceptions from outside Tidemark's tree to an error that names their class and place, but not their text.

An exception of Python, pyarrow or a file system may quote a value (`invalid literal for int() with base 10: '…'`), and
a task's log shows the text of the exception and of its causes. So an error of the tree is raised unchanged; any other
becomes an `UnexpectedError` with its class, its place and its traceback. Causes outside the tree are removed.
Operators, reader processes and the command line are guarded by `hides_foreign_texts`; a Spark application has
`target/merge_failures`.
"""

from __future__ import annotations

import errno
import functools
import re
import traceback
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from tidemark.errors import DiskFailed, DiskFull, TidemarkError, UnexpectedError

# In a checkout, and where the wheel was installed.
_OWN: Final = re.compile(r"/(include|plugins|spark_apps|site-packages/tidemark|site-packages/tidemark_airflow)/")

# A full disk, and a quota that is used up.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)

# A disk that cannot be written or read, is read-only since it failed, or is gone with its server.
DISK_FAILED: Final = (errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def hides_foreign_texts(*passing: type[Exception]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator for what is called from outside. Exceptions of `passing` go on as they are, with their own words."""

    def guard(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except Exception as failed:
                error = without_texts(failed, passing)
            # Outside of the block: nothing leads from this error to one that quotes.
            raise error

        return guarded

    return guard


def without_texts(failed: BaseException, passing: tuple[type[BaseException], ...] = ()) -> BaseException:
    """The exception to raise instead: itself where its words are the project's own, less what led to it and is not."""
    # Airflow shows the locals of every frame where DEV is set, and some hold a connection string.
    traceback.clear_frames(failed.__traceback__)
    if (of_a_disk := _of_a_disk(failed)) is not None:
        return of_a_disk.with_traceback(failed.__traceback__)
    if _is_psycopgs(failed) or not isinstance(failed, (TidemarkError, *passing)):
        return UnexpectedError(kind=_kind(failed), place=_place(failed)).with_traceback(failed.__traceback__)
    one: BaseException = failed
    while (cause := one.__cause__ or one.__context__) is not None:
        if not isinstance(cause, (TidemarkError, *passing)):
            one.__cause__ = one.__context__ = None
            break
        traceback.clear_frames(cause.__traceback__)
        one = cause
    return failed


def disk_error(failed: OSError, place: str) -> DiskFull | DiskFailed | None:
    """The error of a disk that is full or that failed; None for any other."""
    if failed.errno in NO_SPACE:
        return DiskFull(place=place)
    if failed.errno in DISK_FAILED:
        return DiskFailed(place=place, detail=failed.strerror)
    return None


def _of_a_disk(failed: BaseException) -> TidemarkError | None:
    """The error of a disk, at a server or where the task runs; None for any other."""
    if _is_psycopgs(failed):
        from psycopg import Error

        from tidemark.postgres import postgres_session

        return postgres_session.full(failed) if isinstance(failed, Error) else None
    if isinstance(failed, OSError):
        where = f", at {failed.filename}" if failed.filename else ""
        return disk_error(failed, f"the machine that runs the task{where}")
    return None


def _is_psycopgs(failed: BaseException) -> bool:
    return type(failed).__module__.partition(".")[0] == "psycopg"


def _kind(failed: BaseException) -> str:
    """The class, with those of its words that hold no value: a system call's, and what is left of PostgreSQL's."""
    kind = type(failed).__name__
    if _is_psycopgs(failed):
        from psycopg import Error

        from tidemark.postgres.redaction import without_values

        return f"{kind} ({without_values(failed)})" if isinstance(failed, Error) else kind
    if isinstance(failed, OSError) and failed.strerror:
        return f"{kind} ({failed.strerror}{f': {failed.filename}' if failed.filename else ''})"
    return kind


def _place(failed: BaseException) -> str:
    """The innermost of the project's own lines."""
    frames = [frame for frame in traceback.extract_tb(failed.__traceback__) if frame.filename != __file__]
    if not frames:
        return "a place that left no trace"
    last = ([frame for frame in frames if _OWN.search(frame.filename)] or frames)[-1]
    return f"{'/'.join(last.filename.split('/')[-2:])}, line {last.lineno}, in {last.name}"
