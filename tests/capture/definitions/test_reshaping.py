"""A relation whose Delta tables cannot take its shape any more is kept as another table from a position on (R11)."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from tests.support.pipeline import Pipeline
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.capture import complete_tables
from tidemark.capture import drain as drain_module
from tidemark.capture.definitions.marks import passed_over_marks
from tidemark.capture.driver_shares import spread
from tidemark.capture.merge_planning import PlanScope, ingest, make_plan
from tidemark.capture.preflight import preflight_report as preflight_module
from tidemark.capture.waiting import changes_waiting
from tidemark.config import Evolve, TableRule
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.ledger.captured import definition_changes, put_aside, tables, unfit_values
from tidemark.ledger.captured import successors as shapes
from tidemark.ledger.captured.successors import Successor
from tidemark.ledger.captured.tables import TableRow
from tidemark.maintenance.staging_cleanup import retire
from tidemark.names import TableName
from tidemark.observe import table_commands
from tidemark.observe.health import look
from tidemark.observe.table_commands import pause, resume
from tidemark.schema.table_life import LEFT

TYPE = "ALTER TABLE item ALTER number TYPE text USING 'number ' || number"
TYPE_BACK = "ALTER TABLE item ALTER number TYPE int USING length(number)"
KEY = "ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (number)"
IDENTITY = "ALTER TABLE item REPLICA IDENTITY USING INDEX item_number_idx"
KINDS = {"type": TYPE, "key": KEY, "identity": IDENTITY}
EACH_KIND = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "type" else pytest.mark.thorough) for kind in KINDS]
)


@dataclass
class Items:
    """One captured table with a staged row."""

    pipeline: Pipeline
    number: int = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipeline, name)

    def insert(self) -> int:
        self.number += 1
        self.pipeline.execute(f"INSERT INTO item VALUES ({self.number}, {self.number})")
        return self.number

    def ids(self, place: str = "") -> list[int]:
        return [row["id"] for row in self.pipeline.staged(f"public.item{place}")]

    def row(self, place: str = "") -> TableRow:
        return self.pipeline.table_row(f"public.item{place}")

    def kept_as(self) -> list[str]:
        return [table for (table,) in self.pipeline.ledger_query('SELECT "table" FROM tidemark.relations')]

    def shapes(self) -> dict[str, Successor]:
        with self.pipeline.ledger_connection() as book:
            return shapes.all_of(book)

    def evolve(self, how: Evolve) -> None:
        self.pipeline.config = replace(self.pipeline.config, evolve=how)

    def merge(self, *, noted: bool = True) -> MergePlan | None:
        """A plan, with the result of an application that came to its end."""
        plan = make_plan(self.pipeline.task("merge"))
        if plan is None:
            return None
        done = tuple(TableResult(t.table, t.end_lsn, t.end_lsn) for t in plan.tables)
        result = PlanResult(plan.plan, plan.pipeline, plan.generation, done, noted=noted)
        path = layout.result_file(plan.pipeline, plan.plan)
        self.pipeline.store.write_atomic(path, result.to_json().encode())
        ingest(self.pipeline.task("ingest"))
        return plan

    def fill(self, table: str) -> None:
        """As if a backfill had brought its rows."""
        self.pipeline.ledger_query(
            "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL, "
            'backfill_since = NULL WHERE "table" = %s',
            table,
        )


@pytest.fixture
def items(pipeline: Pipeline) -> Items:
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL)")
    pipeline.execute("CREATE UNIQUE INDEX item_number_idx ON item (number)")
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.begin()
    pipeline.sound()
    pipeline.execute("INSERT INTO item VALUES (1, 1)")
    pipeline.drain()
    return Items(pipeline)


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


# --- its place --------------------------------------------------------------------------------------------------------


def test_readers_see_the_other_table_by_its_name_once_it_is_whole(items: Items) -> None:
    items.merge()
    items.execute(TYPE)
    items.insert()
    items.drain()
    items.sound()
    plan = items.merge()
    assert plan is not None
    assert plan.level is not None
    assert plan.level.names["public.item~2"] is None
    items.fill("public.item~2")
    items.insert()
    items.drain()
    plan = items.merge(noted=False)
    assert plan is not None
    assert plan.level is not None
    assert plan.level.names["public.item~2"] == "public.item"
    assert items.shapes()["public.item~2"].placed_at is None, "`_positions` does not say so"
    items.insert()
    items.drain()
    items.merge()
    assert items.shapes()["public.item~2"].placed_at is not None


def test_the_capture_starts_the_backfill_of_what_it_builds(items: Items) -> None:
    items.execute(TYPE)
    items.insert()
    items.drain()
    items.sound()
    (one,) = requested_tables(items.task())
    assert (one.table, one.builds) == ("public.item~2", True)
    with items.ledger_connection() as book:
        health = look(book, items.config)
    (concern,) = [concern for concern in health.of("warning") if concern.table == "public.item~2"]
    assert "_capture starts its backfill" in concern.line
    items.evolve("freeze")
    assert not requested_tables(items.task())[0].builds


@pytest.mark.thorough
def test_maintenance_removes_what_was_replaced(items: Items) -> None:
    items.merge()
    for statement in (TYPE, TYPE_BACK):
        items.execute(statement)
        items.insert()
        items.drain()
    items.sound()
    items.fill("public.item~3")
    items.merge()
    items.insert()
    items.drain()
    items.merge()
    assert items.shapes()["public.item~3"].placed_at is not None
    folders = [f"{kind}/public/item{place}" for kind in ("current", "history") for place in ("", "-p2", "-p3")]
    for folder in folders:
        items.store.write_atomic(f"{items.config.pipeline}/{folder}/_delta_log/0.json", b"{}")

    def there() -> list[str]:
        return [folder for folder in folders if items.store.list(f"{items.config.pipeline}/{folder}/_delta_log")]

    days = items.config.maintenance.put_aside_days
    placed_at = items.shapes()["public.item~3"].placed_at
    assert days is not None
    assert placed_at is not None
    items.sound()  # nothing waits for them
    assert retire(items.task(now=lambda: placed_at + timedelta(days=days, seconds=-1))).removed == []
    assert there() == folders
    after = retire(items.task(now=lambda: placed_at + timedelta(days=days, seconds=1)))
    assert sorted(after.removed) == ["public.item", "public.item~2"]
    assert there() == ["current/public/item-p3", "history/public/item-p3"]


@pytest.mark.thorough
def test_a_preflight_that_looked_before_the_drain_takes_the_table_for_what_it_is(
    items: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain is another DAG's, between the preflight's look at the relations and its lease."""
    items.execute(TYPE)
    items.insert()
    hold = preflight_module.hold
    drained = []

    def drained_first(*arguments: Any, **options: Any) -> Any:
        if not drained:
            drained.append(items.drain())
        return hold(*arguments, **options)

    items.execute("CREATE TABLE later (id int PRIMARY KEY)")  # something to act for
    monkeypatch.setattr(preflight_module, "hold", drained_first)
    items.sound()
    assert (items.row().life.capture, items.row("~2").life.capture) == (LEFT, "captured")
    assert items.row("~2").backfill_kind == shapes.ANOTHER_SHAPE


