"""What the driver folds is what the changes come to one by one: history's rows, current's rows, counts and holes.

Current is a folder of Parquet files here; a commit masks rows of them and adds one file, as `driver_merge` does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.target.model import Change, Key, Row, apply, random_changes
from tidemark.formats.columns import staged_schema
from tidemark.names import ROW_HOLES, TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.target.delta import data_files
from tidemark.target.delta.data_files import DataFile
from tidemark.target.driver import driver_fold, target_rows
from tidemark.target.driver.change_reader import change_shape, in_order
from tidemark.target.driver.driver_fold import FoldedChanges, fold_changes, newest_changes
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import Declined

TEXTS = {"id": "int", "n": "int", "body": "string", "note": "string"}
SCHEMA = TableSchema(
    TableName("public", "t"), 1, 16384, "default", ("id",), tuple(Column(n, t, 25, -1, t) for n, t in TEXTS.items())
)
SHAPE = change_shape(SCHEMA, moved=True)
NOTHING: Any = None


@dataclass(slots=True)
class RowsOfAFolder(TargetRows):
    """Current without a Delta table and its session."""

    def _open(self, file: DataFile) -> Any:
        return open(file.path, "rb")


@dataclass
class Current:
    """The files, and which of their rows are masked."""

    folder: Path
    group_rows: int = 2
    files: list[Path] = field(default_factory=list)
    masked: dict[str, set[int]] = field(default_factory=dict)

    @property
    def target(self) -> TargetRows:
        listed = []
        for path in self.files:
            ids = pq.read_table(path)["id"].to_pylist()
            between = {"id": min(ids)}, {"id": max(ids)}
            listed.append(DataFile(str(path), path.stat().st_size, len(ids), *between, 0, {}, None))
        types = {f.name: f.type for f in staged_schema(SCHEMA)}
        columns = [*TEXTS, "_commit_lsn", "_committed_at", ROW_HOLES]
        return RowsOfAFolder(NOTHING, _Columns(columns), listed, SCHEMA.key, types, 2**30, 100)  # type: ignore[arg-type]

    def commit(self, folded: FoldedChanges) -> None:
        if folded.truncated:
            self.files = []
        for file, rows in folded.replaced:
            assert self.masked.setdefault(file.path, set()).isdisjoint(rows)
            self.masked[file.path].update(rows)
        if folded.staying.num_rows:
            path = self.folder / f"{len(list(self.folder.iterdir()))}.parquet"
            pq.write_table(folded.staying, path, row_group_size=self.group_rows)
            self.files.append(path)

    def rows(self) -> dict[Key, Row]:
        rows = {}
        for path in self.files:
            for number, row in enumerate(pq.read_table(path).to_pylist()):
                if number not in self.masked.get(str(path), ()):
                    assert (row["id"],) not in rows
                    rows[(row["id"],)] = {name: row[name] for name in TEXTS}
        return rows


@dataclass(frozen=True)
class _Columns:
    """As much of a pinned table as a fold asks for."""

    names: Sequence[str]

    def schema(self) -> Any:
        return SimpleNamespace(fields=[SimpleNamespace(name=name) for name in self.names])


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Current:
    made = Current(tmp_path)
    monkeypatch.setattr(
        data_files, "masked_rows", lambda _s, _t, file: np.array(sorted(made.masked.get(file.path, ())), np.int64)
    )
    return made


def staged(changes: Sequence[Change], first_lsn: int) -> pa.Table:
    """Two changes a transaction."""
    rows = []
    for number, change in enumerate(changes):
        row = dict.fromkeys(SHAPE.names) | change.row
        row |= {"_commit_lsn": first_lsn + number // 2, "_ordinal": number % 2, "_op": change.op}
        rows.append(row | {"_unchanged": list(change.unchanged) or None, "_old_key": change.old_key})
    return pa.Table.from_pylist(rows, SHAPE)


def merged(current: Current, changes: Sequence[Change], first_lsn: int = 1) -> FoldedChanges:
    folded = fold_changes(newest_changes(staged(changes, first_lsn), SCHEMA), SCHEMA, current.target)
    current.commit(folded)
    return folded


def said(folded: FoldedChanges) -> list[tuple[str, Row]]:
    rows = folded.history(SCHEMA)
    assert rows.column_names == change_shape(SCHEMA).names
    assert in_order(rows) is rows
    return [(row["_op"], {name: row[name] for name in TEXTS}) for row in rows.to_pylist()]


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_come_to_what_the_model_says(
    current: Current, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some keys are walked and others are not; values are sent in some rounds only. Every third time the files are read
    as large ones are: in pieces of their row groups, and beside each other."""
    if seed % 3 == 0:
        current.group_rows = 100
        monkeypatch.setattr(target_rows, "PIECE_BYTES", 1)
        monkeypatch.setattr(target_rows, "BY_ONE_BYTES", 0)
    rng, state = random.Random(seed), dict[Key, Row]()
    for step in range(6):
        changes = list(random_changes(rng, state, rng.randint(1, 25), truncates=bool(seed % 2)))
        if step % 3 == 1:
            changes = [c for c in changes if not (c.unchanged or c.old_key)]
        before = dict(state)
        history = [told for change in changes for told in apply(state, ("id",), change)]
        folded = merged(current, changes, 1000 * step)
        assert current.rows() == state
        assert said(folded) == [(op, {name: row.get(name) for name in TEXTS}) for op, row in history]
        if not folded.truncated:
            touched = {(c.row["id"],) for c in changes} | {(c.old_key["id"],) for c in changes if c.old_key}
            assert folded.counts == {
                "inserted": len([key for key in touched if key in state and key not in before]),
                "updated": len([key for key in touched if key in state and key in before]),
                "deleted": len([key for key in touched if key not in state and key in before]),
            }


