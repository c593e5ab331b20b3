"""Rows of two shapes in one plan, and in plans after each other, against the model."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.spark.lake import TEXTS, Lake, StagedTable, table_schema
from tests.spark.model import Change, Row, apply, random_changes
from tests.spark.test_merge_equals_the_model import _transactions
from tests.spark.test_values import insert
from tests.support import delta_files
from tidemark.target.merge import DROPPED


def without_body(change: Change) -> Change:
    """What the stream says of a change once `body` is dropped."""
    row = {name: value for name, value in change.row.items() if name != "body"}
    return replace(change, row=row, unchanged=tuple(name for name in change.unchanged if name != "body"))


def narrow(table: StagedTable) -> None:
    columns = tuple(column for column in table.schema.columns if column.name != "body")
    table.schema = replace(table.schema, version=table.schema.version + 1, columns=columns)


def in_full(rows: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
    return [(op, {name: row.get(name) for name in TEXTS}) for op, row in rows]


def stored(lake: Lake, step: str, table: StagedTable) -> list[tuple[str, Row]]:
    return in_full([(row.get("_op", ""), row) for row in lake.stored(step, table)])


def comments(lake: Lake, step: str, table: StagedTable) -> dict[str, str]:
    delta = delta_files.read(delta_files.Path(lake.path(step, table)))
    assert delta is not None
    return {field.name: field.metadata["comment"] for field in delta.fields if field.metadata.get("comment")}


def test_changes_before_and_after_a_column_was_dropped_are_as_the_model_has_them(lake: Lake) -> None:
    """In one plan, with unchanged values, keys that move and truncates on both sides of it; then in the next plan."""
    tables, expected = [], []
    for seed in range(3):
        rng = random.Random(4200 + seed)
        table, state, history = lake.table(table_schema(f"t{seed}", TEXTS)), {}, []
        for is_dropped in (False, True):
            for _ in range(2):
                changes = [
                    without_body(change) if is_dropped else change
                    for change in random_changes(rng, state, rng.randint(4, 14), truncates=not is_dropped)
                ]
                for change in changes:
                    sent = replace(change, row={"body": None, **change.row}) if is_dropped else change
                    history += apply(state, ("id",), sent)
                table.stage(*_transactions(rng, changes))
            if not is_dropped:
                narrow(table)
        tables.append(table)
        expected.append((state, history))
    for first, last in ((0, 3), (3, 4)):
        lake.applied(*[table.planned(first, last) for table in tables])
    for table, (state, history) in zip(tables, expected, strict=True):
        by_key = sorted(stored(lake, "current", table), key=lambda row: row[1]["id"])
        assert by_key == in_full([("", state[key]) for key in sorted(state)])
        assert stored(lake, "history", table) == in_full(history)
        for step in ("current", "history"):
            assert comments(lake, step, table) == {"body": DROPPED}


def test_a_table_that_began_anew_has_nothing_of_what_was_dropped_before(lake: Lake) -> None:
    table = lake.table(table_schema("t", TEXTS))
    table.schemas.append(table.schema)
    narrow(table)
    table.stage([without_body(insert(1))])
    lake.applied(table.planned())
    assert "body" not in {name for row in lake.stored("current", table) for name in row}
