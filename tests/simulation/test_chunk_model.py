"""The model of the simulations, where a source's definition leaves the versions of a table hard to tell apart: what it
folds is what the source has. No Spark."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.simulation import chunk_model
from tests.simulation.backfilling import Died
from tests.simulation.chunk_model import Model
from tests.support import judge
from tests.support.capture import Environment
from tidemark import failpoints
from tidemark.config import TableRule

ITEM = "shop.item"
NUMBERS = itertools.count(1)  # of pipelines: a slot's name is the server's


@pytest.fixture
def shop(new_environment: Callable[..., Environment]) -> Environment:
    shop = new_environment(f"chunk_model_{next(NUMBERS)}", (TableRule(ITEM),))
    shop.execute(
        "CREATE SCHEMA shop",
        f"CREATE TABLE {ITEM} (id int PRIMARY KEY, a text, b int)",
        f"INSERT INTO {ITEM} SELECT i, 'first', i FROM generate_series(1, 6) i",
    )
    return shop


@pytest.fixture
def model(shop: Environment, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The rows are in the lake, the last of their columns from a backfill of it alone."""
    model = chunk_model.stand_in(shop, monkeypatch)
    shop.run()
    shop.backfill()
    shop.execute(f"ALTER TABLE {ITEM} ADD at timestamptz DEFAULT clock_timestamp()")
    shop.execute(f"UPDATE {ITEM} SET b = 7 WHERE id = 2")
    shop.run()
    assert shop.table_rows()[ITEM].columns_in_doubt == [4]
    shop.backfill()
    return model


def test_a_chunk_of_some_columns_leaves_the_others(model: Model) -> None:
    assert model.wrongs() == []


def test_rows_that_a_chunk_of_some_columns_cannot_make_are_said(
    shop: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chunk_model.stand_in(shop, monkeypatch)
    shop.run()
    shop.execute(f"UPDATE {ITEM} SET a = 'brought' WHERE id = 1")
    shop.backfill(ITEM, columns=("b",))
    assert [row["id"] for row in model.outcome(ITEM)] == [1]
    said = judge.marked(shop.table_rows()[ITEM])
    assert said == "needs backfill: 5 rows of which a backfill read some columns are not in current"
    shop.backfill(ITEM)
    assert model.wrongs() == []


def test_a_hole_is_said_though_the_attempt_that_brought_it_died(
    shop: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a row that moves behind the reader nobody has the value that was not sent again."""
    shop.execute(f"ALTER TABLE {ITEM} ALTER a SET STORAGE EXTERNAL", f"UPDATE {ITEM} SET a = repeat('long', 999)")
    model = chunk_model.stand_in(shop, monkeypatch)
    shop.run()
    shop.begin_backfill(ITEM, chunk_rows=3)
    shop.plan()
    moves = [lambda: shop.execute(f"UPDATE {ITEM} SET id = 0 WHERE id = 6")]
    with monkeypatch.context() as patched:
        at_failpoint(patched, "read.after_files", moves)
        shop.read()
    with monkeypatch.context() as patched:
        at_failpoint(patched, "merge.after_current", [die])
        with pytest.raises(Died):
            shop.end_backfill()
    shop.let_leases_end()
    shop.end_backfill()
    said = judge.marked(shop.table_rows()[ITEM])
    assert said == "needs backfill: unchanged values whose base is known nowhere: 1 in a"
    shop.backfill()
    assert model.wrongs() == []


def test_rows_that_a_chunk_may_lack_keep_the_mark_if_its_attempt_died(
    shop: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk_model.stand_in(shop, monkeypatch)
    shop.run()
    shop.backfill()
    shop.execute(f"ALTER TABLE {ITEM} ADD at timestamptz DEFAULT clock_timestamp()")
    shop.execute(f"UPDATE {ITEM} SET b = 7 WHERE id = 2")
    shop.run()
    shop.begin_backfill()
    shop.plan()
    shop.read()
    with monkeypatch.context() as patched:
        at_failpoint(patched, "merge.after_current", [die])
        with pytest.raises(Died):
            shop.end_backfill()
    shop.let_leases_end()
    shop.end_backfill()
    assert shop.table_rows()[ITEM].columns_in_doubt == [4]
    shop.backfill()
    assert judge.marked(shop.table_rows()[ITEM]) is None


def die() -> None:
    raise Died


def at_failpoint(monkeypatch: pytest.MonkeyPatch, name: str, acts: list[Callable[[], object]]) -> None:
    """The first time that it comes there, and only then."""

    def kill(pid: int, signal: int) -> None:
        if acts:
            acts.pop()()

    monkeypatch.setenv(failpoints.VARIABLE, name)
    monkeypatch.setattr(failpoints, "os", SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=kill))