def row(key: int, **values: Any) -> Row:
    return {"id": key, "n": 0, "body": "b", "note": "c"} | values


def test_of_changes_of_many_keys_those_that_lack_values_are_walked_alone(current: Current) -> None:
    merged(current, [Change("insert", row(key)) for key in range(20)])
    changes = [Change("update", row(key, n=1)) for key in range(20)]
    changes += [Change("update", row(3, n=2, body=None), ("body",)), Change("update", row(40), (), {"id": 7})]
    folded = merged(current, changes, 100)
    assert folded.newest.walk is not None
    assert sorted(folded.newest.walk.newest) == [(3,), (7,), (40,)]
    assert len(folded.newest.walk.ops) == 5  # both changes of 3, that of 7, and the two rows of the move
    assert current.rows()[(3,)] == row(3, n=2)
    assert folded.counts == {"inserted": 1, "updated": 19, "deleted": 1}


def test_a_value_that_is_nowhere_is_a_hole(current: Current) -> None:
    assert not merged(current, [Change("insert", row(1))]).has_holes
    assert merged(current, [Change("update", row(8, body=None), ("body",))], 100).has_holes
    folded = merged(current, [Change("update", row(8, body=None), ("body",)), Change("update", row(1))], 200)
    assert folded.has_holes, "the row in current lacks it too"
    assert folded.staying.to_pylist()[-1][ROW_HOLES] == ["body"]


def test_what_is_too_much_for_the_driver_is_declined_with_a_reason(
    current: Current, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(current, [Change("insert", row(key, body="x" * 1000)) for key in range(5)])
    lacking = [Change("update", row(key % 5, body=None), ("body",)) for key in range(12)]
    for name, value, changes, reason in (
        ("MAX_FILLED_BYTES", 11_000, lacking, "values that were not sent are too large"),
        ("MAX_REPLACED", 4, [Change("update", row(key)) for key in range(5)], "many rows of current"),
        ("MAX_WALKED", 11, lacking, "moved or lack values"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(driver_fold, name, value)
            with pytest.raises(Declined, match=reason):
                merged(current, changes, 100)
