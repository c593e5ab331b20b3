"""R5, R6: what a plan lists, and what a result changes in the ledger, without any Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.ledger.conftest import open_at
from tests.support.manifests import manifest_of, path_of, schema_of
from tests.support.pipeline import pipeline_config
from tests.support.runs import a_run, make_plan
from tidemark.capture.merge_planning import Ingested, PlanScope, ingest, ingested_by_another, leased_plan
from tidemark.config import Merge, PipelineConfig
from tidemark.errors import LeaseTaken
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import Holes, PlanResult, TableResult
from tidemark.ledger.captured import merge_states, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease, hold, of_table
from tidemark.ledger.staged import applied_positions, batches, plans, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.storage.store import Store

Book = Ledger
BROKEN = ErrorRecord("PositionBelowPlan", "FIX_TARGET", "it is broken")
TRY_AGAIN = ErrorRecord("MergeFailed", "RETRY", "try again")
LAKE_AWAY = ErrorRecord("LakeFailed", "RETRY", "the lake is away")


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    return pipeline_config("shop", tmp_path, (), {"park_after": 2}, merge=Merge(threads=3))


@pytest.fixture(autouse=True)
def staged(book: Book, lease: Lease, generation: Generation) -> None:
    """a is in [100, 200) and [300, 400), b in [200, 300)."""
    for manifest in (manifest_of(100, 200, "s.a"), manifest_of(200, 300, "s.b"), manifest_of(300, 400, "s.a")):
        batches.register(book, lease, manifest, path_of(manifest))


def plan_for(config: PipelineConfig, ledger: str, holder: str = "merge/1") -> MergePlan | None:
    return make_plan(a_run(config, ledger=ledger, holder=holder, run_id="run1"))


def applied(
    config: PipelineConfig,
    ledger: str,
    plan: MergePlan | None,
    errors: dict[str, dict[str, str]] | None = None,
    holes: dict[str, int] | None = None,
) -> Ingested:
    """What an application that reached the plan's end would leave behind, and its ingestion."""
    assert plan is not None
    leave_result(config, plan, errors or {}, holes or {})
    return ingest(a_run(config, ledger=ledger))


def leave_result(
    config: PipelineConfig, plan: MergePlan, errors: dict[str, dict[str, str]], holes: dict[str, int]
) -> None:
    results = [
        TableResult(t.table, t.after, t.after, error=errors[t.table])
        if t.table in errors
        else TableResult(t.table, t.end_lsn, t.end_lsn, {"history": t.rows}, Holes(holes, ()))
        for t in plan.tables
    ]
    result = PlanResult(plan.plan, plan.pipeline, plan.generation, tuple(results))
    Store(config.lake).write_atomic(layout.result_file("shop", plan.plan), result.to_json().encode())


def test_a_plan_lists_every_unapplied_batch_per_table(config: PipelineConfig, ledger: str) -> None:
    plan = plan_for(config, ledger)
    assert plan is not None
    a, b = plan.tables
    assert [(x.start_lsn, x.end_lsn) for x in a.batches] == [(Lsn(100), Lsn(200)), (Lsn(300), Lsn(400))]
    assert [(x.start_lsn, x.end_lsn) for x in b.batches] == [(Lsn(200), Lsn(300))]
    assert (a.after, b.after, plan.generation, plan.threads) == (None, None, 1, 3)
    assert a.schemas == (schema_of("s.a"),)
    stored = Store(config.lake).read(layout.plan_file("shop", plan.plan)).decode()
    assert MergePlan.from_json(stored) == plan


def test_a_plan_begins_behind_what_is_applied(config: PipelineConfig, ledger: str, book: Book) -> None:
    positions.rise(book, 1, {"s.a": (Lsn(200), Lsn(200))})
    plan = plan_for(config, ledger)
    assert plan is not None
    assert plan.tables[0].after == Lsn(200)
    assert [x.end_lsn for x in plan.tables[0].batches] == [Lsn(400)]


