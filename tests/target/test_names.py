"""Columns that are called as something in Spark, in Delta or in a merge's own frames is called merge like all others.

Two frames that are joined have names (s, t, net, there, …), and a change has a row from before: a column of the table
by such a name must not be taken for it. (`_metadata` is refused: Delta's MERGE would take it for its own.)
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.thorough import thorough
from tests.target.lake import Lake, StagedTable, table_schema
from tests.target.model import Change, Row
from tidemark.formats.manifest import Sweep
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema
from tidemark.target.spark import spark_merge as target_changes

NAMES = (
    *("_before", "_change_type", "_commit_version", "_row_id", "_tmp_metadata", "__metadata"),
    *("s", "t", "net", "there", "target", "child", "parent", "claims", "moves", "old", "new", "value", "text", "known"),
    *("row_index", "file_path", "file_name", "key", "array", "struct", "null", "a.b", "a`b", "a b", "*", "ünï", "日本"),
)


def named(name: str, key: str) -> TableSchema:
    """Every name a text, but for the maps `net` and `t`: what is in a map is addressed as what is in a frame."""
    types = {n: "map<string,string>" if n in ("net", "t") else "string" for n in NAMES}
    return table_schema(name, {key: "string"} | {n: of for n, of in types.items() if n != key}, (key,))


def filled(table: StagedTable, text: str, key: str) -> Row:
    (key_name,) = table.schema.key
    values = {
        c.name: [("id", text)] if c.target.startswith("map") else f"{c.name} {text}" for c in table.schema.columns
    }
    return values | {key_name: key}


def expected(rows: list[Row]) -> list[Row]:
    return [{n: dict(v) if isinstance(v, list) else v for n, v in row.items()} for row in rows]


@pytest.mark.parametrize("many_files", thorough(True, False))
def test_columns_of_odd_names_are_captured_and_backfilled(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, many_files: bool
) -> None:
    """One table per key's name: inserted, then left unchanged, moved and deleted in one plan, then read in chunks. With
    `many_files`, unchanged values are taken from the files where their keys lie."""
    if many_files:
        monkeypatch.setattr(target_changes, "FEW_FILES", 0)
    tables = [lake.table(named(f"of {key}", key)) for key in ("s", "_before")]
    left = []
    for table in tables:
        (key,) = table.schema.key
        others = tuple(n for n in NAMES if n != key)
        rows = [filled(table, "first", k) for k in "abcd"]
        table.stage([Change("insert", row) for row in rows])
        nothing = dict.fromkeys((key, *others))
        unchanged = Change("update", {**nothing, key: "a"}, others)
        moved = Change("update", {**nothing, key: "e"}, others, {key: "b"})
        changed = filled(table, "second", "c")
        table.stage([unchanged, moved, Change("update", changed), Change("delete", {**nothing, key: "d"})])
        left.append([rows[0], changed, {**rows[1], key: "e"}])
    lake.applied(*[t.planned(0, 1) for t in tables])
    lake.applied(*[t.planned(1) for t in tables])
    for table, there in zip(tables, left, strict=True):
        assert lake.current(table) == expected(there)
        read = [*there[:2], filled(table, "of the chunk", "f")]
        later = 2**40
        claim = table.stage_chunk("b1", "1-1", read, snapshot=f"{later}:{later}:", low=table.next_lsn())
        unseen = [(table.next_lsn(), later, [Change("update", filled(table, "third", "a"))])]
        claim = replace(claim, watermark_lsn=Lsn(table.next_lsn()))
        table.stage_committed(unseen, (claim,), (Sweep("b1", f"{later}:{later}:", 1),))
    results = lake.applied(*[t.planned(2) for t in tables])
    for table, there, result in zip(tables, left, results, strict=True):
        assert lake.current(table) == expected(
            [filled(table, "third", "a"), there[1], filled(table, "of the chunk", "f")]
        )
        assert result.swept == {"b1": 1}


@pytest.mark.thorough
def test_a_table_without_key_may_have_columns_of_odd_names(lake: Lake) -> None:
    table = lake.table(table_schema("bag", dict.fromkeys(NAMES, "string"), (), "full"))
    rows = [{n: f"{n} {k}" for n in NAMES} for k in "abc"]
    table.stage([Change("insert", row) for row in rows])
    table.stage([Change("update", rows[0], old=rows[1]), Change("delete", dict.fromkeys(NAMES), old=rows[2])])
    lake.applied(table.planned(0, 1))
    lake.applied(table.planned(1))
    assert lake.current(table) == [rows[0], rows[0]]
    later = 2**40
    claim = table.stage_chunk("b1", "1-1", rows, snapshot=f"{later}:{later}:", low=table.next_lsn())
    table.stage_committed([], (replace(claim, watermark_lsn=Lsn(table.next_lsn())),))
    lake.applied(table.planned(2))
    assert lake.current(table) == rows
