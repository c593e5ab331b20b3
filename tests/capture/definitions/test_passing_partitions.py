"""Partitions that no look at the catalogue shows, since they came and went between two (R8, R11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture import drain
from tidemark.config import TableRule

LEAF = "CREATE TABLE item_3 PARTITION OF item FOR VALUES IN (3)"
ATTACH = "ALTER TABLE item ATTACH PARTITION item_3 FOR VALUES IN (3)"
DETACH = "ALTER TABLE item DETACH PARTITION item_3"
TABLE = "CREATE TABLE item_3 (part int, id int, PRIMARY KEY (id, part))"
INTO = "INSERT INTO item VALUES (9, 3)"
WENT = "a partition came and went since the run before, with what it held"


@pytest.fixture
def items(pipeline: Pipeline) -> Pipeline:
    """A captured root with a partition and a row; the publication is of all tables."""
    pipeline.config = replace(pipeline.config, manage_publication=False, tables=(TableRule("public.item"),))
    pipeline.execute(
        "CREATE TABLE item (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
        "CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1)",
    )
    pipeline.begin()
    pipeline.sound()
    pipeline.execute("INSERT INTO item VALUES (1, 1)")
    pipeline.drain()
    filled(pipeline)
    return pipeline


def filled(items: Pipeline) -> None:
    """As if a backfill had brought all rows."""
    items.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, "
        "backfill_since = NULL RETURNING 1"
    )


def reason(items: Pipeline, table: str = "public.item") -> str | None:
    row = items.table_row(table)
    return row.backfill_reason if row.life.needs_backfill else None


def behind_the_look(
    items: Pipeline, monkeypatch: pytest.MonkeyPatch, *statements: str, run_s: float | None = None
) -> None:
    """A run whose look at the catalogue came before these statements, which its stream has."""
    emit = drain.emit_heartbeat

    def after_these(*about: Any) -> Any:
        items.execute(*statements)
        return emit(*about)

    with monkeypatch.context() as patched:
        patched.setattr(drain, "emit_heartbeat", after_these)
        items.drain(run_s=run_s)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param((LEAF, INTO, "DROP TABLE item_3"), id="dropped"),
        pytest.param(
            ("BEGIN", LEAF, INTO, "COMMIT", "DROP TABLE item_3", "INSERT INTO item VALUES (2, 1)"),
            id="dropped before another change",
            marks=pytest.mark.thorough,
        ),
        pytest.param((TABLE, ATTACH, INTO, DETACH), id="detached", marks=pytest.mark.thorough),
        pytest.param(
            (LEAF, DETACH, "INSERT INTO item_3 VALUES (8, 3)", ATTACH, INTO, DETACH),
            id="left twice",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_partition_that_came_and_went_between_two_runs_marks_its_root(
    items: Pipeline, statements: tuple[str, ...]
) -> None:
    items.execute(*statements)
    items.drain()
    assert reason(items) == WENT
    filled(items)
    items.execute("INSERT INTO item VALUES (3, 1)")
    items.drain()
    assert reason(items) is None


@pytest.mark.parametrize("look", ["before", pytest.param("behind", marks=pytest.mark.thorough)])
def test_one_that_was_created_filled_and_truncated_by_its_name_marks_its_root(
    items: Pipeline, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """The stream has its rows, and TRUNCATE of a leaf is in no stream."""
    statements = (LEAF, INTO, "TRUNCATE item_3")
    if look == "before":
        items.execute(*statements)
        items.drain()
    else:
        behind_the_look(items, monkeypatch, *statements)
    assert "got new storage, as TRUNCATE of a partition gives it" in (reason(items) or "")


FILLED = "a partition was created and filled in one transaction, where a TRUNCATE of it is not seen"
SAVEPOINT = ("SAVEPOINT made", LEAF, INTO, "RELEASE made")


@pytest.mark.parametrize("look", ["before", pytest.param("behind", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "statements",
    [
        pytest.param((LEAF, INTO, "TRUNCATE item_3"), id="at once"),
        pytest.param((INTO.replace("3", "1"), *SAVEPOINT, "TRUNCATE item_3"), id="savepoint"),
    ],
)
def test_one_that_its_creator_filled_and_truncated_keeps_its_storage_and_marks_its_root(
    items: Pipeline, monkeypatch: pytest.MonkeyPatch, statements: tuple[str, ...], look: str
) -> None:
    """Neither the stream nor the catalogue shows the TRUNCATE."""
    statements = ("BEGIN", *statements, "COMMIT")
    if look == "before":
        items.execute(*statements)
        items.drain()
    else:
        behind_the_look(items, monkeypatch, *statements)
    assert reason(items) == FILLED
    filled(items)
    items.execute("INSERT INTO item VALUES (3, 1), (10, 3)")
    items.drain()
    assert reason(items) is None


def test_one_that_is_filled_by_an_older_transaction_than_its_creator_is_marked_at_most_once(items: Pipeline) -> None:
    """Its id may be that of the transaction in which the creator was a part."""
    items.execute("BEGIN", "SELECT pg_current_xact_id()", session="older")
    items.execute(LEAF)
    items.execute(INTO, "COMMIT", session="older")
    items.drain()
    assert reason(items) == FILLED
    filled(items)
    items.execute("INSERT INTO item VALUES (10, 3)")
    items.drain()
    assert reason(items) is None


REFILLED = "it was truncated and filled in one transaction, where a TRUNCATE of a partition is not seen"


@pytest.mark.parametrize("rows", [1000, pytest.param(1, marks=pytest.mark.thorough)])
def test_one_that_is_truncated_in_the_transaction_that_truncated_and_filled_its_root_marks_it(
    items: Pipeline, rows: int
) -> None:
    items.execute(LEAF, INTO)
    items.drain()
    items.with_bounds(batch_rows=rows)
    items.execute("BEGIN", "TRUNCATE item", "INSERT INTO item VALUES (5, 1), (6, 3)", "TRUNCATE item_3", "COMMIT")
    items.drain()
    assert reason(items) == REFILLED


def test_a_root_that_is_truncated_and_filled_behind_that_is_not_marked(items: Pipeline) -> None:
    items.execute(LEAF, INTO)
    items.drain()
    items.execute(
        "BEGIN", "INSERT INTO item VALUES (7, 3)", "TRUNCATE item", "COMMIT", "INSERT INTO item VALUES (5, 1)"
    )
    items.drain()
    assert reason(items) is None


@pytest.mark.thorough
def test_one_that_is_there_is_nothing(items: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    items.execute(LEAF, INTO)
    items.drain()
    behind_the_look(
        items, monkeypatch, LEAF.replace("3", "4"), "INSERT INTO item VALUES (9, 4)", "INSERT INTO item VALUES (2, 1)"
    )
    items.execute("INSERT INTO item VALUES (10, 4), (3, 1)")
    items.drain()
    assert reason(items) is None


@pytest.mark.parametrize("went", ["DROP TABLE item_3", pytest.param(DETACH, marks=pytest.mark.thorough)])
def test_one_that_came_behind_the_look_of_its_run_is_missed_by_the_next(
    items: Pipeline, monkeypatch: pytest.MonkeyPatch, went: str
) -> None:
    behind_the_look(items, monkeypatch, LEAF, INTO)
    assert reason(items) is None
    items.execute(went)
    items.drain()
    assert reason(items) == "1 partition was detached or dropped"


def cut_off(items: Pipeline, *statements: str) -> None:
    """A run that looks at the catalogue behind these statements, and stages none of their changes of the partition."""
    items.execute(LEAF)
    items.drain()
    items.with_bounds(batch_rows=2)
    items.execute("INSERT INTO item VALUES (2, 1), (3, 1), (4, 1)", INTO, *statements)
    items.drain(run_s=0)
    assert [row["part"] for row in items.staged("public.item")] == [1, 1, 1, 1]
    assert reason(items) == "1 partition was detached or dropped"
    filled(items)


def test_one_that_a_look_missed_is_not_marked_again_when_its_changes_come(items: Pipeline) -> None:
    cut_off(items, "DROP TABLE item_3")
    items.drain(run_s=0)
    items.drain()
    assert [row["id"] for row in items.staged("public.item")] == [1, 2, 3, 4, 9]
    assert reason(items) is None


def test_one_that_came_back_behind_the_look_that_missed_it_is_marked_again(items: Pipeline) -> None:
    cut_off(items, DETACH)
    items.execute(ATTACH, "INSERT INTO item VALUES (10, 3)", DETACH)
    items.drain()
    assert reason(items) == WENT


def test_one_that_came_beside_one_that_went_is_missed_by_the_next_run(
    items: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark for the one that went may be cleared by a backfill that read the rows of the other one."""
    another = LEAF.replace("3", "4"), INTO.replace("3", "4")
    behind_the_look(items, monkeypatch, LEAF, INTO, "DROP TABLE item_3", *another)
    assert reason(items) == WENT
    filled(items)
    items.execute("DROP TABLE item_4")
    items.drain()
    assert reason(items) == "1 partition was detached or dropped"


