"""Values that changes left as they were, looked up in rows of current: each row's own, as far as there is room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.formats.columns import row_schema, staged_schema
from tidemark.names import ROW_HOLES, TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.target.delta.data_files import DataFile
from tidemark.target.driver import target_rows
from tidemark.target.driver.change_walk import WalkedChanges, walk_changes
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import Declined

SCHEMA = TableSchema(
    TableName("public", "docs"),
    1,
    16384,
    "default",
    ("id",),
    (Column("id", "bigint", 20, -1, "bigint"), Column("doc", "text", 25, -1, "string")),
)
SHAPE = staged_schema(SCHEMA)

NewTarget = Callable[..., TargetRows]


@dataclass(slots=True)
class FilesOfAFolder(TargetRows):
    """The data files of a folder, without a Delta table and its session."""

    def _open(self, file: DataFile) -> Any:
        return open(file.path, "rb")


@pytest.fixture
def target(tmp_path: Path) -> NewTarget:
    def made(*files: pa.Table) -> TargetRows:
        listed = []
        for number, rows in enumerate(files):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(rows, path)
            listed.append(DataFile(str(path), path.stat().st_size, rows.num_rows, {}, {}, 0, {}, None))
        types = {name: SHAPE.field(name).type for name in SHAPE.names}
        nothing: Any = None
        return FilesOfAFolder(nothing, nothing, listed, SCHEMA.key, types, 2**30, 100)

    return made


def stored(**columns: list[Any]) -> pa.Table:
    """Rows of current; of the columns named, as a file from before a column was added has no others."""
    return pa.table({name: pa.array(values, row_schema(SCHEMA).field(name).type) for name, values in columns.items()})


def updates_of_others(*keys: int) -> WalkedChanges:
    """Changes of these rows that did not send `doc`."""
    told = {"_commit_lsn": range(1, len(keys) + 1), "_op": ["update"] * len(keys), "id": keys}
    told["_unchanged"] = [["doc"]] * len(keys)
    nothing = [None] * len(keys)
    staged = pa.table([pa.array(list(told.get(f.name, nothing)), f.type) for f in SHAPE], schema=SHAPE)
    return walk_changes(staged, SCHEMA.key, ["id", "doc"])


def values_of(target: TargetRows, walk: WalkedChanges) -> tuple[dict[str, pa.Array], list[frozenset[str]]]:
    found = target.find(walk.keys(walk.base_rows))
    return target.values(walk.unchanged(), found.first(range(len(walk.base))))


def filled(target: TargetRows, walk: WalkedChanges) -> list[str | None]:
    docs: list[str | None] = walk.rows(*values_of(target, walk))["doc"].to_pylist()
    return docs


def test_a_row_of_a_file_without_the_column_takes_no_other_rows_value(target: NewTarget) -> None:
    """A first load's file has no ROW_HOLES either, so that it has nothing of what is asked for."""
    of_first_load = stored(id=[1, 2, 3])
    of_driver = stored(id=[9], doc=["of row 9"], **{ROW_HOLES: [None]})
    assert filled(target(of_first_load, of_driver), updates_of_others(1, 9)) == [None, "of row 9"]


def test_a_value_that_many_changes_lack_counts_for_each(target: NewTarget) -> None:
    walk = updates_of_others(*[1] * 50, 2)
    rows = target(stored(id=[1, 2], doc=["x" * 1000, None], **{ROW_HOLES: [None, None]}))
    values, _ = values_of(rows, walk)
    assert walk.bytes_filled(values) == 50_000


def test_more_bytes_than_the_driver_has_room_for_are_not_read(
    target: NewTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many files, each of which is within it."""
    monkeypatch.setattr(target_rows, "MAX_BYTES", 20_000)
    files = [stored(id=[key], doc=["x" * 6000], **{ROW_HOLES: [None]}) for key in range(4)]
    assert filled(target(*files[:2]), updates_of_others(0, 1)) == ["x" * 6000] * 2
    with pytest.raises(Declined):
        filled(target(*files), updates_of_others(0, 1, 2, 3))
