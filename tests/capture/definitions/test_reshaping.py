"""A relation whose Delta tables cannot take its shape any more is kept as another table from a position on (R11)."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.capture.definitions.reshaped_items import EACH_KIND, KINDS, TYPE, TYPE_BACK, Items
from tests.support.pipeline import Pipeline
from tidemark.capture import drain as drain_module
from tidemark.ledger.captured import definition_changes
from tidemark.ledger.captured import successors as shapes
from tidemark.names import TableName
from tidemark.observe.table_commands import pause, resume
from tidemark.schema.table_life import LEFT

# --- what the stream shows --------------------------------------------------------------------------------------------


@EACH_KIND
def test_changes_behind_the_alteration_are_another_tables(items: Items, kind: str) -> None:
    items.insert()
    items.execute(KINDS[kind])
    items.insert()
    items.drain()
    assert (items.ids(), items.ids("~2"), items.kept_as()) == ([1, 2], [3], ["public.item~2"])
    assert (items.row().life.capture, items.row().life.merge) == (LEFT, "merging")
    assert items.row("~2").backfill_kind == shapes.ANOTHER_SHAPE
    items.sound()
    assert items.row("~2").life.may_be_backfilled
    assert items.row("~2").life.needs_backfill, "also where it is seen empty"
    items.insert()
    items.drain()
    assert (items.ids("~2"), list(items.shapes())) == ([3, 4], ["public.item~2"])


@pytest.mark.thorough
def test_an_alteration_between_changes_of_one_transaction_divides_them(items: Items) -> None:
    items.execute("BEGIN")
    items.insert()
    items.execute(TYPE)
    items.insert()
    items.execute("COMMIT")
    items.drain()
    assert (items.ids(), items.ids("~2")) == ([1, 2], [3])


@pytest.mark.thorough
def test_what_was_decided_is_kept_with_both_definitions(items: Items) -> None:
    items.execute(TYPE)
    items.insert()
    items.drain()
    with items.ledger_connection() as book:
        (change,) = definition_changes.of_table(book, "public.item~2")
    assert (change.decided, change.before, change.after) == ("rebuilt", 1, 1)
    assert 'column "number" changed from integer (int) to text (string)' in change.reason
    assert f"beside public.item~1, which readers see as of {items.shapes()['public.item~2'].begun_lsn}" in change.reason


@pytest.mark.thorough
def test_a_table_that_the_file_does_not_have_followed_is_parked(items: Items) -> None:
    items.evolve("ask")
    items.execute(TYPE)
    items.insert()
    items.drain()
    assert (items.kept_as(), items.row().life.merge) == (["public.item"], "parked")
    items.evolve("follow")
    items.insert()
    items.drain()
    assert (items.kept_as(), items.ids()) == (["public.item~2"], [1, 2, 3]), "as of the heartbeat"
    items.insert()
    items.drain()
    assert items.ids("~2") == [4]


@pytest.mark.thorough
def test_an_alteration_back_is_another_one(items: Items) -> None:
    items.execute(TYPE)
    items.insert()
    items.drain()
    items.execute(TYPE_BACK)
    items.insert()
    items.drain()
    assert (items.ids(), items.ids("~2"), items.ids("~3")) == ([1], [2], [3])
    shape = items.shapes()["public.item~3"]
    assert (shape.before, shape.beside) == ("public.item~2", "public.item")
    assert items.row("~2").life.capture == LEFT


@pytest.mark.parametrize("batches", ["in one batch", pytest.param("in a batch each", marks=pytest.mark.thorough)])
def test_two_alterations_in_one_run_are_two(items: Items, batches: str) -> None:
    if batches == "in a batch each":
        items.with_bounds(batch_rows=1)
    items.execute(TYPE)
    items.insert()
    items.execute(TYPE_BACK)
    items.insert()
    items.drain()
    assert (items.ids("~2"), items.ids("~3"), items.kept_as()) == ([2], [3], ["public.item~3"])
    assert {t: (s.before, s.beside) for t, s in items.shapes().items()} == {
        "public.item~2": ("public.item", "public.item"),
        "public.item~3": ("public.item~2", "public.item"),
    }
    items.sound()
    assert {t: row.life.capture for t, row in items.table_rows().items()} == {
        "public.item": "left",
        "public.item~2": "left",
        "public.item~3": "captured",
    }


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["drain.before_manifest", "drain.before_register"])
def test_a_drain_that_dies_leaves_the_relation_as_it_was(
    items: Items, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """What has its manifest is registered by the next drain, what has none is read again."""

    def dies(name: str) -> None:
        if name == point:
            raise RuntimeError(name)

    items.execute(TYPE)
    items.insert()
    monkeypatch.setattr(drain_module, "reach", dies)
    with pytest.raises(RuntimeError):
        items.drain()
    assert (items.kept_as(), items.shapes(), items.row().life.capture) == (["public.item"], {}, "captured")
    monkeypatch.undo()
    # What takes the name meanwhile takes no id that the drain has chosen.
    items.execute("ALTER TABLE item RENAME TO thing", "CREATE TABLE item (id int PRIMARY KEY)")
    items.execute("INSERT INTO item VALUES (10)")
    items.drain()
    assert (items.ids("~2"), items.ids("~3")) == ([2], [10])
    assert list(items.shapes()) == ["public.item~2"]


@pytest.mark.thorough
def test_another_table_of_the_name_takes_no_place_that_is_chosen(items: Items) -> None:
    items.execute("BEGIN", TYPE)
    items.insert()
    items.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY, number int)")
    items.insert()
    items.execute("COMMIT")
    items.drain()
    assert (items.ids("~2"), items.ids("~3")) == ([3], [2]), "the look at the catalogue came first"


@pytest.mark.thorough
def test_a_paused_table_stays_paused_until_it_is_resumed(items: Items) -> None:
    pause(items.config, "public.item", ledger=items.ledger, who="somebody")
    items.execute(TYPE)
    items.insert()
    items.drain()
    assert (items.row().life.merge, items.row("~2").life.merge) == ("paused", "paused")
    resume(items.config, "public.item", ledger=items.ledger)
    assert (items.row().life.merge, items.row("~2").life.merge) == ("merging", "merging")


# --- what the catalogue alone shows -----------------------------------------------------------------------------------


@EACH_KIND
def test_an_alteration_without_a_change_behind_it_counts_from_the_heartbeat_on(items: Items, kind: str) -> None:
    items.insert()
    items.execute(KINDS[kind])
    items.drain()
    assert (items.ids(), items.ids("~2"), items.kept_as()) == ([1, 2], [], ["public.item~2"])
    assert items.shapes()["public.item~2"].begun_lsn == items.staged_lsn()
    assert not items.row().life.needs_backfill, "as of there it is whole"
    items.insert()
    items.drain()
    assert (items.ids("~2"), list(items.shapes())) == ([3], ["public.item~2"])


def test_a_run_that_ends_before_its_heartbeat_leaves_it_to_the_next(items: Items) -> None:
    items.insert()
    items.insert()
    items.execute(TYPE)
    items.with_bounds(batch_rows=1)
    assert not items.drain(run_s=0).reached_target
    assert (items.kept_as(), items.row().life.needs_backfill) == (["public.item"], False)
    items.drain()
    assert (items.ids(), items.kept_as()) == ([1, 2, 3], ["public.item~2"])


@pytest.mark.thorough
def test_a_silent_alteration_there_and_back_costs_a_pair_and_no_row(items: Items) -> None:
    items.execute(TYPE)
    items.drain()
    items.execute(TYPE_BACK)
    items.insert()
    items.drain()
    items.sound()
    assert (items.ids("~2"), items.ids("~3")) == ([], [2])
    assert items.row("~3").life.needs_backfill


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["type", "key"])
def test_an_alteration_that_its_join_saw_first_is_another_one(items: Items, kind: str) -> None:
    """The preflight keeps its look at a table that joins, so that of the drain shows no difference; and what a chunk
    has read in the other shape must not be merged under this one."""
    back = {"type": TYPE_BACK, "key": "ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (id)"}
    items.execute(KINDS[kind])
    items.insert()
    items.drain()
    items.execute(back[kind])
    items.sound()
    items.plan(tables=("public.item~2",))
    items.read()
    items.drain()
    assert items.kept_as() == ["public.item~3"]
    assert all(not table.claims for manifest in items.manifests() for table in manifest.tables)


@pytest.mark.thorough
def test_what_was_only_marked_under_ask_goes_on_beside_once_it_is_followed(items: Items) -> None:
    items.evolve("ask")
    items.execute(TYPE)
    items.drain()
    assert (items.kept_as(), items.row().life.needs_backfill) == (["public.item"], True)
    items.evolve("follow")
    items.drain()
    assert items.kept_as() == ["public.item~2"]


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["before the run", "behind its look at the catalogue"])
def test_a_key_that_goes_under_full_is_seen_though_no_message_says_so(
    items: Items, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    items.execute("ALTER TABLE item REPLICA IDENTITY FULL")
    items.insert()
    items.drain()
    emit = drain_module.emit_heartbeat

    def alter() -> None:
        items.execute("ALTER TABLE item DROP CONSTRAINT item_pkey", "INSERT INTO item VALUES (2, 20)")

    def altered_first(*arguments: Any) -> Any:
        alter()
        return emit(*arguments)

    if when == "before the run":
        alter()
    else:
        monkeypatch.setattr(drain_module, "emit_heartbeat", altered_first)
    items.drain()
    assert (items.ids(), items.ids("~2")) == ([1, 2], [2])


@pytest.mark.thorough
def test_a_key_of_a_root_that_is_not_valid_yet_is_no_other_shape_at_each_look(pipeline: Pipeline) -> None:
    """Nor is it for good: of partitions that lack it, it is made one by one."""
    pipeline.execute("CREATE TABLE item (id int NOT NULL, number int) PARTITION BY RANGE (id)")
    pipeline.execute("CREATE TABLE item_1 PARTITION OF item FOR VALUES FROM (0) TO (10)")
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.begin()
    pipeline.sound()
    pipeline.execute("INSERT INTO item VALUES (1, 1)")
    pipeline.drain()
    pipeline.execute("ALTER TABLE ONLY item ADD PRIMARY KEY (id)")
    for number in (2, 3, 4):
        pipeline.execute(f"INSERT INTO item VALUES ({number}, {number})")
        pipeline.drain()
        pipeline.sound()
    items = Items(pipeline)
    assert list(items.shapes()) == ["public.item~2"]
    items.fill("public.item~2")
    items.drain()
    is_sent = bool(items.one("SELECT current_setting('server_version_num')::int >= 180000"))
    assert items.row("~2").life.needs_backfill is is_sent, "what it has may be fewer rows than its source has"
    pipeline.execute("ALTER TABLE item_1 ADD PRIMARY KEY (id)", "ALTER INDEX item_pkey ATTACH PARTITION item_1_pkey")
    items.drain()
    items.fill("public.item~2")
    items.drain()
    assert not items.row("~2").life.needs_backfill


# --- chunks -----------------------------------------------------------------------------------------------------------


def test_a_chunk_in_the_new_shape_is_none_of_the_old_table(items: Items) -> None:
    (backfill,) = items.plan(tables=("public.item",))
    items.execute(TYPE)
    items.read()
    items.drain()
    (chunk,) = items.chunks(backfill)
    assert chunk.rejected is not None
    assert items.again(backfill).state_reason == shapes.FOLLOWED
    assert all(not table.claims for manifest in items.manifests() for table in manifest.tables)


@pytest.mark.thorough
def test_an_alteration_behind_the_look_of_a_run_rejects_the_chunk_too(
    items: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk was read, and its watermark written, between the look of the run and its heartbeat."""
    (backfill,) = items.plan(tables=("public.item",))
    emit = drain_module.emit_heartbeat

    def altered_first(*arguments: Any) -> Any:
        items.execute(TYPE)
        items.read()
        return emit(*arguments)

    monkeypatch.setattr(drain_module, "emit_heartbeat", altered_first)
    items.drain()
    monkeypatch.undo()
    assert items.chunks(backfill)[0].rejected is not None
    items.drain()
    assert (items.kept_as(), items.again(backfill).state) == (["public.item~2"], "closed")


