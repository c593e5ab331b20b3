"""A table in another shape takes the place of the old one, for readers, backfills, maintenance and other tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from tests.capture.definitions.reshaped_items import TYPE, TYPE_BACK, Items
from tests.support.pipeline import Pipeline
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.capture import complete_tables
from tidemark.capture import drain as drain_module
from tidemark.capture.definitions.marks import passed_over_marks
from tidemark.capture.driver_shares import spread
from tidemark.capture.merge_planning import PlanScope
from tidemark.capture.preflight import preflight_report as preflight_module
from tidemark.capture.waiting import changes_waiting
from tidemark.config import TableRule
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import merge_states, put_aside, unfit_values
from tidemark.ledger.captured import successors as shapes
from tidemark.maintenance.staging_cleanup import retire
from tidemark.observe import table_commands
from tidemark.observe.health import judge_by_ledger
from tidemark.schema.table_life import LEFT

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
        health = judge_by_ledger(book, items.config)
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
        merge_states.unpark(book, "public.item")
        merge_states.park(book, "public.item", ErrorRecord("SchemaVersionsDiffer", "BACKFILL", "a test"))
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
        merge_states.park(book, "public.item", ErrorRecord("TargetDiffers", "FIX_TARGET", "a test"))
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
        (concern,) = [one for one in judge_by_ledger(book, items.config).of("note") if one.kind == "parked"]
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
        health = judge_by_ledger(book, items.config)
    (concern,) = [concern for concern in health.of("warning") if concern.table == "public.item~2"]
    assert (one.builds, concern.kind) == (True, "another shape")
    items.with_tables(TableRule("public.item", evolve="follow"), TableRule("public.thing", evolve="ask"))
    with items.ledger_connection() as book:
        health = judge_by_ledger(book, items.config)
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
        health = judge_by_ledger(book, pipeline.config)
    assert "another shape" in {concern.kind for concern in health.concerns if concern.table == "public.odd~2"}
    assert "unfit values" not in {concern.kind for concern in health.concerns}
