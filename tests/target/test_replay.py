"""`current` made anew from history, and tables as of a moment beside the live ones."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.model import Change
from tests.target.test_any_moment import Kept, in_order
from tidemark.formats.replay_plan import ReplayedTable, ReplayPlan, Step
from tidemark.target import table_replay
from tidemark.target.delta import delta_tables

NAMES = [*TEXTS, "_commit_lsn", "_committed_at", "_holes"]


def asked(lake: Lake, step: Step, *tables: StagedTable, moment: str = "") -> list[ReplayedTable]:
    keys = {table.id: table.schema.key for table in tables}
    plan = ReplayPlan("p", "shop", lake.uri, step, keys, 1, moment, 2)
    return list(table_replay.replay(lake.spark, ReplayPlan.from_json(plan.to_json())).tables)


def stored(lake: Lake, table: StagedTable) -> list[dict[str, Any]]:
    return in_order([{name: row[name] for name in NAMES} for row in lake.stored("current", table)])


def kept(lake: Lake, seed: int) -> Kept:
    one = Kept(lake.table(table_schema("orders", TEXTS, schema="shop")), random.Random(seed))
    one.stage(12)
    lake.applied(one.table.planned())
    return one


class Died(Exception):
    """Stands for a driver that dies at a failpoint."""


@pytest.mark.thorough
def test_what_was_done_to_current_by_hand_is_undone_beside_a_merge_that_outlived_its_lease(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kept(lake, 3)
    lake.spark.sql(f"UPDATE delta.`{lake.path('current', one.table)}` SET n = -1")
    assert {row["n"] for row in lake.current(one.table)} == {-1}
    one.stage(3)
    commits = []

    def merge_first(name: str) -> None:
        if name == "replay.before_commit" and not commits:
            commits.append(name)
            lake.applied(one.table.planned(1))

    monkeypatch.setattr(table_replay.failpoints, "reach", merge_first)
    (done,) = asked(lake, "rebuild", one.table)
    assert done.error is None
    assert [{name: row[name] for name in TEXTS} for row in stored(lake, one.table)] == in_order(one.after[-1][1])
    assert done.rows == len(one.after[-1][1])
    end = one.table.batches[-1].end_lsn
    assert done.position == f"{end} of generation 1"
    one.stage(3)
    (result,) = lake.applied(one.table.planned(2))
    assert result.current_lsn == one.table.batches[-1].end_lsn
    assert lake.current(one.table) == [one.state[key] for key in sorted(one.state)]


@pytest.mark.thorough
@pytest.mark.parametrize("failpoint", ["replay.before_commit", "replay.after_commit"])
def test_a_driver_that_dies_leaves_current_as_it_was_or_made_anew(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    one = kept(lake, 4)
    expected = stored(lake, one.table)
    lake.spark.sql(f"DELETE FROM delta.`{lake.path('current', one.table)}` WHERE id < 5")
    spoiled = stored(lake, one.table)

    def die(name: str) -> None:
        if name == failpoint:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(table_replay.failpoints, "reach", die)
        assert asked(lake, "rebuild", one.table)[0].error is not None
    assert stored(lake, one.table) == (spoiled if failpoint == "replay.before_commit" else expected)
    assert asked(lake, "rebuild", one.table)[0].error is None
    assert stored(lake, one.table) == expected


@pytest.mark.thorough
def test_a_current_that_is_gone_or_a_step_behind_is_brought_to_where_history_is(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kept(lake, 6)
    one.stage(3)

    def die(name: str) -> None:
        if name == "merge.before_current":
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(table_replay.failpoints, "reach", die)
        assert lake.apply(one.table.planned(1)).tables[0].error is not None
    assert asked(lake, "rebuild", one.table)[0].error is None
    expected = stored(lake, one.table)
    assert [{name: row[name] for name in TEXTS} for row in expected] == in_order(one.after[-1][1])
    version = lake.version("current", one.table)
    assert lake.applied(one.table.planned(1))[0].rows == {}
    assert lake.version("current", one.table) == version
    shutil.rmtree(lake.folder("current", one.table))
    assert asked(lake, "rebuild", one.table)[0].error is None
    assert stored(lake, one.table) == expected
    table = delta_tables.pin(lake.spark, lake.path("current", one.table))
    assert [field.name for field in table.schema().fields if not field.nullable] == ["id"]


@pytest.mark.thorough
def test_a_history_that_lacks_what_current_has_rebuilds_nothing(lake: Lake) -> None:
    one = kept(lake, 7)
    older = Path(shutil.copytree(lake.folder("history", one.table), lake.root / "older"))
    one.stage(2)
    lake.applied(one.table.planned(1))
    shutil.rmtree(lake.folder("history", one.table))
    shutil.move(older, lake.folder("history", one.table))
    version = lake.version("current", one.table)
    (done,) = asked(lake, "rebuild", one.table)
    assert done.error is not None
    assert done.error.kind == "HistoryBehindCurrent"
    assert lake.version("current", one.table) == version


def test_tables_as_of_a_moment_lie_beside_the_live_ones_at_one_position(lake: Lake) -> None:
    orders, lines = (
        lake.table(table_schema(name, {"id": "int", "a name": "int"}, schema="shop")) for name in ("orders", "lines")
    )
    for table in (orders, lines):
        table.stage([Change("insert", {"id": 1, "a name": 1})])
        table.stage([Change("delete", {"id": 1, "a name": None}), Change("insert", {"id": 2, "a name": 2})])
    lake.applied(orders.planned(), lines.planned())
    moment = orders.batches[0].end_lsn
    versions = [lake.version("current", table) for table in (orders, lines)]
    for _ in range(2):
        done = asked(lake, "as_of", orders, lines, moment=str(moment))
        assert [(one.error, one.rows, one.position) for one in done] == [(None, 1, f"{moment} of generation 1")] * 2
        assert done[0].path == f"{lake.uri}/shop/as_of/g1-{moment.hex16}/shop/orders"
        for one in done:
            (row,) = lake.spark.read.format("delta").load(one.path).collect()
            assert (row["id"], row["a name"]) == (1, 1)
    assert [lake.version("current", table) for table in (orders, lines)] == versions
    beyond = asked(lake, "as_of", orders, moment="FFFFFFFF/0")
    assert [one.error and one.error.kind for one in beyond] == ["MomentNotApplied"]