# --- what waits for nobody --------------------------------------------------------------------------------------------


def test_the_name_changes_hands_where_nothing_is_merged_any_more(items: Items) -> None:
    items.merge()
    items.execute(TYPE)
    items.drain()
    items.sound()
    items.merge()
    items.fill("public.item~2")
    with items.ledger_connection() as book:
        assert complete_tables.awaiting_their_name(book) == {"public.item~2"}
    (share,) = spread(items.task(), PlanScope())
    assert share.tables == ("public.item~2",)
    assert "whole" in changes_waiting(items.config, source=items.source, ledger=items.ledger).reason
    plan = items.merge()
    assert plan is not None
    assert plan.level is not None
    assert (plan.tables, plan.level.names) == ((), {"public.item~2": "public.item"})
    assert items.shapes()["public.item~2"].placed_at is not None
    assert items.merge() is None


def test_a_dropped_table_takes_along_what_its_shape_was_built_beside(items: Items) -> None:
    items.merge()
    items.execute(TYPE)
    items.insert()
    items.drain()
    items.sound()
    items.merge()
    items.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    items.drain()
    items.sound()
    items.merge()
    items.sound()
    with items.ledger_connection() as book:
        assert {pair.table for pair in put_aside.all_of(book)} == {"public.item", "public.item~2"}
    assert items.kept_as() == ["public.item~2", "public.item~3"]


@pytest.mark.parametrize("kept", ["there and back", pytest.param("altered", marks=pytest.mark.thorough)])
def test_a_table_whose_staged_definitions_do_not_fit_goes_on_beside(items: Items, kept: str) -> None:
    """As an older version staged them, or a merge that took a column's type for another one's."""
    if kept == "altered":
        items.evolve("ask")
        items.execute(TYPE)
        items.insert()
        items.drain()
        items.evolve("follow")
    with items.ledger_connection() as book:
        tables.unpark(book, "public.item")
        tables.park(book, "public.item", ErrorRecord("SchemaVersionsDiffer", "BACKFILL", "a test"))
    items.drain()
    assert (items.kept_as(), items.row("~2").backfill_kind) == (["public.item~2"], shapes.ANOTHER_SHAPE)
    items.drain()
    items.sound()
    items.fill("public.item~2")
    items.merge()
    assert items.shapes()["public.item~2"].placed_at is not None
    assert not items.row().life.is_parked, "nothing reads it any more, and what waits of it fits into nothing"


