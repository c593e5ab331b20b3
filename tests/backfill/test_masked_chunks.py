"""A masked or left-out column that is renamed while a backfill is read never reaches a chunk's files in clear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.pipeline import Pipeline
from tidemark.backfill.read_sessions import ImportedSnapshot
from tidemark.config import TableRule
from tidemark.lsn import Lsn

PEOPLE = "public.people"
RULE = TableRule(PEOPLE, leave_out=("notes",), mask={"email": "sha256"}, line=3)
RENAMED = ("ALTER TABLE people RENAME email TO mail", "ALTER TABLE people RENAME notes TO remarks")


@pytest.fixture
def people(captured: Pipeline) -> Pipeline:
    captured.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, notes text, town text)",
        "INSERT INTO people SELECT i, 'secretmail', 'secretnote', 'Ulm' FROM generate_series(1, 40) i",
        "ANALYZE people",
    )
    captured.with_tables(RULE, TableRule("public.*", line=4))
    captured.capture()
    captured.drain()
    return captured


def in_clear(people: Pipeline, backfill: Any) -> bool:
    return any(value in ("secretmail", "secretnote") for row in people.rows(backfill) for value in row.values())


def before_the_second_chunk(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    chunks = 0

    def reach(name: str) -> None:
        nonlocal chunks
        chunks += name == "read.after_low"
        if name == "read.after_low" and chunks == 2:
            action()

    monkeypatch.setattr("tidemark.backfill.range_reading.reach", reach)


def test_renamed_before_it_is_read(people: Pipeline) -> None:
    people.execute(*RENAMED)
    (backfill,) = people.plan(tables=[PEOPLE])
    people.read()
    rows = people.rows(backfill)
    assert (len(rows), in_clear(people, backfill)) == (40, False)
    assert (rows[0]["mail"], "remarks" in rows[0], rows[0]["town"]) == (None, False, "Ulm")


def test_renamed_between_two_chunks(people: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    (backfill,) = people.plan(tables=[PEOPLE], chunk_rows=20, readers=1)
    before_the_second_chunk(monkeypatch, lambda: people.execute(*RENAMED))
    people.read()
    rows = people.rows(backfill)
    assert (len(rows), in_clear(people, backfill)) == (40, False)
    assert {len(row["email"] or "") for row in rows if "email" in row} == {64}
    assert {row["mail"] for row in rows if "mail" in row} == {None}


def test_a_column_that_took_a_masked_name_between_two_drains_stays_masked(people: Pipeline) -> None:
    # The reader is the only one that ever sees the column under the name that the file masks.
    people.execute("ALTER TABLE people ADD phone text")
    people.with_tables(TableRule(PEOPLE, leave_out=("notes",), mask={"email": "sha256", "phone": "null"}))
    people.capture()
    people.execute("UPDATE people SET phone = 'secretmail'")
    (backfill,) = people.plan(tables=[PEOPLE])
    people.read()
    people.execute(
        "ALTER TABLE people RENAME phone TO mobile", "INSERT INTO people (id, mobile) VALUES (99, 'secretmail')"
    )
    people.drain()
    assert not in_clear(people, backfill)
    assert "secretmail" not in [value for row in people.staged(PEOPLE) for value in row.values()]


def test_a_table_renamed_under_a_pattern_is_read_with_the_masks_of_its_entry(people: Pipeline) -> None:
    people.execute("ALTER TABLE people RENAME TO persons")
    people.capture()
    (backfill,) = people.plan(tables=["public.persons"])
    people.read()
    assert (len(people.rows(backfill)), in_clear(people, backfill)) == (40, False)


def test_where_a_mask_has_no_place_nothing_is_read(people: Pipeline) -> None:
    (backfill,) = people.plan(tables=[PEOPLE])
    people.execute("ALTER TABLE people DROP email", "ALTER TABLE people ADD mail text DEFAULT 'secretmail'")
    people.read()
    assert people.chunks(backfill) == []
    assert "masks or leaves out email" in (people.again(backfill).state_reason or "")


def test_names_that_changed_places_since_the_snapshot_was_exported_are_not_read_under_it(
    people: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    (backfill,) = people.plan(tables=[PEOPLE], mode="exported_snapshot")
    with psycopg.connect(people.source) as exporting:
        exporting.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = exporting.execute("SELECT pg_export_snapshot(), pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        people.execute(
            "ALTER TABLE people RENAME town TO t",
            "ALTER TABLE people RENAME email TO town",
            "ALTER TABLE people RENAME t TO email",
        )
        people.read(imported=imported(row[0], row[1]))
    assert "was renamed since the snapshot was exported" in caplog.text
    assert (len(people.rows(backfill)), in_clear(people, backfill)) == (40, False)


def imported(identifier: str, lsn: str) -> ImportedSnapshot:
    return ImportedSnapshot(identifier, Lsn.parse(lsn))
