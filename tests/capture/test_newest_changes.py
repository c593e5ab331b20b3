"""The newest changes of a table, as the page shows them: what is applied, newest first, masked as the file says now."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pipeline import Pipeline
from tidemark.config import TableRule
from tidemark.errors import TableUnknown
from tidemark.ledger.staged import positions
from tidemark.observe import newest_changes

TABLE = "public.people"


def shown(pipeline: Pipeline) -> list[dict[str, Any]]:
    return newest_changes.read(pipeline.config, TABLE, ledger=pipeline.ledger)


def applied(pipeline: Pipeline) -> None:
    """All that is staged counts as merged."""
    with pipeline.ledger_connection() as book:
        positions.rise(book, 1, {TABLE: (pipeline.staged_lsn(),) * 2})


@pytest.fixture
def people(pipeline: Pipeline) -> Pipeline:
    pipeline.execute("CREATE TABLE people (id int PRIMARY KEY, email text, born date, note text)")
    pipeline.begin()
    pipeline.execute(
        "INSERT INTO people SELECT n, n || '@example.org', date '2000-01-01' + n FROM generate_series(1, 12) n"
    )
    pipeline.drain()
    return pipeline


def test_only_what_is_applied_is_shown_the_newest_first(people: Pipeline) -> None:
    assert shown(people) == []
    applied(people)
    changes = shown(people)
    assert [(change["op"], change["values"]["id"]) for change in changes] == [
        ("insert", str(number)) for number in range(12, 2, -1)
    ]
    assert changes[0]["values"] == {"id": "12", "email": "12@example.org", "born": "2000-01-13", "note": None}
    people.execute("UPDATE people SET note = 'x' WHERE id = 3", "DELETE FROM people WHERE id = 4")
    people.drain()
    assert shown(people) == changes, "the merge has not applied these"
    applied(people)
    assert [(change["op"], change["values"]["id"]) for change in shown(people)[:3]] == [
        ("delete", "4"),
        ("update", "3"),
        ("insert", "12"),
    ]


def test_a_column_that_is_masked_by_now_is_not_shown_of_older_changes(people: Pipeline) -> None:
    people.with_tables(TableRule(TABLE, mask={"email": "null"}))
    people.execute("INSERT INTO people (id, email, born, note) VALUES (99, 'secret@example.org', '1999-09-09', 'new')")
    people.drain()
    applied(people)
    newest, *older = shown(people)
    assert newest["values"] == {"id": "99", "email": None, "born": "1999-09-09", "note": "new"}
    assert {tuple(change["values"]) for change in older} == {("id", "born", "note")}


@pytest.mark.parametrize("rule", [TableRule(TABLE, mask={"email": "sha256"}), TableRule(TABLE, leave_out=("email",))])
def test_what_the_file_hides_is_hidden_before_any_run_has_met_that(people: Pipeline, rule: TableRule) -> None:
    applied(people)
    assert "email" in shown(people)[0]["values"]
    people.with_tables(rule)
    assert {tuple(change["values"]) for change in shown(people)} == {("id", "born", "note")}


def test_a_long_value_is_cut_and_one_that_was_not_sent_is_said(people: Pipeline) -> None:
    people.execute(
        "ALTER TABLE people ALTER note SET STORAGE EXTERNAL",
        "INSERT INTO people (id, note) VALUES (50, repeat('long ', 2000))",
        "UPDATE people SET email = 'new' WHERE id = 50",
    )
    people.drain()
    applied(people)
    update, insert = shown(people)[:2]
    assert (len(insert["values"]["note"]), insert["unchanged"]) == (newest_changes.CHARACTERS, [])
    assert (update["values"]["note"], update["unchanged"]) == (None, ["note"])


def test_an_unknown_table_is_an_error(people: Pipeline) -> None:
    with pytest.raises(TableUnknown):
        newest_changes.read(people.config, "public.nothing", ledger=people.ledger)