@pytest.mark.thorough
def test_an_old_table_that_is_parked_for_another_reason_stays_so_until_somebody_says(items: Items) -> None:
    """What waits of it stands in no other history."""
    with items.ledger_connection() as book:
        tables.park(book, "public.item", ErrorRecord("TargetDiffers", "FIX_TARGET", "a test"))
    items.execute(TYPE)
    items.insert()
    items.drain()
    items.sound()
    items.fill("public.item~2")
    items.merge()
    items.sound()
    assert items.shapes()["public.item~2"].placed_at is not None
    assert (items.row().life.merge, items.row().life.capture) == ("parked", LEFT)
    with items.ledger_connection() as book:
        (concern,) = [one for one in look(book, items.config).of("note") if one.kind == "parked"]
    assert concern.table == "public.item~1"
    assert any("unpark" in way and "public.item~1" in way for way in concern.ways)
    sentence, done = table_commands.pass_over(items.config, "public.item~1", ledger=items.ledger)
    assert done, sentence
    items.sound()
    with items.ledger_connection() as book:
        assert [pair.table for pair in put_aside.all_of(book)] == ["public.item"]


@pytest.mark.thorough
def test_what_was_passed_over_before_is_brought_by_the_backfill_of_its_shape(
    items: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that comes first, in the same manifest or in one before, does not keep the capture from starting it."""
    items.execute(TYPE)
    manifest = drain_module.Draining._manifest

    def passed_over_first(*arguments: Any) -> Any:
        made = manifest(*arguments)
        marks = tuple(mark for one in made.marks for mark in (*passed_over_marks([one.table]), one))
        return structs.replace(made, marks=marks)

    monkeypatch.setattr(drain_module.Draining, "_manifest", passed_over_first)
    items.insert()
    items.drain()
    items.sound()
    (one,) = requested_tables(items.task())
    assert (one.table, one.builds) == ("public.item~2", True)


@pytest.mark.thorough
def test_a_renamed_table_is_built_as_its_own_rule_says(items: Items) -> None:
    """`evolve` of what the source calls it now: capture and health ask for the same name."""
    items.execute(TYPE)
    items.insert()
    items.drain()
    items.execute("ALTER TABLE item RENAME TO thing")
    items.with_tables(TableRule("public.item", evolve="ask"), TableRule("public.thing", evolve="follow"))
    items.sound()
    items.drain()
    (one,) = requested_tables(items.task())
    with items.ledger_connection() as book:
        health = look(book, items.config)
    (concern,) = [concern for concern in health.of("warning") if concern.table == "public.item~2"]
    assert (one.builds, concern.kind) == (True, "another shape")
    items.with_tables(TableRule("public.item", evolve="follow"), TableRule("public.thing", evolve="ask"))
    with items.ledger_connection() as book:
        health = look(book, items.config)
    assert not requested_tables(items.task())[0].builds
    assert [concern.kind for concern in health.of("red") if concern.table == "public.item~2"] == ["needs a backfill"]


@pytest.mark.thorough
def test_without_a_ledger_no_relation_takes_the_tables_of_a_shape_that_it_knows_nothing_of(items: Items) -> None:
    """Of a quiet table no manifest names the place: it begins anew beside what is there."""
    for folder in ("current/public/item", "history/public/item", "history/public/item-p2"):
        items.store.write_atomic(f"{items.config.pipeline}/{folder}/_delta_log/0.json", b"{}")
    items.ledger_query("DELETE FROM tidemark.relations")
    items.ledger_query("DELETE FROM tidemark.batch_tables")
    items.ledger_query("DELETE FROM tidemark.schema_versions")
    items.ledger_query("DELETE FROM tidemark.positions")
    items.ledger_query("DELETE FROM tidemark.tables")
    items.sound()
    assert items.kept_as() == ["public.item~3"]
    assert items.row("~3").life.needs_backfill


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


def test_a_column_that_is_captured_as_text_has_no_values_that_did_not_fit(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE odd (id int PRIMARY KEY, n numeric(10,2))")
    pipeline.begin()
    pipeline.execute("INSERT INTO odd VALUES (1, 'NaN')")
    pipeline.drain()
    pipeline.with_tables(TableRule("public.odd", target={"n": "string"}))
    pipeline.sound()
    pipeline.drain()
    with pipeline.ledger_connection() as book:
        assert unfit_values.all_of(book) == {"public.odd": {"n": 1}}
        health = look(book, pipeline.config)
    assert "another shape" in {concern.kind for concern in health.concerns if concern.table == "public.odd~2"}
    assert "unfit values" not in {concern.kind for concern in health.concerns}