# --- any order --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(13))
def test_every_change_is_staged_once_under_the_shape_that_it_had(
    items: Items, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever is altered between changes, wherever drains die: each table of the relation follows the one before,
    none has two shapes, and what is staged in all of them is what was written, in order."""
    rng = random.Random(seed)
    items.execute("ALTER TABLE item ADD note text")
    points = ["drain.before_files", "drain.before_manifest", "drain.before_register"]
    dying: list[str] = []

    def dies(name: str) -> None:
        if name in dying:
            raise RuntimeError(name)

    monkeypatch.setattr(drain_module, "reach", dies)
    shape = {"number": "int", "key": "id"}
    written: list[tuple[int, str, str]] = []

    def alter() -> str:
        what = rng.choice(["number", "key"])
        if what == "number":
            shape["number"] = rng.choice([one for one in ("int", "text", "date") if one != shape["number"]])
            if shape["number"] == "date":
                return "ALTER TABLE item ALTER number TYPE date USING '2000-01-01'::date + id"
            return f"ALTER TABLE item ALTER number TYPE {shape['number']} USING id::{shape['number']}"
        shape["key"] = "number" if shape["key"] == "id" else "id"
        return f"ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY ({shape['key']})"

    def insert() -> str:
        items.number += 1
        written.append((items.number, shape["number"], shape["key"]))
        value = f"'2000-01-01'::date + {items.number}" if shape["number"] == "date" else f"'{items.number}'"
        return f"INSERT INTO item VALUES ({items.number}, {value}, '{shape['number']} {shape['key']}')"

    for _ in range(10):
        for _ in range(rng.randrange(1, 4)):
            statements = [rng.choice([alter, insert, insert])() for _ in range(rng.randrange(1, 5))]
            items.execute(*(["BEGIN", *statements, "COMMIT"] if rng.random() < 0.5 else statements))
        items.with_bounds(batch_rows=rng.choice([1, 3, 100_000]))
        dying[:] = [rng.choice(points)] if rng.random() < 0.3 else []
        with contextlib.suppress(RuntimeError):
            items.drain(**({"run_s": 0} if rng.random() < 0.3 else {}))
        dying.clear()
        if rng.random() < 0.5:
            items.preflight()
    items.drain()
    tables = sorted(items.table_rows(), key=lambda table: TableName.parse(table).place)
    staged = [row for table in tables for row in items.pipeline.staged(table)]
    assert [row["id"] for row in staged[1:]] == [number for number, _, _ in written]
    assert [row["note"] for row in staged[1:]] == [f"{number} {key}" for _, number, key in written]
    for table in tables:
        assert len({row["note"] for row in items.pipeline.staged(table) if row.get("note")}) <= 1, table
    followed = {shape.before: shape.table for shape in items.shapes().values()}
    assert set(followed) == {*tables} - {items.kept_as()[0]}
    assert {shape.beside for shape in items.shapes().values()} <= {"public.item"}