def test_nothing_unapplied_is_no_plan(config: PipelineConfig, ledger: str) -> None:
    ingested = applied(config, ledger, plan_for(config, ledger))
    assert [(t.table, t.before, t.after, t.advanced) for t in ingested.tables] == [
        ("s.a", None, Lsn(400), True),
        ("s.b", None, Lsn(300), True),
    ]
    assert plan_for(config, ledger) is None


def test_a_plan_is_named_after_the_time_of_its_run(config: PipelineConfig, ledger: str) -> None:
    plan = make_plan(a_run(config, ledger=ledger, now=lambda: datetime(2031, 5, 7, 8, 9, 10, tzinfo=UTC)))
    assert plan is not None
    assert plan.plan.startswith("20310507T080910-")


def test_every_attempt_has_a_plan_of_its_own(config: PipelineConfig, ledger: str) -> None:
    first, second = plan_for(config, ledger), plan_for(config, ledger)
    assert first is not None
    assert second is not None
    assert first.plan != second.plan


def test_a_result_that_nobody_took_is_taken_by_the_next_run(config: PipelineConfig, ledger: str, book: Book) -> None:
    lost = plan_for(config, ledger)
    assert lost is not None
    leave_result(config, lost, {}, {})
    assert ingest(a_run(config, ledger=ledger)).plans == (lost.plan,)
    assert ingest(a_run(config, ledger=ledger)).plans == ()
    assert applied_positions.confirmable(book) == Lsn(400)


def test_a_plan_whose_driver_died_is_given_up_once_its_tables_are_past_it(
    config: PipelineConfig, ledger: str, book: Book
) -> None:
    dead, second = plan_for(config, ledger), plan_for(config, ledger)
    assert dead is not None
    assert ingest(a_run(config, ledger=ledger)) == Ingested()
    assert {p.plan for p in plans.not_ingested(book)} == {dead.plan, getattr(second, "plan", None)}
    applied(config, ledger, second)
    ingest(a_run(config, ledger=ledger))
    assert plans.not_ingested(book) == []


def test_half_a_result_is_none(config: PipelineConfig, ledger: str) -> None:
    plan = plan_for(config, ledger)
    assert plan is not None
    Store(config.lake).write_atomic(layout.result_file("shop", plan.plan), b'{"format": 1, "plan": "')
    assert ingest(a_run(config, ledger=ledger)).plans == ()
    assert applied(config, ledger, plan).plans == (plan.plan,)


def test_an_error_that_is_no_retry_parks_its_table_and_no_other(
    config: PipelineConfig, ledger: str, book: Book
) -> None:
    ingested = applied(config, ledger, plan_for(config, ledger), {"s.a": BROKEN})
    assert [(t.table, t.parked, t.advanced) for t in ingested.tables] == [("s.a", True, False), ("s.b", False, True)]
    assert plan_for(config, ledger) is None
    assert applied_positions.confirmable(book) == Lsn(400)
    merge_states.unpark(book, "s.a")
    plan = plan_for(config, ledger)
    assert plan is not None
    assert [len(t.batches) for t in plan.tables] == [2]


def test_a_retry_error_parks_after_park_after_runs_and_is_tried_again_when_due(
    config: PipelineConfig, ledger: str
) -> None:
    first = applied(config, ledger, plan_for(config, ledger), {"s.a": TRY_AGAIN})
    assert [t.parked for t in first.tables] == [False, False]
    second = applied(config, ledger, plan_for(config, ledger), {"s.a": TRY_AGAIN})
    assert [(t.table, t.parked) for t in second.tables] == [("s.a", True)]
    assert plan_for(config, ledger) is None
    due = replace(config, bounds=config.bounds.model_copy(update={"unpark_retry_s": 0}))
    assert applied(due, ledger, plan_for(due, ledger)).tables[0].after == Lsn(400)


