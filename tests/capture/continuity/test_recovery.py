"""What staging gives back to a ledger that is behind it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import own_slot
from tests.support.hand_staged import TABLE, HandStaged
from tests.support.manifests import path_of, plan_of
from tests.support.pipeline import Pipeline
from tidemark.errors import ChangesGone
from tidemark.formats import layout
from tidemark.formats.manifest import BatchManifest, TableMark
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult
from tidemark.ledger.captured import backfill_marks, tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.migrations import migrate
from tidemark.ledger.staged import batches, plans
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.storage.small_reads import READERS


def forget(capture: HandStaged, *above: BatchManifest) -> None:
    """Put the ledger back to before these batches were registered."""
    for manifest in reversed(above):
        capture.ledger_query("DELETE FROM tidemark.batch_tables WHERE end_lsn = %s", manifest.end_lsn)
        capture.ledger_query("DELETE FROM tidemark.batches WHERE end_lsn = %s", manifest.end_lsn)
        capture.ledger_query("UPDATE tidemark.generations SET staged_lsn = %s", manifest.start_lsn)


def lose(capture: HandStaged) -> None:
    capture.ledger_query("DROP SCHEMA tidemark CASCADE")
    migrate(capture.ledger)


def attempts(capture: HandStaged) -> list[str]:
    with open_ledger(capture.ledger, capture.config.pipeline) as book:
        return [b.attempt for b in batches.after(book, capture.generation().number, Lsn(0))]


def test_batches_that_a_restored_ledger_does_not_know_are_registered_again(capture: HandStaged) -> None:
    capture.settle()
    registered = capture.stage(TABLE)
    unknown = [capture.stage(TABLE), capture.stage()]
    capture.advance(unknown[-1].end_lsn)
    forget(capture, *unknown)
    generation = capture.settle()
    assert (generation.number, generation.staged_lsn) == (1, unknown[-1].end_lsn)
    assert attempts(capture) == [m.attempt for m in (registered, *unknown)]


@pytest.mark.parametrize("how", ["renamed", "created again"])
def test_an_id_that_a_restored_ledger_gave_before_it_knew_the_relations_own_is_gone(
    captured: Pipeline, new_database: Callable[..., str], how: str
) -> None:
    """The preflight comes before the drain that registers what staging has."""
    captured.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    captured.capture()
    captured.drain()
    older = new_database("older", like=captured.ledger)
    if how == "renamed":
        captured.execute("CREATE TABLE lines (id int PRIMARY KEY)")
        kept_as, called = "public.lines", "public.items"
    else:
        captured.execute("DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY)")
        kept_as, called = "public.orders~2", "public.orders"
    captured.capture()
    captured.execute(f"INSERT INTO {TableName.parse(kept_as).at_source} VALUES (1)")
    captured.drain()
    if how == "renamed":
        captured.execute("ALTER TABLE lines RENAME TO items")
    else:
        captured.store.write_new(
            f"{layout.current_table(captured.config.pipeline, TableName.parse(kept_as))}/made", b"by a merge"
        )
    known = set(captured.table_rows())
    captured.ledger = older
    captured.capture()
    assert set(captured.table_rows()) - known, "the preflight gave no id"
    captured.drain()
    captured.capture()
    assert set(captured.table_rows()) == known
    assert captured.ledger_query('SELECT name FROM tidemark.relations WHERE "table" = %s', kept_as) == [(called,)]


@pytest.mark.thorough
def test_a_lost_ledger_is_built_again_with_few_manifests_in_memory(
    capture: HandStaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hundreds of tables one takes megabytes, and there are as many as staging keeps batches of a generation."""
    capture.settle()
    staged = [capture.stage(TABLE) for _ in range(3 * READERS)]
    names = [manifest.attempt for manifest in staged]
    plans_of = [plan_of(f"p{number}", manifest) for number, manifest in enumerate(staged)]
    for plan in plans_of:
        capture.store.write_atomic(layout.plan_file("shop", plan.plan), plan.to_json().encode())
        capture.store.write_atomic(layout.result_file("shop", plan.plan), b"{}")
    lose(capture)
    del staged, plans_of, plan
    before, most, times = in_memory(), dict[str, int](), Counter[str]()

    def watch(module: ModuleType, name: str) -> None:
        called = getattr(module, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            times[name] += 1
            if times[name] % READERS == 0:  # to look at all there is in memory takes a while
                most[name] = max(most.get(name, 0), in_memory() - before)
            return called(*args, **kwargs)

        monkeypatch.setattr(module, name, watched)

    watch(batches, "register")
    watch(plans, "record_from_lake")
    capture.settle()
    assert attempts(capture) == names
    assert most.keys() == {"register", "record_from_lake"}
    assert max(most.values()) <= 2 * READERS


def test_a_plan_that_is_gone_when_its_turn_comes_ends_nothing(
    capture: HandStaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance removes it without the drain's lease. One whose result comes meanwhile is found like any other."""
    capture.settle()
    staged = capture.stage(TABLE)
    gone, late = (plan_of(name, staged) for name in ("gone", "late"))
    for plan in (gone, late):
        capture.store.write_atomic(layout.plan_file("shop", plan.plan), plan.to_json().encode())
    capture.store.write_atomic(layout.result_file("shop", gone.plan), b"{}")
    lose(capture)
    register = batches.register

    def meanwhile(*args: Any, **kwargs: Any) -> bool:
        capture.store.delete(layout.plan_file("shop", gone.plan))
        capture.store.write_atomic(layout.result_file("shop", late.plan), b"{}")
        return register(*args, **kwargs)

    monkeypatch.setattr(batches, "register", meanwhile)
    capture.settle()
    assert attempts(capture) == [staged.attempt]
    with open_ledger(capture.ledger, "shop") as book:
        assert plans.recorded(book) == {late.plan}


def in_memory() -> int:
    """How many manifests and plans there are."""
    gc.collect()
    return sum(isinstance(each, BatchManifest | MergePlan) for each in gc.get_objects())


def test_a_manifest_without_all_its_files_is_not_registered_and_what_it_held_is_a_gap(capture: HandStaged) -> None:
    capture.settle()
    complete, broken = capture.stage(TABLE), capture.stage(TABLE)
    capture.advance(broken.end_lsn)
    forget(capture, complete, broken)
    capture.store.delete(broken.tables[0].files[0].path)
    with pytest.raises(ChangesGone, match=str(complete.end_lsn)):
        capture.settle()
    with open_ledger(capture.ledger, capture.config.pipeline) as book:
        row = tables.one(book, TABLE)
    assert row is not None
    assert row.backfill_kind == backfill_marks.GAP
    assert capture.settle().number == 2


def test_a_half_written_manifest_is_none(capture: HandStaged) -> None:
    capture.settle()
    left = capture.stage(TABLE, register=False)
    text = capture.store.read(path_of(left))
    capture.store.write_atomic(path_of(left), text[: len(text) // 2])
    assert capture.settle().staged_lsn == left.start_lsn


def test_a_batch_whose_drain_died_before_registering_is_registered_by_the_next(capture: HandStaged) -> None:
    capture.settle()
    left = capture.stage(TABLE, register=False)
    assert capture.settle().staged_lsn == left.end_lsn
    assert attempts(capture) == [left.attempt]


def test_of_two_with_one_start_the_one_that_goes_on_is_taken(capture: HandStaged) -> None:
    capture.settle()
    first = capture.stage(TABLE)
    second = capture.stage(TABLE)
    forget(capture, first, second)
    capture.stage(TABLE, register=False, end=Lsn(second.start_lsn + 8))
    assert capture.settle().staged_lsn == second.end_lsn
    assert attempts(capture) == [first.attempt, second.attempt]


def test_of_two_with_one_start_the_one_that_a_plan_names_is_taken(capture: HandStaged) -> None:
    capture.settle()
    merged = capture.stage(TABLE)
    forget(capture, merged)
    capture.stage(TABLE, register=False)
    plan = plan_of("p1", merged)
    capture.store.write_atomic(layout.plan_file("shop", "p1"), plan.to_json().encode())
    assert capture.settle().staged_lsn == merged.end_lsn
    assert attempts(capture) == [merged.attempt]


def test_a_plan_that_the_ledger_forgot_is_ingested_if_it_has_a_result(capture: HandStaged) -> None:
    capture.settle()
    merged = capture.stage(TABLE)
    forget(capture, merged)
    for name in ("p1", "p2"):
        plan = plan_of(name, merged)
        capture.store.write_atomic(layout.plan_file("shop", name), plan.to_json().encode())
    result = PlanResult(plan="p1", pipeline="shop", generation=1, tables=())
    capture.store.write_atomic(layout.result_file("shop", "p1"), result.to_json().encode())
    capture.settle()
    with open_ledger(capture.ledger, capture.config.pipeline) as book:
        assert [p.plan for p in plans.not_ingested(book)] == ["p1"]


def test_a_lost_ledger_is_rebuilt_from_staging(capture: HandStaged) -> None:
    capture.settle()
    staged = [capture.stage(TABLE), capture.stage()]
    capture.advance(staged[0].end_lsn)
    lose(capture)
    generation = capture.settle()
    assert (generation.number, generation.start_lsn) == (1, staged[0].start_lsn)
    assert attempts(capture) == [m.attempt for m in staged]


def test_a_lost_ledger_begins_where_the_retention_left_staging(capture: HandStaged) -> None:
    capture.settle()
    applied, kept = capture.stage(TABLE), capture.stage(TABLE)
    capture.store.delete(layout.batch_folder("shop", 1, applied.start_lsn, applied.attempt))
    lose(capture)
    generation = capture.settle()
    assert (generation.start_lsn, generation.staged_lsn) == (kept.start_lsn, kept.end_lsn)


def test_a_lost_ledger_without_the_batches_says_that_changes_are_gone(capture: HandStaged) -> None:
    capture.settle()
    batch = capture.stage(TABLE)
    capture.store.delete(layout.batch_folder("shop", 1, batch.start_lsn, batch.attempt))
    capture.advance()
    lose(capture)
    with pytest.raises(ChangesGone):
        capture.settle()
    assert capture.settle().number == 2


def test_a_number_is_never_given_again_whatever_staging_lost(capture: HandStaged) -> None:
    """The Delta tables' transactions are named by it: with a lower LSN a batch would be taken as applied."""
    capture.settle()
    capture.stage(TABLE)
    capture.store.delete(layout.generation_file("shop", 1))
    lose(capture)
    own_slot.note(capture.config, capture.source, capture.ledger)  # nothing but a person can say so
    assert capture.settle().number == 2


def test_a_restored_ledger_opens_the_generations_it_does_not_know(capture: HandStaged) -> None:
    capture.settle()
    capture.stage(TABLE)
    capture.write()
    capture.advance()
    with pytest.raises(ChangesGone):
        capture.settle()
    newer = capture.stage(TABLE)
    capture.ledger_query("DELETE FROM tidemark.batch_tables WHERE generation = 2")
    capture.ledger_query("DELETE FROM tidemark.batches WHERE generation = 2")
    capture.ledger_query("DELETE FROM tidemark.generations WHERE number = 2")
    capture.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL"
    )
    with pytest.raises(ChangesGone):
        capture.settle()
    assert (capture.generation().number, capture.generation().staged_lsn) == (2, newer.end_lsn)
    with open_ledger(capture.ledger, capture.config.pipeline) as book:
        row = tables.one(book, TABLE)
    assert row is not None
    assert row.life.needs_backfill
    assert capture.settle().number == 2


def test_the_marks_of_a_table_come_back_with_its_batch(capture: HandStaged) -> None:
    capture.settle()
    plain = capture.stage(TABLE, register=False)
    mark = TableMark(TABLE, "parked", "SchemaNotFollowed", "BACKFILL", "a column was dropped")
    capture.store.write_atomic(path_of(plain), replace(plain, marks=(mark,)).to_json().encode())
    capture.settle()
    with open_ledger(capture.ledger, capture.config.pipeline) as book:
        row = tables.one(book, TABLE)
    assert row is not None
    assert row.life.merge == "parked"


def test_manifests_of_another_system_are_not_taken(capture: HandStaged) -> None:
    capture.settle()
    left = capture.stage(TABLE, register=False)
    foreign = replace(left, source=replace(left.source, system_identifier="7"))
    capture.store.write_atomic(path_of(left), foreign.to_json().encode())
    assert capture.settle().staged_lsn == left.start_lsn
