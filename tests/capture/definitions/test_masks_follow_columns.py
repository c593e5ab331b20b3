"""A masked or left-out column that is renamed, whenever that is: its values never reach staging in clear (R8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture import drain as drain_module
from tidemark.config import TableRule

PEOPLE = "public.people"
RULE = TableRule(PEOPLE, leave_out=("notes",), mask={"email": "sha256"})
SECRETS = ("secretmail", "secretnote")
_INSERT = "INSERT INTO people ({}) VALUES ({}, 'secretmail', 'secretnote', 'Ulm')"


def insert(pipeline: Pipeline, n: int, columns: str = "id, email, notes, town") -> None:
    pipeline.execute(_INSERT.format(columns, n))


@pytest.fixture
def people(pipeline: Pipeline) -> Pipeline:
    """A drained table, so that the ledger has looked at it once."""
    pipeline.execute("CREATE TABLE people (id int PRIMARY KEY, email text, notes text, town text)")
    pipeline.with_tables(RULE, TableRule("public.*"))
    pipeline.begin()
    insert(pipeline, 1)
    pipeline.drain()
    return pipeline


def staged(pipeline: Pipeline, table: str = PEOPLE) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in pipeline.staged(table)]


def nothing_in_clear(pipeline: Pipeline) -> bool:
    for folder, _, files in os.walk(pipeline.config.lake):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
                if any(secret.encode() in content for secret in SECRETS):
                    return False
    values = [
        v for m in pipeline.manifests() for t in m.tables for row in pipeline.staged(t.table) for v in row.values()
    ]
    return not any(value in SECRETS for value in values)


def while_draining(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Drain, and do something at the source when the drain has looked at it and is about to write its heartbeat."""
    real = drain_module.emit_heartbeat

    def act(*arguments: Any) -> Any:
        action()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "emit_heartbeat", act)
        pipeline.drain()


def test_renamed_between_runs_they_are_null_and_stay_out(people: Pipeline) -> None:
    people.execute("ALTER TABLE people RENAME email TO mail", "ALTER TABLE people RENAME notes TO remarks")
    insert(people, 2, "id, mail, remarks, town")
    people.drain()
    assert nothing_in_clear(people)
    assert staged(people)[1] == {"id": 2, "mail": None, "town": "Ulm"}


