"""Debezium's change events lead to the rows that their source has.

The engine, version 3.3.1, wrote `recorded_change_events.tsv`. The parts that nobody reads here are cut out, and two
large values are short. The other lines are made here in the same form.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.witnesses.debezium.change_events import UNCHANGED, UNCHANGED_BYTES, ChangeEvents, Row

MARKER = "public.marker"
INT = {"type": "int32", "optional": True}
TEXT = {"type": "string", "optional": True}


def line(
    op: str,
    key: Row | None = None,
    before: Row | None = None,
    after: Row | None = None,
    fields: dict[str, dict[str, Any]] | None = None,
    table: str = "t",
) -> str:
    """One line of the engine; a column is an integer where `fields` does not say otherwise."""
    columns = dict.fromkeys(after or before or {}, INT) | (fields or {})
    row = [{**one, "field": name} for name, one in columns.items()]
    schema = {
        "type": "struct",
        "fields": [{"type": "struct", "fields": row, "optional": True, "field": one} for one in ("before", "after")],
        "optional": False,
        "name": f"peer.public.{table}.Envelope",
    }
    source = {"schema": "public", "table": table}
    value = {"schema": schema, "payload": {"before": before, "after": after, "source": source, "op": op}}
    key_text = json.dumps({"schema": {"type": "struct"}, "payload": key}, separators=(",", ":")) if key else ""
    return f"{key_text}\t{json.dumps(value, separators=(',', ':'))}"


def applied(*lines: str) -> ChangeEvents:
    events = ChangeEvents(MARKER)
    for one in lines:
        events.take(one)
    return events


def rows(*lines: str) -> list[Row]:
    return applied(*lines).tables["public.t"].rows()


@pytest.mark.parametrize(
    ("table", "held"),
    [
        # insert 1, 2, 3; update 2; delete 3; key 1 becomes 4; ADD COLUMN n int DEFAULT 7; insert 5
        (
            "keyed",
            [{"id": 2, "word": "zwei", "n": 7}, {"id": 4, "word": "one", "n": 7}, {"id": 5, "word": "five", "n": 8}],
        ),
        # insert 1; update of n alone
        ("large", [{"id": 1, "n": 2, "word": "x", "bytes": "qw=="}]),
        # insert a, a, b, c; update b; delete one a
        ("keyless", [{"n": 1, "word": "a"}, {"n": 2, "word": "d"}, {"n": 3, "word": "c"}]),
        # insert 1, 2; truncate; insert 3
        ("emptied", [{"id": 3}]),
    ],
)
def test_recorded_events_lead_to_the_rows_of_their_source(table: str, held: list[Row]) -> None:
    lines = Path(__file__).with_name("recorded_change_events.tsv").read_text().splitlines()
    found = applied(*lines).tables[f"public.{table}"]
    assert sorted(found.rows(), key=str) == sorted(held, key=str)
    assert found.missed == 0


def inserted(number: int, **more: object) -> str:
    return line("c", {"id": number}, after={"id": number, **more}, fields=dict.fromkeys(more, TEXT))


def test_an_update_and_a_delete_find_their_row_by_its_key() -> None:
    updated = line("u", {"id": 2}, after={"id": 2, "word": "b"}, fields={"word": TEXT})
    deleted = line("d", {"id": 1}, before={"id": 1, "word": None}, fields={"word": TEXT})
    lines = inserted(1, word="a"), inserted(2, word="a"), updated, deleted
    assert rows(*lines) == [{"id": 2, "word": "b"}]
    assert applied(*lines).tables["public.t"].missed == 0


def test_a_new_key_is_a_delete_and_an_insert() -> None:
    deleted = line("d", {"id": 1}, before={"id": 1, "word": None}, fields={"word": TEXT})
    assert rows(inserted(1, word="a"), deleted, inserted(3, word="a")) == [{"id": 3, "word": "a"}]


def test_a_truncate_leaves_what_comes_after_it() -> None:
    assert rows(inserted(1), inserted(2), line("t"), inserted(3)) == [{"id": 3}]


def test_a_value_that_was_not_sent_stays_as_it_was() -> None:
    fields = {"word": TEXT, "bytes": {"type": "bytes"}, "words": {"type": "array", "items": TEXT}}
    large = {"id": 1, "word": "long", "bytes": "bG9uZw==", "words": ["long"]}
    sent = {"id": 1, "word": UNCHANGED, "bytes": UNCHANGED_BYTES, "words": [UNCHANGED]}
    first = line("c", {"id": 1}, after=large, fields=fields)
    assert rows(first, line("u", {"id": 1}, after=sent, fields=fields)) == [large]


def test_without_a_key_one_of_the_rows_that_equal_before_is_changed() -> None:
    one, other = {"a": 1}, {"a": 2}
    twice = line("c", after=one), line("c", after=one)
    assert rows(*twice, line("u", before=one, after=other)) == [one, other]
    assert rows(*twice, line("d", before=one)) == [one]


def test_a_change_of_a_row_that_is_not_there_is_counted() -> None:
    absent = (
        line("d", {"id": 1}, before={"id": 1}),
        line("u", {"id": 2}, after={"id": 2}),
        line("d", before={"id": 9}),
    )
    assert applied(*absent).tables["public.t"].missed == 3


def test_an_added_column_has_the_default_of_its_schema_in_earlier_rows() -> None:
    fields = {"a": {**INT, "default": 7}, "b": INT}
    added = line("c", {"id": 2}, after={"id": 2, "a": 8, "b": 9}, fields=fields)
    assert rows(inserted(1), added) == [{"id": 1, "a": 7, "b": None}, {"id": 2, "a": 8, "b": 9}]


def test_a_dropped_column_leaves_earlier_rows() -> None:
    assert rows(inserted(1, word="a"), inserted(2)) == [{"id": 1}, {"id": 2}]


def test_a_marker_and_the_bounds_of_a_transaction_are_of_no_table() -> None:
    bounds = json.dumps({"schema": {"fields": []}, "payload": {"status": "BEGIN"}}, separators=(",", ":"))
    events = applied(line("c", {"id": 5}, after={"id": 5}, table="marker"), f"\t{bounds}")
    assert (events.markers, events.tables) == ({5}, {})
