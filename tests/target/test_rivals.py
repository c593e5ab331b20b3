"""Two drivers on one table: one outlived its task, and the next run's merges while it still works (R5).

A rival runs in the very moment between reading the positions and committing: the failpoint before a commit calls it.
However far its plan reaches, every change is in history once and current is as of the further end.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.remedies import Told
from tests.target.lake import TEXTS, Lake, StagedTable, both_ways, every_way, table_schema, with_columns
from tests.target.model import Change, Row, apply
from tests.target.test_values import BAG, ONE, delete, insert, move, row, update
from tidemark.target import table_merge
from tidemark.target.delta import delta_tables
from tidemark.target.delta.session import java_class
from tidemark.target.spark import spark_merge as target_changes

# Batches 0 to 3. Each touches what the one before it left, so that one applied twice or out of order shows.
KEYED: list[list[Change]] = [
    [insert(1, body="long"), insert(2)],
    [update(1, "body", n=1), insert(3, body="three")],
    [move(1, 4, "body", n=2), delete(2), update(3, "body", n=2)],
    [update(4, "body", n=3), insert(1, n=3), move(3, 5, "body", n=3)],
]
MULTISET: list[list[Change]] = [
    [row(ONE), row(ONE)],
    [row(ONE), row({**ONE, "a": "two"})],
    [row(ONE, op="delete"), row({**ONE, "a": "three"}, before={**ONE, "a": "two"}, op="update")],
    [row(ONE, op="delete"), row(ONE), row(ONE)],
]


def _keyed(lake: Lake, name: str = "t") -> StagedTable:
    return _staged(lake.table(table_schema(name, TEXTS)), KEYED)


def _staged(table: StagedTable, batches: list[list[Change]]) -> StagedTable:
    for batch in batches:
        table.stage(batch)
    return table


def _expected(table: StagedTable, batches: list[list[Change]], last: int) -> tuple[list[str], list[str]]:
    """What the model says of current and history after the batches up to `last`."""
    state: dict[Any, Row] = {}
    names = [c.name for c in table.schema.columns]
    if table.schema.key:
        history = [
            change for batch in batches[:last] for change_read in batch for change in apply(state, ("id",), change_read)
        ]
        current = [state[key] for key in sorted(state)]
    else:
        history = [change for batch in batches[:last] for change_read in batch for change in _copies(change_read)]
        current = []
        for op, values in history:
            current.append(values) if op == "insert" else current.remove(values)
        current.sort(key=lambda values: str([values[n] for n in names]))
    return [repr(r) for r in current], [repr((op, {n: r.get(n) for n in names})) for op, r in history]


def _copies(change: Change) -> list[tuple[str, Row]]:
    old: list[tuple[str, Row]] = [] if change.old is None else [("delete", change.old)]
    return old if change.op == "delete" else [*old, ("insert", change.row)]


def _found(lake: Lake, table: StagedTable) -> tuple[Any, Any]:
    return [repr(r) for r in lake.current(table)], [repr(r) for r in lake.history(table)]


def _call_once(monkeypatch: pytest.MonkeyPatch, failpoint: str, rival: Callable[[], object]) -> None:
    pending = [rival]

    def reach(name: str) -> None:
        if name == failpoint and pending:
            pending.pop()()

    monkeypatch.setattr(target_changes.failpoints, "reach", reach)


# Up to which batch my plan and the rival's reach.
REACHES = {"same": (2, 2), "further": (2, 4), "less_far": (4, 2)}
ENCOUNTERS = list(itertools.product(("keyed", "multiset"), REACHES, ("merge.before_history", "merge.before_current")))
# One of each kind, reach and failpoint; `make faults` has all.
SOME = {
    ("keyed", "further", "merge.before_current"),
    ("multiset", "less_far", "merge.before_history"),
}


@pytest.mark.some(1)
@every_way
@pytest.mark.parametrize(
    ("kind", "reach", "failpoint"),
    [pytest.param(*one, marks=() if one in SOME else pytest.mark.thorough) for one in ENCOUNTERS],
)
def test_a_rival_commits_between_my_reading_and_my_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str, reach: str, failpoint: str
) -> None:
    mine, rivals = REACHES[reach]
    batches = KEYED if kind == "keyed" else MULTISET
    schema = table_schema("t", TEXTS) if kind == "keyed" else table_schema("t", BAG, key=(), identity="full")
    table = _staged(lake.table(schema), batches)
    lake.applied(table.planned(0, 1))
    _call_once(monkeypatch, failpoint, lambda: lake.applied(table.planned(1, rivals)))
    (result,) = lake.applied(table.planned(1, mine))
    assert result.history_lsn == result.current_lsn == table.batches[max(mine, rivals) - 1].end_lsn
    assert _found(lake, table) == _expected(table, batches, max(mine, rivals))


@every_way
def test_a_rival_that_commits_between_my_two_readings_is_no_error(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _keyed(lake)
    lake.applied(table.planned(0, 1))
    pending = [lambda: lake.applied(table.planned(1, 4))]
    pin = delta_tables.pin

    def pinned(*arguments: Any) -> Any:
        read = pin(*arguments)
        if pending:
            pending.pop()()
        return read

    monkeypatch.setattr(delta_tables, "pin", pinned)
    (result,) = lake.applied(table.planned(1, 2))
    assert result.history_lsn == result.current_lsn == table.batches[3].end_lsn
    assert _found(lake, table) == _expected(table, KEYED, 4)


@every_way
def test_two_first_merges_at_once_create_the_tables_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _keyed(lake)
    together = threading.Barrier(2, timeout=60)
    create = delta_tables.create

    def created_by_both(*arguments: Any) -> None:
        if not together.broken:
            together.wait()
        create(*arguments)

    monkeypatch.setattr(delta_tables, "create", created_by_both)
    errors: list[Any] = []

    def merge(last: int) -> None:
        errors.append(lake.apply(table.planned(0, last)).tables[0].error)
        together.abort()

    drivers = [threading.Thread(target=merge, args=(last,)) for last in (2, 4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert errors == [None, None]
    assert _found(lake, table) == _expected(table, KEYED, 4)


@every_way
def test_a_driver_killed_while_it_creates_a_table_leaves_a_log_that_the_next_one_takes(lake: Lake) -> None:
    table = _keyed(lake)
    for step in ("history", "current"):
        folder = java_class(lake.spark, "org.apache.hadoop.fs.Path")(
            lake.path(step, table), "_delta_log/_staged_commits"
        )
        folder.getFileSystem(lake.spark._jsc.hadoopConfiguration()).mkdirs(folder)
    lake.applied(table.planned())
    assert _found(lake, table) == _expected(table, KEYED, 4)


@pytest.mark.thorough
@every_way
def test_a_rival_that_adds_a_column_is_no_error(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _keyed(lake)
    lake.applied(table.planned(0, 1))
    older = table.planned(1, 4)
    table.schema = with_columns(table.schema, {"extra": "string"})
    table.stage([update(5, "body", extra="new")])
    _call_once(monkeypatch, "merge.before_history", lambda: lake.applied(table.planned(1, 5)))
    (result,) = lake.applied(older)
    assert result.history_lsn == table.batches[4].end_lsn
    assert [r["extra"] for r in lake.current(table)] == [None, None, "new"]


@every_way
@pytest.mark.thorough
def test_an_older_plan_goes_on_after_a_newer_one_added_a_column_and_died(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _keyed(lake)
    lake.applied(table.planned(0, 1))
    older = table.planned(1, 4)
    table.schema = with_columns(table.schema, {"extra": "string"})
    table.stage([update(5, "body", extra="new")])

    def die(name: str) -> None:
        if name == "merge.before_history":
            raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(target_changes.failpoints, "reach", die)
        assert lake.apply(table.planned(1, 5)).tables[0].error is not None
    lake.applied(older)
    assert [r["extra"] for r in lake.current(table)] == [None, None, None]
    lake.applied(table.planned(4, 5))
    assert [r["extra"] for r in lake.current(table)] == [None, None, "new"]


@pytest.mark.thorough
@both_ways
@pytest.mark.walks("MergeContested")
def test_a_rival_that_never_stops_ends_in_an_error_to_retry(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    table = _keyed(lake)
    lake.applied(table.planned(0, 1))
    monkeypatch.setattr(table_merge, "MAX_ROUNDS", 3)
    append = delta_tables.append

    def overtaken(spark: Any, pinned: Any, *rest: Any) -> int:
        """Another writer of the same application id is always faster, and never gets anywhere."""
        behind = delta_tables.pin(spark, pinned.path)
        append(spark, behind, delta_tables.rows(behind).limit(0), rest[1], table.batches[0].end_lsn)
        return append(spark, pinned, *rest)

    monkeypatch.setattr(delta_tables, "append", overtaken)
    (result,) = lake.apply(table.planned(1)).tables
    assert result.error is not None
    assert result.error.move == "RETRY"
    told.parked(result.error, "MergeContested", "end it; the retry goes on from the tables' positions")
    assert result.history_lsn == table.batches[0].end_lsn
    monkeypatch.undo()
    lake.applied(table.planned(1))
    assert _found(lake, table) == _expected(table, KEYED, 4)
