"""R8: what a commit brought of holes is known to the driver that made it alone. Where that one tells nothing (it died,
it got no answer, or could not count), whoever looks at the table next counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tests.target.lake import TEXTS, Lake, StagedTable, both_ways, table_schema
from tests.target.test_columns_come_and_go import numbered_schema, with_names
from tests.target.test_values import insert, update
from tidemark.formats.merge_result import Holes
from tidemark.target import table_merge
from tidemark.target.delta import delta_tables
from tidemark.target.spark import spark_merge

HOLE = Holes({"body": 1}, (("1",),))


class Crash(Exception):
    """Stands for a driver that dies, or for an answer that is lost."""


def fail_once(*arguments: Any) -> Any:
    raise Crash


@pytest.fixture
def table(lake: Lake) -> StagedTable:
    """The first batch brings nothing that could lack a value, the second one does."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(2)])
    table.stage([update(1, "body")])
    return table


def at_current(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Act once, just behind the commit of current."""
    pending = [act]

    def reach(name: str) -> None:
        if name == "merge.after_current" and pending:
            pending.pop()()

    monkeypatch.setattr(spark_merge.failpoints, "reach", reach)


@both_ways
def test_those_of_a_driver_that_died_behind_its_commit_are_counted_by_the_next(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        at_current(patched, fail_once)
        (died,) = lake.apply(table.planned()).tables
    assert (died.error is not None, died.holes) == (True, None)
    assert (died.history_lsn, died.current_lsn) == (table.batches[-1].end_lsn, None)
    versions = [lake.version(step, table) for step in ("history", "current")]
    (result,) = lake.applied(table.planned())
    assert (result.current_lsn, result.holes) == (table.batches[-1].end_lsn, HOLE)
    assert [lake.version(step, table) for step in ("history", "current")] == versions


def test_those_of_a_commit_without_an_answer_are_counted_by_the_same_driver(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_current(monkeypatch, fail_once)
    monkeypatch.setattr(table_merge, "is_transient", lambda failed: isinstance(failed, Crash))
    (result,) = lake.applied(table.planned())
    assert result.holes == HOLE


def test_those_of_a_rival_are_counted(lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.applied(table.planned(0, 1))
    pending = [lambda: lake.applied(table.planned(1))]

    def reach(name: str) -> None:
        if name == "merge.before_history" and pending:
            pending.pop()()

    monkeypatch.setattr(spark_merge.failpoints, "reach", reach)
    (result,) = lake.applied(table.planned(1))
    assert result.holes == HOLE


def test_those_that_could_not_be_counted_keep_the_position_back(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(delta_tables, "count_holes", fail_once)
        (failed,) = lake.apply(table.planned()).tables
    assert (failed.error is not None, failed.current_lsn, failed.holes) == (True, None, None)
    (result,) = lake.applied(table.planned())
    assert (result.current_lsn, result.holes) == (table.batches[-1].end_lsn, HOLE)


def test_nothing_is_counted_where_no_batch_can_have_brought_any(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an error behind the commit the position is told then, and the next plan goes on behind it."""
    with monkeypatch.context() as patched:
        at_current(patched, fail_once)
        (died,) = lake.apply(table.planned(0, 1)).tables
    assert (died.error is not None, died.current_lsn) == (True, table.batches[0].end_lsn)
    monkeypatch.setattr(delta_tables, "count_holes", fail_once)
    (result,) = lake.applied(table.planned(0, 1))
    assert result.holes is None
    table.stage([update(2, "body", n=7)])  # of a row that is there
    (result,) = lake.applied(structs.replace(table.planned(2), after=table.batches[0].end_lsn))
    assert result.holes is None


def test_rows_that_lack_a_value_and_that_nobody_counted_follow_a_rename(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table(numbered_schema("t"))
    table.stage([update(1, "body")])
    with monkeypatch.context() as patched:
        at_current(patched, fail_once)
        lake.apply(table.planned())
    with_names(table, {"body": "text"})
    row = {"id": 2, "n": 0, "text": "t", "note": "c"}
    table.stage([replace(insert(2), row=row)])
    (result,) = lake.applied(table.planned())
    assert sorted((row["id"], row["_holes"]) for row in lake.stored("current", table)) == [(1, ["text"]), (2, None)]
    assert result.holes == Holes({"text": 1}, (("1",),))
