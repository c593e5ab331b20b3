"""Values that Delta cannot hold, and of which history has the text: a verify tells them apart by it, whatever their
columns are called by now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import pytest
from msgspec.structs import replace

from tests.target.lake import Lake, table_schema
from tests.target.model import Change
from tests.target.verifying import counts, differences, planned, verify
from tidemark.schema.table import Column
from tidemark.target.delta import delta_tables

pytestmark = pytest.mark.usefixtures("proven")

DAYS = {"id": "int", "until": "date", "note": "string"}


def test_values_that_are_stored_alike_are_told_apart_by_their_texts(lake: Lake) -> None:
    unfit = {"price": None, "_text": [("price", "NaN")]}
    rows = [{"id": 1, **unfit}, {"id": 2, **unfit}, {"id": 3, "price": None}, {"id": 4, "price": None}]
    staged = [
        Change("insert", {"id": key, "price": None}, text={"price": text} if text else None)
        for key, text in [(1, "NaN"), (2, "Infinity"), (3, "NaN"), (4, None)]
    ]
    table = lake.table(table_schema("unfit", {"id": "int", "price": "decimal(9,2)"}))
    table.stage(staged)
    lake.applied(table.planned())
    verify(table, rows, "repair")
    (outcome,) = lake.applied(table.planned(1))
    assert counts(outcome) == (0, 2, 0, 0, {"price": 2})
    texts = {r["id"]: dict(r["_text"] or {}) for r in lake.stored("history", table)}
    assert texts == {1: {"price": "NaN"}, 2: {"price": "NaN"}, 3: {}, 4: {}}
    verify(table, rows, "verify")
    (again,) = lake.applied(table.planned(2))
    assert counts(again) == (0, 0, 0, 0, {})


def test_texts_are_found_in_a_history_that_began_with_names_of_its_own(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that took over what a history with a renamed column has, while current is made from it as any other."""
    mapping = delta_tables.column_mapping

    def of_history(names: Sequence[str]) -> dict[str, str]:
        return {"delta.columnMapping.mode": "name"} if "_op" in names else mapping(names)

    monkeypatch.setattr(delta_tables, "column_mapping", of_history)
    table = lake.table(table_schema("unfit", {"id": "int", "price": "decimal(9,2)"}))
    table.stage([Change("insert", {"id": key, "price": None}, text={"price": "NaN"}) for key in (1, 2)])
    lake.applied(table.planned())
    verify(table, [{"id": 1, "price": None}, {"id": 2, "price": None}], "verify")
    (result,) = lake.applied(planned(table, 1))
    assert counts(result) == (0, 2, 0, 0, {"price": 2})


def test_texts_of_a_column_that_was_renamed_are_no_difference(lake: Lake) -> None:
    """History has them under the name of then; of a row that was written since it has the name of now."""
    columns = tuple(Column(name, target, 25, -1, target, attnum=n) for n, (name, target) in enumerate(DAYS.items(), 1))
    schema = replace(table_schema("t", DAYS), columns=columns, published=(1, 2, 3))
    table = lake.table(schema)
    unfit, last = {"until": "infinity"}, date(9999, 12, 31)
    table.stage([Change("insert", {"id": n, "until": last, "note": None}, text=unfit) for n in (1, 2, 3)])
    lake.applied(table.planned())
    columns = tuple(replace(column, name="ends" if column.name == "until" else column.name) for column in columns)
    table.schema = replace(schema, version=2, columns=columns)
    sent = {"id": 2, "ends": last, "note": "x"}
    table.stage([Change("update", sent, text={"ends": "infinity"}), Change("update", {**sent, "id": 3})])
    lake.applied(table.planned(1))
    rows = [
        {"id": n, "ends": last, "note": None if n == 1 else "x", "_text": [("ends", "infinity")]} for n in (1, 2, 3)
    ]
    verify(table, rows, "verify")
    (result,) = lake.applied(planned(table, 2))
    assert counts(result) == (0, 1, 0, 0, {"ends": 1})
    assert differences(lake, table) == [("differs", ["ends"], False, (("id", "3"),))]


def test_a_text_under_an_older_name_stands_for_no_more_than_one_column(lake: Lake) -> None:
    """Of the first row a column that was never renamed differs, too; of the second one, as of the third, none."""
    days = {"id": "int", "until": "date", "since": "date"}
    columns = tuple(
        Column(name, target, 1082, -1, target, attnum=n) for n, (name, target) in enumerate(days.items(), 1)
    )
    schema = replace(table_schema("t", days), columns=columns, published=(1, 2, 3))
    table = lake.table(schema)
    last = date(9999, 12, 31)
    values = {"until": last, "since": last}
    one, both = {"until": "infinity"}, {"until": "infinity", "since": "infinity"}
    staged = [(1, one), (2, one), (3, both)]
    table.stage([Change("insert", {"id": n, **values}, text=text) for n, text in staged])
    lake.applied(table.planned())
    columns = tuple(replace(column, name="ends" if column.name == "until" else column.name) for column in columns)
    table.schema = replace(schema, version=2, columns=columns)
    texts = {1: ["ends", "since"], 2: ["ends"], 3: ["ends", "since"]}
    rows = [
        {"id": n, "ends": last, "since": last, "_text": [(name, "infinity") for name in names]}
        for n, names in texts.items()
    ]
    verify(table, rows, "verify")
    (result,) = lake.applied(planned(table, 1))
    assert counts(result) == (0, 1, 0, 0, {"ends": 1, "since": 1})
    assert differences(lake, table) == [("differs", ["ends", "since"], False, (("id", "1"),))]
