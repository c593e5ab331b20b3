"""Decides what Airflow does with a failed task: an error whose `Move` is RETRY is retried.

A retry is worth its wait only if the same task, run again, is expected to succeed. An operator may decide that itself
(`is_retried`). Every other error of the tree fails the task at once: it is raised as a
subclass of its own class and of AirflowFailException, which Airflow never retries. The subclass has the name of the
error, so log and callbacks show that name. Errors outside of the tree (spark-submit's exit code) keep Airflow's
ordinary retries.

What leaves an operator, Airflow logs with its text and that of everything it was raised from; `guarded` sees to it that
no such text quotes a value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tidemark.errors import Move, TidemarkError
from tidemark.unexpected_errors import hides_foreign_texts
from tidemark_airflow.version_compat import AirflowException, AirflowFailException

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Around whatever Airflow calls of ours. Its own exceptions (skipped, failed for good) keep their words.
_without_values = hides_foreign_texts(AirflowException)


def guarded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A decorator for what Airflow calls: errors without values, and without retries where no retry helps."""
    call = _without_values(function)

    @functools.wraps(function)
    def ending(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return call(*args, **kwargs)
        except TidemarkError as error:
            is_retried = getattr(args[0] if args else None, "is_retried", _is_retry)
            final = error if is_retried(error) else as_final(error)
        # Outside of the block: the log shows one error, not two with one text.
        raise final

    return ending


def _is_retry(error: TidemarkError) -> bool:
    return error.move is Move.RETRY


def as_final(error: TidemarkError) -> TidemarkError:
    """The same error, which Airflow does not retry."""
    if isinstance(error, AirflowFailException):  # an operator may call a guarded function
        return error
    leaf = type(error)
    made: TidemarkError = _final(leaf)(**error.facts)  # type: ignore[arg-type]  # a class is hashable, mypy doubts it
    made.__cause__, made.__suppress_context__ = error.__cause__, error.__suppress_context__
    return made.with_traceback(error.__traceback__)


@functools.cache
def _final(leaf: type[TidemarkError]) -> type[TidemarkError]:
    return type(leaf.__name__, (leaf, AirflowFailException), {"__module__": leaf.__module__, "__doc__": leaf.__doc__})
