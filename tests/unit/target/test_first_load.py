"""A first load finds the bounds of a chunk's keys in footers, and waits for the driver's memory to fold changes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.target.chunks import chunk_fold
from tidemark.target.chunks.first_load import FirstLoad, _FirstLoadSearch
from tidemark.target.driver import driver_memory
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.merge_choice import MANY, Declined

COLUMNS = tuple(Column(name, target, 20, -1, target) for name, target in {"id": "bigint", "name": "string"}.items())
SCHEMA = TableSchema(TableName("public", "t"), 1, 16384, "default", ("id", "name"), COLUMNS)
ROWS = pa.table({"id": [7, -3, 5, 12, 1], "name": ["a", "b", "c", "d", "e"]})


class Folding(Exception):
    """The fold has begun."""


class Load:
    def touched(self) -> object:
        raise Folding


def bounds(file: Path) -> dict[str, tuple[int, int]]:
    table = StagedTable(cast(Any, None), "lake", (SCHEMA,), 1)
    search = _FirstLoadSearch(table, cast(Any, None), cast(Any, None))
    return search._bounds(pq.read_metadata(file))


def test_the_bounds_of_whole_numbers_are_those_of_all_row_groups(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "chunk.parquet", row_group_size=2)
    assert bounds(tmp_path / "chunk.parquet") == {"id": (-3, 12)}


def test_a_file_without_bounds_is_left_to_spark(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "chunk.parquet", write_statistics=["name"])
    with pytest.raises(Declined, match="bounds of its key"):
        bounds(tmp_path / "chunk.parquet")


def test_changes_and_chunks_are_folded_once_another_table_frees_the_memory() -> None:
    driver_memory.reserve()
    freeing = threading.Timer(0.05, driver_memory.free)
    freeing.start()
    with pytest.raises(Folding):
        chunk_fold.fold_with_chunks(cast(FirstLoad, Load()), MANY)
    freeing.join()
    driver_memory.reserve()  # it was given back
    driver_memory.free()