def test_renamed_while_the_drain_runs(people: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename() -> None:
        insert(people, 2)
        people.execute("ALTER TABLE people RENAME email TO mail", "ALTER TABLE people RENAME notes TO remarks")
        insert(people, 3, "id, mail, remarks, town")

    while_draining(people, monkeypatch, rename)
    assert nothing_in_clear(people)
    assert [set(row) for row in staged(people)] == [{"id", "email", "town"}] * 2 + [{"id", "mail", "town"}]
    assert staged(people)[1]["email"] is not None
    assert staged(people)[2] == {"id": 3, "mail": None, "town": "Ulm"}


def test_names_that_change_places_and_back_between_two_drains(people: Pipeline) -> None:
    insert(people, 2)
    people.execute("ALTER TABLE people RENAME town TO t", "ALTER TABLE people RENAME email TO town")
    people.execute("ALTER TABLE people RENAME t TO email")
    people.execute("INSERT INTO people (id, town, notes, email) VALUES (3, 'secretmail', 'secretnote', 'Ulm')")
    people.execute("ALTER TABLE people RENAME town TO t", "ALTER TABLE people RENAME email TO town")
    people.execute("ALTER TABLE people RENAME t TO email")
    insert(people, 4)
    people.drain()
    assert nothing_in_clear(people)
    assert [row["id"] for row in staged(people)] == [1, 2, 3, 4]


def test_the_same_names_in_the_same_order_on_other_columns(people: Pipeline) -> None:
    # RELATION is byte for byte what it was: [id, email, town] is [id, notes, town] no more.
    people.with_tables(TableRule(PEOPLE, mask={"town": "null"}))
    people.execute("CREATE TABLE places (id int PRIMARY KEY, a text, b text)")
    people.with_tables(TableRule("public.places", mask={"b": "null"}), TableRule("public.*", mask={"email": "null"}))
    people.execute("INSERT INTO places VALUES (1, 'Ulm', 'secretmail')")
    people.drain()
    people.execute("ALTER TABLE places DROP a", "ALTER TABLE places RENAME b TO a", "ALTER TABLE places ADD b text")
    people.execute("INSERT INTO places (id, a, b) VALUES (2, 'secretmail', 'x')")
    people.drain()
    assert "secretmail" not in [row["a"] for row in staged(people, "public.places")]


def test_the_same_names_on_other_columns_while_the_drain_runs(
    people: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.execute("CREATE TABLE places (id int PRIMARY KEY, a text, b text)")
    people.with_tables(TableRule("public.places", mask={"b": "null"}))
    people.execute("INSERT INTO places VALUES (1, 'Ulm', 'secretmail')")
    people.drain()

    # Before the drain's look: its RELATION message is resolved by what was there, and the next one is the same.
    people.execute("INSERT INTO places VALUES (2, 'Ulm', 'secretmail')")

    def permute() -> None:
        people.execute("ALTER TABLE places DROP a", "ALTER TABLE places RENAME b TO a", "ALTER TABLE places ADD b text")
        people.execute("INSERT INTO places (id, a, b) VALUES (3, 'secretmail', 'x')")

    while_draining(people, monkeypatch, permute)
    assert "secretmail" not in [row["a"] for row in staged(people, "public.places")]


def test_dropped_and_added_again_under_its_name_it_stays_masked(people: Pipeline) -> None:
    people.execute("ALTER TABLE people DROP email", "ALTER TABLE people ADD email text")
    insert(people, 2)
    people.drain()
    people.execute("ALTER TABLE people RENAME email TO mail")
    insert(people, 3, "id, mail, notes, town")
    people.drain()
    assert nothing_in_clear(people)
    rows = [row for table in people.table_rows() for row in people.staged(table)]
    assert sorted(row["id"] for row in rows) == [1, 2, 3]
    assert next(row for row in rows if row["id"] == 3)["mail"] is None


def test_copied_into_a_new_column_and_dropped(people: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy() -> None:
        insert(people, 2)
        people.execute("ALTER TABLE people ADD mail text", "UPDATE people SET mail = email")
        people.execute("ALTER TABLE people DROP email")
        insert(people, 3, "id, mail, notes, town")

    while_draining(people, monkeypatch, copy)
    assert nothing_in_clear(people)


def test_where_a_masked_column_is_gone_nothing_more_of_the_table_is_staged(people: Pipeline) -> None:
    people.execute("ALTER TABLE people DROP email", "ALTER TABLE people ADD mail text")
    insert(people, 2, "id, mail, notes, town")
    people.drain()
    assert [row["id"] for row in staged(people)] == [1]
    assert people.table_row(PEOPLE).life.needs_backfill
    messages = [mark.message for mark in people.manifests()[-1].marks if mark.kind == "passed_over"]
    assert messages == ["its changes are not staged: the file masks or leaves out email, which it does not have"]


def test_a_misspelt_mask_of_a_new_table_lets_nothing_of_it_be_staged(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE people (id int PRIMARY KEY, email text, notes text, town text)")
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.with_tables(TableRule(PEOPLE, mask={"emial": "sha256"}), TableRule("public.*"))
    pipeline.begin()
    insert(pipeline, 1)
    pipeline.execute("INSERT INTO orders VALUES (1)")
    pipeline.drain()
    assert [t.table for m in pipeline.manifests() for t in m.tables] == ["public.orders"]
    assert nothing_in_clear(pipeline)


def test_a_table_renamed_under_a_pattern_keeps_the_masks_of_its_entry(
    people: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename() -> None:
        people.execute("ALTER TABLE people RENAME TO persons")
        people.execute("INSERT INTO persons VALUES (2, 'secretmail', 'secretnote', 'Ulm')")

    while_draining(people, monkeypatch, rename)
    people.execute("ALTER TABLE persons RENAME email TO mail", "ALTER TABLE persons RENAME notes TO remarks")
    people.execute("INSERT INTO persons VALUES (3, 'secretmail', 'secretnote', 'Ulm')")
    people.drain()
    assert nothing_in_clear(people)
    assert staged(people)[1:] == [
        {"id": 2, "email": None, "town": "Ulm"},
        {"id": 3, "mail": None, "town": "Ulm"},
    ]


def test_a_table_dropped_and_created_again_is_masked_by_name(people: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def create_again() -> None:
        insert(people, 2)
        people.execute("DROP TABLE people")
        people.execute("CREATE TABLE people (id int PRIMARY KEY, town text, email text, notes text)")
        insert(people, 3)

    while_draining(people, monkeypatch, create_again)
    assert nothing_in_clear(people)
    assert [row["id"] for row in staged(people)] == [1], "which columns the dropped one had cannot be told"
    assert [row["id"] for row in staged(people, f"{PEOPLE}~2")] == [3]
    assert people.table_row(PEOPLE).life.needs_backfill


def test_a_patterns_mask_follows_its_columns_too(people: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    people.with_tables(TableRule("public.*", mask={"email": "null"}, leave_out=("notes",)))
    people.drain()

    def rename() -> None:
        people.execute("ALTER TABLE people RENAME email TO mail", "ALTER TABLE people RENAME notes TO remarks")
        insert(people, 2, "id, mail, remarks, town")

    while_draining(people, monkeypatch, rename)
    assert nothing_in_clear(people)


def test_renamed_and_written_to_in_one_transaction(people: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename() -> None:
        with people.connection.transaction():
            insert(people, 2)
            people.execute("ALTER TABLE people RENAME email TO mail")
            insert(people, 3, "id, mail, notes, town")
            people.execute("ALTER TABLE people RENAME mail TO email")
            insert(people, 4)

    while_draining(people, monkeypatch, rename)
    assert nothing_in_clear(people)
    assert [row["id"] for row in staged(people)] == [1, 2, 3, 4]


def test_a_column_added_meanwhile_is_captured_as_it_is(people: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def add() -> None:
        people.execute("ALTER TABLE people ADD country text")
        people.execute("INSERT INTO people VALUES (2, 'secretmail', 'secretnote', 'Ulm', 'DE')")

    while_draining(people, monkeypatch, add)
    assert nothing_in_clear(people)
    assert staged(people)[1]["country"] == "DE"


def test_clear_gives_the_column_its_value_back(people: Pipeline) -> None:
    people.execute("ALTER TABLE people RENAME town TO place", "ALTER TABLE people RENAME email TO town")
    people.execute("ALTER TABLE people RENAME place TO email")
    people.drain()
    people.with_tables(TableRule(PEOPLE, leave_out=("notes",), mask={"email": "sha256"}, clear=("town",)))
    people.execute("INSERT INTO people (id, town, email) VALUES (2, 'now in clear', 'Ulm')")
    people.drain()
    assert staged(people)[-1]["town"] == "now in clear"


def test_a_run_that_ends_before_its_heartbeat_keeps_the_older_look(people: Pipeline) -> None:
    people.with_bounds(batch_rows=1)
    insert(people, 2)
    people.execute("ALTER TABLE people RENAME email TO mail")
    insert(people, 3, "id, mail, notes, town")
    people.execute("ALTER TABLE people RENAME town TO email", "ALTER TABLE people RENAME mail TO town")
    people.execute("INSERT INTO people (id, town, notes, email) VALUES (4, 'secretmail', 'secretnote', 'Ulm')")
    for _ in range(5):
        if people.drain(run_s=0).reached_target:
            break
    assert nothing_in_clear(people)
    assert [row["id"] for row in staged(people)] == [1, 2, 3, 4]
