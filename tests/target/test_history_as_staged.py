"""Staged files that say what history shall say become files of history as they are; all others are computed."""

from __future__ import annotations

import hashlib

import pytest
from msgspec.structs import replace

from tests.support import delta_files
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema, with_columns
from tests.target.model import Change, Row
from tests.target.test_values import delete, insert, move, update
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.target.driver import history_files
from tidemark.target.spark import spark_merge as target_changes


def files_of_history(lake: Lake, table: StagedTable) -> list[str]:
    """SHA-256 of each file of the newest version."""
    path = lake.folder("history", table)
    there = delta_files.read(path)
    assert there is not None
    return sorted(hashlib.sha256((path / name).read_bytes()).hexdigest() for name, _ in there.files)


def staged(table: StagedTable, *batches: int) -> list[str]:
    return sorted(f.sha256 for number in batches for f in table.batches[number].files)


def said(lake: Lake, table: StagedTable) -> list[tuple[str, object]]:
    return [(op, row["id"]) for op, row in lake.history(table)]


def test_bytes_are_encoded_once_where_the_staged_file_is_what_history_says(lake: Lake) -> None:
    """Of three batches the one with a key change and an unchanged value is computed, between the two others."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(1), insert(2)], [update(1, n=5), delete(2)])
    table.stage([update(1, "body"), move(1, 3, "body")])
    table.stage([insert(4, n=None), Change("truncate")], [insert(6)])
    (result,) = lake.applied(table.planned())
    assert result.rows["history"] == 10
    first, last = staged(table, 0), staged(table, 2)
    there = files_of_history(lake, table)
    assert len(there) == 3
    assert set(first + last) < set(there)
    assert said(lake, table) == [
        *[("insert", 1), ("insert", 2), ("update", 1), ("delete", 2)],
        *[("update", 1), ("delete", 1), ("insert", 3)],
        *[("insert", 4), ("truncate", None), ("insert", 6)],
    ]
    assert [row["id"] for row in lake.current(table)] == [6]
    filled = [row for op, row in lake.history(table) if op == "insert" and row["id"] == 3]
    assert [row["body"] for row in filled] == ["b"]


def test_one_change_that_lacks_a_value_has_all_files_of_its_batch_computed(lake: Lake) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.changes_a_file = 2
    table.stage([insert(1), insert(2), insert(3), update(1, "body"), update(3, n=4), delete(2)])
    table.stage([insert(5), insert(6), insert(7)])
    (result,) = lake.applied(table.planned())
    there = files_of_history(lake, table)
    assert set(staged(table, 1)) < set(there)
    assert len(there) == len(staged(table, 1)) + 1
    assert result.rows["history"] == 9
    assert said(lake, table) == [
        *[("insert", 1), ("insert", 2), ("insert", 3), ("update", 1), ("update", 3), ("delete", 2)],
        *[("insert", 5), ("insert", 6), ("insert", 7)],
    ]
    assert [row["body"] for op, row in lake.history(table) if op == "update" and row["id"] == 1] == ["b"]
    assert sorted(row["id"] for row in lake.current(table)) == [1, 3, 5, 6, 7]


def test_a_batch_with_a_file_of_an_older_shape_is_computed(lake: Lake) -> None:
    """In one batch: a column that is wider now is not so in the first file."""
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(1)])
    older = table.batches.pop()
    table.schema = replace(
        table.schema,
        version=2,
        columns=tuple(replace(c, target="bigint") if c.name == "n" else c for c in table.schema.columns),
    )
    table.stage([insert(2)])
    newer = table.batches.pop()
    table.batches.append(replace(newer, start_lsn=older.start_lsn, files=(*older.files, *newer.files)))
    lake.applied(table.planned())
    assert not {f.sha256 for f in (*older.files, *newer.files)} & set(files_of_history(lake, table))
    assert said(lake, table) == [("insert", 1), ("insert", 2)]


@pytest.mark.thorough
def test_rows_are_found_by_the_bounds_of_their_files_and_files_are_rewritten_like_others(lake: Lake) -> None:
    table = lake.table(table_schema("t", TEXTS))
    for number in range(3):
        table.stage([insert(number)])
        lake.applied(table.planned(number))
    path = lake.path("history", table)
    for number, batch in enumerate(table.batches):
        within = f"_commit_lsn BETWEEN {int(batch.start_lsn)} AND {int(batch.end_lsn) - 1}"
        assert [row["id"] for row in lake.read("history", table).where(within).collect()] == [number]
    lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    assert sorted(row["id"] for row in lake.read("history", table).collect()) == [0, 2]
    lake.spark.sql(f"OPTIMIZE delta.`{path}`")
    assert sorted(row["id"] for row in lake.read("history", table).collect()) == [0, 2]
    assert len(files_of_history(lake, table)) == 1


def test_a_file_from_before_a_column_was_added_is_read_with_nothing_in_it(lake: Lake) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(1)])
    table.schema = with_columns(table.schema, {"later": "int"})
    table.stage([Change("insert", {**insert(2).row, "later": 7})])
    lake.applied(table.planned())
    assert files_of_history(lake, table) == staged(table, 0, 1)
    assert [(row["id"], row["later"]) for row in lake.current(table)] == [(1, None), (2, 7)]
    assert [row["later"] for row in lake.read("history", table).orderBy("_commit_lsn").collect()] == [None, 7]


def bag(name: str) -> TableSchema:
    return table_schema(name, TEXTS, (), "full")


def no_identity(name: str) -> TableSchema:
    return table_schema(name, TEXTS, (), "nothing")


def test_what_history_splits_or_calls_otherwise_is_computed(lake: Lake) -> None:
    """A multiset's update is two rows; a column whose name Delta maps is called otherwise in its files. A table without
    any identity has nothing to split."""
    mapped = lake.table(table_schema("mapped", {**TEXTS, "a b": "int"}))
    copies, plain = lake.table(bag("bag")), lake.table(no_identity("plain"))
    row: Row = insert(1).row
    mapped.stage([Change("insert", {**row, "a b": 3})])
    copies.stage([Change("insert", row)], [Change("update", {**row, "n": 2}, old=row)])
    plain.stage([Change("insert", row)])
    lake.applied(mapped.planned(), copies.planned(), plain.planned())
    assert files_of_history(lake, plain) == staged(plain, 0)
    for table, rows in ((mapped, 1), (copies, 3)):
        assert files_of_history(lake, table) != staged(table, 0)
        assert len(lake.history(table)) == rows
    assert [r["a b"] for r in lake.current(mapped)] == [3]


def test_many_small_files_become_few(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_files, "MAX_SMALL_FILES", 2)
    table = lake.table(table_schema("t", TEXTS))
    for number in range(3):
        table.stage([insert(number)])
    lake.applied(table.planned())
    assert len(files_of_history(lake, table)) == 1
    assert said(lake, table) == [("insert", 0), ("insert", 1), ("insert", 2)]


@pytest.mark.parametrize("what", ["flipped", "cut"])
def test_a_file_that_is_not_the_one_that_was_staged_is_told(lake: Lake, what: str) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(1)])
    file = lake.root / table.batches[0].files[0].path
    content = bytearray(file.read_bytes())
    if what == "flipped":
        content[40] ^= 1
    file.write_bytes(content if what == "flipped" else content[:-1])
    (result,) = lake.apply(table.planned()).tables
    assert result.error is not None
    assert result.error.kind == "StagedFileDiffers"
    assert lake.version("history", table) == 0  # the table was created, and nothing is in it
    assert result.history_lsn is None


def test_a_driver_that_dies_behind_the_copy_leaves_a_file_that_is_no_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.stage([insert(1)])

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(target_changes.delta_tables, "append", die)
        with pytest.raises(Died):
            lake.apply(table.planned())
    folder = lake.folder("history", table)
    assert len(list(folder.glob("*.parquet"))) == 1
    lake.applied(table.planned())
    assert said(lake, table) == [("insert", 1)]
    assert len(list(folder.glob("*.parquet"))) == 2


def test_rows_of_chunks_are_appended_beside_files_that_stay_as_they_are(lake: Lake) -> None:
    table = lake.table(table_schema("t", TEXTS))
    low, later = table.next_lsn(), 2**40
    rows = [{"id": n, "n": 0, "body": "b", "note": "c"} for n in (1, 2)]
    claim = table.stage_chunk("b1", "1-1", rows, snapshot=f"{later}:{later}:", low=low)
    unseen = [(table.next_lsn(), later, [update(2, n=9)])]
    claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()))
    table.stage_committed(unseen, (claim,))
    (result,) = lake.applied(table.planned())
    assert result.rows["history"] == 2
    assert staged(table, 0)[0] in files_of_history(lake, table)
    assert said(lake, table) == [("update", 2), ("read", 1)]
    assert [(row["id"], row["n"]) for row in lake.current(table)] == [(1, 0), (2, 9)]