def test_a_table_that_was_tried_while_the_clock_was_ahead_is_tried_again(
    config: PipelineConfig, ledger: str, book: Book
) -> None:
    for _ in range(2):
        applied(config, ledger, plan_for(config, ledger), {"s.a": TRY_AGAIN})
    assert plan_for(config, ledger) is None
    book.execute("UPDATE tidemark.tables SET tried_at = tried_at + interval '1 year'")
    assert plan_for(config, ledger) is not None


def test_an_error_of_the_lake_moves_no_tables_counter(config: PipelineConfig, ledger: str, book: Book) -> None:
    for _ in range(3):
        applied(config, ledger, plan_for(config, ledger), {"s.a": LAKE_AWAY, "s.b": LAKE_AWAY})
    assert {(t.life.merge, t.failed_runs) for t in tables.all_of(book)} == {("merging", 0)}


def test_holes_mark_the_table(config: PipelineConfig, ledger: str, book: Book) -> None:
    applied(config, ledger, plan_for(config, ledger), holes={"body": 2})
    row = tables.one(book, "s.a")
    assert row is not None
    assert (row.holes, row.life.needs_backfill) == ({"body": 2}, True)


def test_an_older_generation_is_planned_before_a_newer_one(
    config: PipelineConfig, ledger: str, book: Book, lease: Lease
) -> None:
    open_at(book, lease, 2, Lsn(500), lake=config.lake)
    newer = manifest_of(500, 600, "s.a", generation=2)
    batches.register(book, lease, newer, path_of(newer))
    first = plan_for(config, ledger)
    assert first is not None
    assert first.generation == 1
    applied(config, ledger, first)
    second = plan_for(config, ledger)
    assert second is not None
    assert (second.generation, second.tables[0].after) == (2, None)


def test_the_tables_are_held_while_they_are_planned(config: PipelineConfig, ledger: str) -> None:
    with leased_plan(a_run(config, ledger=ledger, holder="merge/1", run_id="run1")) as plan:
        assert plan is not None
        with pytest.raises(LeaseTaken):
            plan_for(config, ledger, holder="merge/2")


