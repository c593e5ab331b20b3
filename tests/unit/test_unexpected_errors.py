"""What leaves the library has the project's own words, or none; where it came from stays."""

from __future__ import annotations

import io
import re
import traceback
from collections.abc import Callable

import psycopg
import pyarrow as pa
import pytest
from structlog.dev import RichTracebackFormatter

from tidemark.errors import DiskFailed, DiskFull, LakeUnusable, SlotSynced, UnexpectedError
from tidemark.unexpected_errors import hides_foreign_texts

MARKER = "hunter2"


class Skipped(Exception):
    """Stands for an exception of the caller's, such as Airflow's."""


def raised(function: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        hides_foreign_texts(Skipped)(function)()
    return caught.value


def arrow() -> object:
    return pa.scalar(MARKER).cast(pa.int64())


def python() -> object:
    return int(MARKER)


def lookup() -> object:
    return {}[MARKER]


def from_a_value() -> object:
    try:
        return int(MARKER)
    except ValueError as failed:
        raise SlotSynced(slot="orders") from failed


def within_a_value() -> object:
    try:
        return int(MARKER)
    except ValueError:
        raise SlotSynced(slot="orders")  # noqa: B904


def from_one_that_is_from_a_value() -> object:
    try:
        return from_a_value()
    except SlotSynced as failed:
        raise LakeUnusable(lake="/lake", detail="x") from failed


def left_out_of_a_value() -> object:
    try:
        return int(MARKER)
    except ValueError:
        raise Skipped("nothing waits")  # noqa: B904


def from_psycopg() -> object:
    raise psycopg.errors.UniqueViolation(f"Key (note)=({MARKER}) already exists")


@pytest.mark.parametrize("function", [arrow, python, lookup, from_psycopg])
def test_a_foreign_exception_says_its_class_and_its_place(function: Callable[[], object]) -> None:
    error = raised(function)
    text = "".join(traceback.format_exception(error))
    assert isinstance(error, UnexpectedError)
    assert MARKER not in text
    assert f"in {function.__name__}" in text, "the traceback is whole"
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "raised in " in str(error)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (from_a_value, SlotSynced),
        (within_a_value, SlotSynced),
        (from_one_that_is_from_a_value, LakeUnusable),
        (left_out_of_a_value, Skipped),
    ],
)
def test_an_error_of_the_tree_goes_on_without_the_foreign_ones_behind_it(
    function: Callable[[], object], kind: type[Exception]
) -> None:
    error = raised(function)
    assert type(error) is kind
    assert MARKER not in "".join(traceback.format_exception(error))
    assert (error.__cause__ is not None) == (function is from_one_that_is_from_a_value)


@pytest.mark.parametrize("function", [python, from_one_that_is_from_a_value])
def test_locals_are_gone_where_tracebacks_show_them(function: Callable[[], object]) -> None:
    """As Airflow prints tracebacks where DEV is set."""

    def with_locals_left() -> object:
        conninfo = f"host=db password={MARKER}"
        return [function(), conninfo]

    def shown(error: BaseException) -> str:
        output = io.StringIO()
        RichTracebackFormatter(width=200)(output, (type(error), error, error.__traceback__))
        return re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue())

    with pytest.raises(Exception) as unguarded:  # noqa: PT011
        with_locals_left()
    assert f"conninfo = 'host=db password={MARKER}'" in shown(unguarded.value), "it shows none, so this shows nothing"
    assert f"password={MARKER}" not in shown(raised(with_locals_left))


def test_a_system_calls_words_stay() -> None:
    def refused() -> object:
        raise OSError(13, "Permission denied", "/lake/shop/x.parquet")

    assert "PermissionError (Permission denied: /lake/shop/x.parquet)" in str(raised(refused))


def test_a_disk_that_failed_is_an_error_with_a_remedy() -> None:
    def failed() -> object:
        raise OSError(5, "Input/output error", "/tmp/x.parquet")

    assert isinstance(raised(failed), DiskFailed)
    assert "The disk of the machine that runs the task, at /tmp/x.parquet failed: Input/output" in str(raised(failed))


def test_a_full_disk_is_an_error_with_a_remedy() -> None:
    def full() -> object:
        raise OSError(28, "No space left on device", "/tmp/x.parquet")

    assert isinstance(raised(full), DiskFull)
    assert "the disk of the machine that runs the task, at /tmp/x.parquet" in str(raised(full))


def test_what_ends_a_process_is_no_error() -> None:
    def ended() -> object:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        hides_foreign_texts()(ended)()
