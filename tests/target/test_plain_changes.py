"""Changes that are folded as columns come to what Spark makes of them, and what is new is compared with nothing."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from tests.support.merge_ways import none_are_few
from tests.target import test_few_changes
from tests.target.lake import TEXTS, Lake, table_schema
from tests.target.model import Change, Key, Row, apply, random_changes
from tests.target.test_few_changes import BothWays, driver
from tests.target.test_values import delete, insert, move, update
from tidemark.target import table_merge
from tidemark.target.delta import delta_tables
from tidemark.target.driver import driver_fold, driver_memory, history_files, target_rows
from tidemark.target.driver.driver_merge import DriverMerge

pytestmark = driver


@pytest.fixture(autouse=True)
def as_columns(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Per merge of a table that the driver folds, whether no change of it was walked."""
    none_are_few(monkeypatch)
    done: list[bool] = []
    original = table_merge.driver_merge

    def spied(*arguments: Any, **named: Any) -> DriverMerge:
        merged = original(*arguments, **named)
        done.append(merged.folded.newest.walk is None)
        return merged

    monkeypatch.setattr(table_merge, "driver_merge", spied)
    return done


def test_plain_changes_come_to_what_spark_says(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_columns: list[bool]
) -> None:
    """Random ones, with crumbs of files and without; a key of two columns; then one that moves a key in between."""
    both = BothWays(lake, table_schema("t", TEXTS, ("note", "id")), monkeypatch)
    rng, state = random.Random(7), dict[Key, Row]()
    for crumbs in (8, 0, 8):
        monkeypatch.setattr(history_files, "MAX_SMALL_FILES", crumbs)
        for _ in range(1 + (crumbs == 0)):
            changes = [c for c in random_changes(rng, state, 30, truncates=False) if not (c.unchanged or c.old_key)]
            rows = [Change(c.op, {**c.row, "note": "c" if c.row["id"] % 2 else "ä"}) for c in changes]
            for change in rows:
                apply(state, ("id",), change)
            both.stage(rows[:7], rows[7:])
        both.step()
    both.stage([Change("update", {**insert(50).row, "note": "z"}, old_key={"id": 1, "note": "c"})], [insert(51)])
    both.step()
    assert as_columns == [True, True, True, False]


def test_keys_of_every_type_are_compared_as_columns(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_columns: list[bool]
) -> None:
    test_few_changes.test_keys_of_every_type_that_the_driver_compares(lake, monkeypatch)
    assert as_columns == [True, True]


def test_what_is_new_above_all_that_is_there_is_compared_with_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_columns: list[bool]
) -> None:
    both = BothWays(lake, table_schema("t", TEXTS), monkeypatch)
    looked: list[str] = []
    in_file = target_rows.TargetRows._in_file

    def noted(target: Any, file: Any, sought: Any) -> Any:
        looked.append(file.path)
        return in_file(target, file, sought)

    monkeypatch.setattr(target_rows.TargetRows, "_in_file", noted)
    both.stage([insert(n) for n in range(5)])
    both.step()
    both.stage([insert(n) for n in range(5, 9)], [update(6, n=1), delete(7), insert(7, n=2)])
    result = both.step()
    assert (result.rows["inserted"], looked) == (4, [])
    both.stage([insert(20), update(8, n=3), delete(2), delete(3), update(4, n=9)])
    result = both.step()
    assert (result.rows["inserted"], result.rows["updated"], result.rows["deleted"]) == (1, 2, 2)
    assert len(looked) == 2
    assert as_columns == [True] * 3


@pytest.mark.thorough
def test_what_is_more_or_other_than_that_is_left_to_others(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_columns: list[bool]
) -> None:
    """Many rows that replace others go to Spark; values that were not sent, and moves, are folded one by one."""
    both = BothWays(lake, table_schema("t", TEXTS), monkeypatch)
    both.stage([insert(n) for n in range(6)])
    both.step()
    both.stage([update(1, "body"), move(2, 9)])
    both.step()
    monkeypatch.setattr(driver_fold, "MAX_REPLACED", 2)
    both.stage([update(n, n=4) for n in (1, 3, 4)])
    both.step()
    assert as_columns == [True, False]


def test_changes_are_read_once_beside_the_tables_first_commits(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_columns: list[bool]
) -> None:
    """Whatever becomes of them, the memory is free in the end: they are folded; read too early, since the plan's rows
    turn out to be too many to replace; not what was staged."""
    done: list[str] = []
    read_newest, create = table_merge.read_newest, delta_tables.create
    is_reading, is_created = threading.Event(), threading.Event()

    def read(*arguments: Any) -> Any:
        is_reading.set()
        assert is_created.wait(60)
        done.append(threading.current_thread().name.partition("_")[0])
        return read_newest(*arguments)

    def created(*arguments: Any) -> None:
        assert is_reading.wait(60) or as_columns
        create(*arguments)
        done.append("created")
        is_created.set()

    both = BothWays(lake, table_schema("t", TEXTS), monkeypatch)
    both.stage([insert(n) for n in range(3)])
    with monkeypatch.context() as patched:
        patched.setattr(table_merge, "read_newest", read)
        patched.setattr(delta_tables, "create", created)
        both.step()
        assert sorted(done[:3]) == ["created", "created", "read ahead"]
        both.stage([update(1, n=5)])
        patched.setattr(driver_fold, "MAX_REPLACED", 0)
        both.step()
    assert done.count("read ahead") == 2
    both.stage([update(2, n=5)])
    mine, _ = both.tables
    path = lake.root / mine.batches[-1].files[0].path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (result,) = lake.apply(mine.planned(2)).tables
    assert result.error is not None
    assert result.error.kind == "StagedFileDiffers"
    assert as_columns == [True]
    assert driver_memory._RESERVATION.acquire(blocking=False)
    driver_memory._RESERVATION.release()


def test_a_table_waits_for_the_drivers_memory(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_columns: list[bool]
) -> None:
    """After a backlog all tables have many changes, and Spark takes ten times as long for each."""
    both = BothWays(lake, table_schema("t", TEXTS), monkeypatch)
    reserve = driver_memory.reserve

    def freed_meanwhile(wait_s: float = 0.0) -> None:
        if wait_s:
            driver_memory.free()
        reserve(wait_s)

    monkeypatch.setattr(driver_memory, "reserve", freed_meanwhile)
    both.stage([insert(n) for n in range(3)])
    reserve()
    both.step()
    assert as_columns == [True]


def test_only_one_table_at_a_time_has_the_drivers_memory(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, as_columns: list[bool]
) -> None:
    """One that waits for too long goes through Spark; it is given back after a table, also after one that turned out to
    be too much."""
    both = BothWays(lake, table_schema("t", TEXTS), monkeypatch)
    monkeypatch.setattr(driver_memory, "WAIT_S", 0.0)
    assert driver_memory._RESERVATION.acquire(blocking=False)
    try:
        both.stage([insert(n) for n in range(3)])
        both.step()
    finally:
        driver_memory._RESERVATION.release()
    assert as_columns == []
    both.stage([update(1, n=5), delete(2)])
    both.step()
    monkeypatch.setattr(driver_fold, "MAX_REPLACED", 0)
    both.stage([update(1, n=6)])
    both.step()
    monkeypatch.undo()
    assert as_columns == [True]
    assert driver_memory._RESERVATION.acquire(blocking=False)
    driver_memory._RESERVATION.release()