def test_a_table_that_somebody_holds_is_left_to_the_next_plan_and_holds_no_other_back(
    config: PipelineConfig, ledger: str, book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with hold(ledger, "shop", of_table("s.b"), "shop_maintenance/compact"):
        first = plan_for(config, ledger)
        assert first is not None
        assert [t.table for t in first.tables] == ["s.a"]
        applied(config, ledger, first)
    assert "Left to the next merge: s.b, which shop_maintenance/compact holds" in caplog.text
    assert applied_positions.confirmable(book) == Lsn(200), "the start of the batch that s.b has not applied"
    second = plan_for(config, ledger)
    assert second is not None
    assert [t.table for t in second.tables] == ["s.b"]
    applied(config, ledger, second)
    assert applied_positions.confirmable(book) == Lsn(400)


def test_where_all_tables_are_held_there_is_no_plan(config: PipelineConfig, ledger: str) -> None:
    with hold(ledger, "shop", [of_table("s.a"), of_table("s.b")], "backfill"), pytest.raises(LeaseTaken):
        plan_for(config, ledger)


def test_a_paused_table_is_planned_once_it_is_resumed_and_holds_back_no_slot(
    config: PipelineConfig, ledger: str, book: Book
) -> None:
    assert merge_states.pause(book, "s.a", "anna")
    assert not merge_states.pause(book, "s.a", "bert")
    plan = plan_for(config, ledger)
    assert plan is not None
    assert [t.table for t in plan.tables] == ["s.b"]
    applied(config, ledger, plan)
    assert plan_for(config, ledger) is None
    assert applied_positions.confirmable(book) == Lsn(400)

    assert merge_states.resume(book, "s.a")
    assert not merge_states.resume(book, "s.a")
    assert applied_positions.confirmable(book) == Lsn(100)
    resumed = plan_for(config, ledger)
    assert resumed is not None
    assert [[x.end_lsn for x in t.batches] for t in resumed.tables] == [[Lsn(200), Lsn(400)]]


def test_what_a_plan_from_before_a_pause_came_to_ends_the_pause_only_where_somebody_must_mend_it(
    config: PipelineConfig, ledger: str, book: Book
) -> None:
    for error, state in ((None, "paused"), (TRY_AGAIN, "paused"), (BROKEN, "parked")):
        plan = plan_for(config, ledger)
        assert merge_states.pause(book, "s.a", "anna")
        applied(config, ledger, plan, {} if error is None else {"s.a": error})
        row = tables.one(book, "s.a")
        assert row is not None
        assert (row.life.merge, row.paused_by) == (state, "anna" if state == "paused" else None)
        merge_states.resume(book, "s.a")
        positions.skip_staged(book, "s.b")
        book.execute("""UPDATE tidemark.positions SET history_lsn = '0/0', current_lsn = '0/0' WHERE "table" = 's.a'""")


def test_a_share_is_planned_alone_and_two_shares_at_the_same_time(config: PipelineConfig, ledger: str) -> None:
    with (
        leased_plan(a_run(config, ledger=ledger, holder="merge/0"), PlanScope(tables=frozenset({"s.b"}))) as one,
        leased_plan(a_run(config, ledger=ledger, holder="merge/1"), PlanScope(tables=frozenset({"s.a"}))) as other,
    ):
        assert one is not None
        assert other is not None
        assert ([t.table for t in one.tables], [t.table for t in other.tables]) == (["s.b"], ["s.a"])


def test_a_table_that_left_its_share_is_in_one_plan_alone(config: PipelineConfig, ledger: str) -> None:
    """The task that spreads was tried again and spread otherwise, while an application of its first try works."""
    with (
        leased_plan(a_run(config, ledger=ledger, holder="merge/0"), PlanScope(tables=frozenset({"s.a"}))),
        leased_plan(
            a_run(config, ledger=ledger, holder="merge/1"), PlanScope(tables=frozenset({"s.a", "s.b"}))
        ) as other,
    ):
        assert other is not None
        assert [t.table for t in other.tables] == ["s.b"]


def test_a_failed_share_leaves_the_others_applied_and_is_planned_again_alone(
    config: PipelineConfig, ledger: str, book: Book
) -> None:
    shares = [PlanScope(tables=frozenset({table})) for table in ("s.a", "s.b")]
    dead = make_plan(a_run(config, ledger=ledger, holder="merge/0"), shares[0])
    applied(config, ledger, make_plan(a_run(config, ledger=ledger, holder="merge/1"), shares[1]))
    assert applied_positions.confirmable(book) == Lsn(100)
    again = make_plan(a_run(config, ledger=ledger, holder="merge/0"), shares[0])
    assert dead is not None
    assert again is not None
    assert again.plan != dead.plan
    assert again.tables == dead.tables
    assert make_plan(a_run(config, ledger=ledger, holder="merge/1"), shares[1]) is None
    applied(config, ledger, again)
    assert applied_positions.confirmable(book) == Lsn(400)


def test_a_result_that_another_task_ingested_can_still_be_judged(config: PipelineConfig, ledger: str) -> None:
    plan = plan_for(config, ledger)
    assert plan is not None
    assert ingested_by_another(a_run(config, ledger=ledger), plan.plan) == Ingested()
    applied(config, ledger, plan, {"s.a": BROKEN})
    ingested = ingested_by_another(a_run(config, ledger=ledger), plan.plan)
    assert ingested.plans == (plan.plan,)
    assert [(t.table, t.error, t.parked, t.advanced) for t in ingested.tables] == [
        ("s.a", BROKEN, True, False),
        ("s.b", None, False, False),
    ]