def test_one_that_came_in_a_run_whose_look_may_not_be_staged_marks_its_root(
    items: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends before its heartbeat, so that its look at the truncated leaves is none to compare with."""
    items.execute("CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2)")
    items.drain()
    items.with_bounds(batch_rows=2)
    items.execute("TRUNCATE item")
    behind_the_look(items, monkeypatch, LEAF, INTO, "INSERT INTO item VALUES (5, 1)", run_s=0)
    assert [row["id"] for row in items.staged("public.item")] == [1, None, 9]
    assert reason(items) == "a partition came while another was truncated"


@pytest.mark.thorough
def test_one_with_rows_that_came_behind_the_look_of_its_run_marks_it_at_once_and_once(
    items: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind_the_look(items, monkeypatch, TABLE, "INSERT INTO item_3 VALUES (3, 8)", ATTACH, INTO)
    assert reason(items) == "a partition was attached with what it held"
    filled(items)
    items.drain()
    assert reason(items) is None


@pytest.mark.thorough
@pytest.mark.parametrize("root", ["item", "other"])
def test_a_captured_table_that_was_a_partition_for_a_while_is_marked(items: Pipeline, root: str) -> None:
    items.execute(TABLE, "CREATE TABLE other (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)")
    items.with_tables("public.item", "public.item_3")
    items.sound()
    items.drain()
    filled(items)
    items.execute(
        ATTACH.replace(" item ", f" {root} "), INTO.replace("item", root), DETACH.replace(" item ", f" {root} ")
    )
    items.drain()
    assert "was a partition of another table for a while" in (reason(items, "public.item_3") or "")
    assert reason(items) == (WENT if root == "item" else None)


@pytest.mark.thorough
def test_a_partition_is_gone_once_its_detaching_began(items: Pipeline) -> None:
    """Between its two transactions the root does not show it any more."""
    items.execute(LEAF, INTO)
    items.drain()
    items.execute("BEGIN", "SELECT FROM item", session="in the way")
    items.execute("SET lock_timeout = '100ms'", session="concurrent")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        items.execute(f"{DETACH} CONCURRENTLY", session="concurrent")
    items.execute("COMMIT", session="in the way")
    assert items.query("SELECT id FROM item") == [(1,)]
    items.drain()
    assert reason(items) == "1 partition was detached or dropped"
    filled(items)
    items.execute(f"{DETACH} FINALIZE")
    items.drain()
    assert reason(items) is None


def test_a_delete_that_lacks_the_key_is_left_out_and_marks_the_root_with_every_batch(items: Pipeline) -> None:
    """Another column than the key names no row of current; the backfill finds which one it was."""
    items.execute("ALTER TABLE item ADD name int NOT NULL DEFAULT 7", "CREATE UNIQUE INDEX by_name ON item_1 (name)")
    items.execute("INSERT INTO item VALUES (2, 1, 8), (3, 1, 9)")
    items.drain()
    filled(items)
    items.with_bounds(batch_rows=1)
    items.execute("ALTER TABLE item_1 REPLICA IDENTITY USING INDEX by_name", "DELETE FROM item WHERE id = 2")
    items.execute("UPDATE item SET name = 10 WHERE id = 3", "UPDATE item SET name = 11 WHERE id = 1")
    items.execute("ALTER TABLE item_1 REPLICA IDENTITY DEFAULT", "DELETE FROM item WHERE id = 3")
    items.drain()
    life = items.table_row("public.item").life
    assert (life.merge, life.target) == ("merging", "needs_backfill")
    staged = [(row["_op"], row["id"], row.get("name"), row["_old_key"]) for row in items.staged("public.item")]
    assert staged[3:] == [("update", 3, 10, None), ("update", 1, 11, None), ("delete", 3, None, None)]
    said = [[mark.message for mark in manifest.marks] for manifest in items.manifests()[2:]]
    assert len(said) > 2
    assert all("which rows some changes were made to is not certain" in message for (message,) in said)


def test_a_partition_without_old_rows_under_a_root_that_has_nothing_else_stops_no_run(items: Pipeline) -> None:
    """An update that sends no old row at all is left out: rows without a key are told apart by all of their columns."""
    items.execute(
        "CREATE TABLE free (id int, part int) PARTITION BY LIST (part)", "ALTER TABLE free REPLICA IDENTITY FULL"
    )
    items.execute("CREATE TABLE free_1 PARTITION OF free FOR VALUES IN (1)", "ALTER TABLE free_1 REPLICA IDENTITY FULL")
    items.with_tables("public.item", "public.free")
    items.sound()
    items.execute("INSERT INTO free VALUES (1, 1), (2, 1), (3, 1)")
    items.drain()
    filled(items)
    items.execute("ALTER TABLE free_1 ADD PRIMARY KEY (id)", "ALTER TABLE free_1 REPLICA IDENTITY DEFAULT")
    items.execute("DELETE FROM free WHERE id = 2", "UPDATE free SET id = 4 WHERE id = 3", "UPDATE free SET part = 1")
    items.execute("ALTER TABLE free_1 REPLICA IDENTITY FULL", "DELETE FROM free WHERE id = 1")
    items.drain()
    assert [row["_op"] for row in items.staged("public.free")[3:]] == ["delete", "update", "delete"]
    assert "which rows some changes were made to is not certain" in (reason(items, "public.free") or "")


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (
            "USING INDEX by_name",
            "a partition had another replica identity: which rows some changes were made to is not",
        ),
        pytest.param("FULL", None, marks=pytest.mark.thorough),
    ],
)
def test_a_partition_with_another_replica_identity_marks_its_root_though_it_is_as_before_again(
    items: Pipeline, identity: str, expected: str | None
) -> None:
    """The key moves, and no old one is sent: by the stream alone there would be two rows."""
    items.execute("ALTER TABLE item ADD name int NOT NULL DEFAULT 7", "CREATE UNIQUE INDEX by_name ON item_1 (name)")
    items.execute("UPDATE item SET name = 8")
    items.drain()
    filled(items)
    items.execute(f"ALTER TABLE item_1 REPLICA IDENTITY {identity}", "UPDATE item SET id = 5")
    items.execute("ALTER TABLE item_1 REPLICA IDENTITY DEFAULT", "UPDATE item SET name = 9")
    items.drain()
    marked = reason(items)
    assert marked is None if expected is None else (marked or "").startswith(expected)
    assert items.table_row("public.item").life.merge == "merging"


def test_a_partition_that_sends_keys_alone_under_a_root_of_whole_rows_marks_it(items: Pipeline) -> None:
    """What it leaves out of an old row looks like NULL, also where a long value is not sent again."""
    items.execute("ALTER TABLE item ADD body text", "ALTER TABLE item ALTER body SET STORAGE EXTERNAL")
    items.execute("ALTER TABLE item REPLICA IDENTITY FULL", "ALTER TABLE item_1 REPLICA IDENTITY FULL")
    items.execute("INSERT INTO item VALUES (2, 1, repeat('b', 3000))")
    items.sound()
    items.drain()
    filled(items)
    items.execute("ALTER TABLE item_1 REPLICA IDENTITY DEFAULT", "UPDATE item SET id = 5 WHERE id = 2")
    items.execute("ALTER TABLE item_1 REPLICA IDENTITY FULL")
    items.drain()
    assert "which rows some changes were made to is not certain" in (reason(items) or "")


@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_a_partition_that_is_published_by_itself_is_no_table(pipeline: Pipeline, publication: str) -> None:
    """A pattern names it, and preflight refuses it: with its changes alone it would be a table that lacks rows, and
    that nobody says so of."""
    root = "roots.item" if "SCHEMA" in publication else "public.item"
    pipeline.with_tables(TableRule("public.*"))
    pipeline.execute(
        "CREATE SCHEMA roots",
        f"CREATE TABLE {root} (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
        f"CREATE TABLE item_1 PARTITION OF {root} FOR VALUES IN (1)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        f"INSERT INTO {root} VALUES (1, 1)",
        f"CREATE PUBLICATION {pipeline.config.publication} {publication}",
    )
    pipeline.create_slot()
    pipeline.preflight()
    pipeline.execute(f"INSERT INTO {root} VALUES (2, 1)", "INSERT INTO other VALUES (1)")
    pipeline.drain()
    assert [t.table for manifest in pipeline.manifests() for t in manifest.tables] == ["public.other"]
    assert list(pipeline.table_rows()) == ["public.other"]
