"""A warm driver sees each new version of a table, whoever made it, and lists the log only if there may be one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.test_checkpoints import merge
from tests.target.test_few_changes import driver
from tidemark.target.delta import internals

pytestmark = driver


@pytest.fixture
def table(lake: Lake) -> StagedTable:
    """With three versions of history: the empty one and two merges."""
    table = lake.table(table_schema("t", TEXTS))
    merge(lake, table, 0, 1)
    return table


def newest(lake: Lake, table: StagedTable) -> int:
    return internals.newest(lake.spark, lake.path("history", table)).version


def log_of(lake: Lake, table: StagedTable) -> Path:
    return lake.folder("history", table) / "_delta_log"


def test_a_log_without_a_newer_commit_is_not_listed(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    list_it = internals.newest_listed
    monkeypatch.setattr(internals, "newest_listed", lambda spark, path: listed.append(path) or list_it(spark, path))
    version = newest(lake, table)
    assert newest(lake, table) == version
    merge(lake, table, 2, 3)
    assert newest(lake, table) == version + 2
    assert listed == []


def test_a_commit_of_somebody_else_is_seen(lake: Lake, table: StagedTable) -> None:
    version = newest(lake, table)
    for number in (1, 2):
        commit = {"commitInfo": {"timestamp": 0, "operation": "somebody else's", "operationParameters": {}}}
        (log_of(lake, table) / f"{version + number:020}.json").write_text(json.dumps(commit))
    assert newest(lake, table) == version + 2


def test_a_table_that_was_created_anew_with_as_many_versions_is_seen(lake: Lake, table: StagedTable) -> None:
    other = lake.table(table_schema("other", TEXTS))
    merge(lake, other, 0, 1)
    version = newest(lake, table)
    assert newest(lake, other) == version
    was = internals.newest(lake.spark, lake.path("history", table)).metadata["id"]
    shutil.rmtree(lake.folder("history", table))
    shutil.copytree(lake.folder("history", other), lake.folder("history", table))
    (log_of(lake, table) / f"{version:020}.crc").unlink()
    assert internals.newest(lake.spark, lake.path("history", table)).metadata["id"] != was
