"""A table that is built anew, beside the live pair, from what staging holds of it (`ledger.captured.replays`)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.capture.definitions.reshaped_items import TYPE, Items
from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.capture import drain as drain_module
from tidemark.errors import ReplayRefused
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_plan import HistoryBase, MergePlan, PlannedTable
from tidemark.ledger.captured import (
    backfill_marks,
    merge_states,
    put_aside,
    replays,
    schema_versions,
    unfit_values,
)
from tidemark.ledger.leases import SLOT, hold
from tidemark.ledger.retention import retirement
from tidemark.lsn import Lsn
from tidemark.maintenance.replay_runs import ReplayRequest, begin_replay, unplaced
from tidemark.observe.health import judge_by_ledger
from tidemark.schema.table_life import LEFT

ITEM = ReplayRequest("staged", ("public.item",))


@pytest.fixture
def items(pipeline: Pipeline) -> Items:
    """Merged up to here, with three batches that follow one definition."""
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL)")
    pipeline.begin()
    items = Items(pipeline, 0)
    pipeline.sound()
    for _ in range(3):
        items.insert()
        pipeline.drain()
    items.merge()
    return items


def replay(items: Items) -> list[str]:
    return begin_replay(items.task("replay"), ITEM)


def ends(items: Items, table: str = "public.item") -> list[Lsn]:
    rows = items.ledger_query('SELECT end_lsn FROM tidemark.batch_tables WHERE "table" = %s ORDER BY 1', table)
    return [Lsn(end) for (end,) in rows]


def planned(plan: MergePlan | None, table: str) -> PlannedTable:
    assert plan is not None
    (one,) = [one for one in plan.tables if one.table == table]
    return one


def test_what_staging_holds_is_applied_again_behind_what_is_taken_over(items: Items) -> None:
    first, second, third = ends(items)
    assert replay(items) == ["public.item~2"]
    assert (items.kept_as(), items.row().life.capture) == (["public.item~2"], LEFT)
    assert items.row("~2").life.can_be_read, "its relation never left the stream"
    items.insert()
    items.drain()
    plan = items.merge()
    one = planned(plan, "public.item~2")
    assert one.base == HistoryBase("public.item", 1, first)
    assert [batch.end_lsn for batch in one.batches] == [second, third, items.staged_lsn()]
    assert (one.after, items.ids("~2")) == (None, [4])
    assert [file.path for file in one.batches[0].files] == [f["path"] for f in files(items, "public.item")[1]]
    assert MergePlan.from_json(plan.to_json()) == plan  # type: ignore[union-attr]
    assert plan is not None
    assert plan.level is not None
    assert plan.level.names["public.item~2"] == "public.item"
    assert items.shapes()["public.item~2"].placed_at is not None
    assert not items.row("~2").life.needs_backfill
    assert make_plan(items.task("merge")) is None
    items.insert()
    items.drain()
    assert planned(items.merge(), "public.item~2").base is None


def files(items: Items, table: str) -> list[list[dict[str, str]]]:
    rows = items.ledger_query('SELECT files FROM tidemark.batch_tables WHERE "table" = %s ORDER BY end_lsn', table)
    return [listed for (listed,) in rows]


def test_values_that_did_not_fit_go_with_what_is_taken_over(items: Items) -> None:
    with items.pipeline.ledger_connection() as book:
        unfit_values.restore(book, {"public.item": {"number": 3}})
        replay(items)
        assert unfit_values.all_of(book)["public.item~2"] == {"number": 3}


def test_it_is_the_same_table_with_the_same_definitions(items: Items) -> None:
    before = items.row()
    replay(items)
    after = items.row("~2")
    assert (after.join_horizon, after.fingerprint) == (before.join_horizon, before.fingerprint)
    with items.ledger_connection() as book:
        old, new = (schema_versions.streamed(book, table) for table in ("public.item", "public.item~2"))
    assert [(s.version, s.columns) for s in new] == [(s.version, s.columns) for s in old]
    items.execute("ALTER TABLE item ADD note text DEFAULT 'older'")
    items.insert()
    items.drain()
    with items.ledger_connection() as book:
        newest = schema_versions.streamed(book, "public.item~2")[-1]
    assert (newest.version, newest.columns[-1].missing) == (before_version(old) + 1, "older")
    assert items.row("~2").backfill_kind == backfill_marks.REPLAYED, "a constant default is followed"


def before_version(versions: list) -> int:  # type: ignore[type-arg]
    return int(versions[-1].version)


@pytest.mark.thorough
def test_what_the_catalogue_alone_shows_at_its_beginning_marks_it(items: Items) -> None:
    """The look of the run that begins it is held back, and that of the next run is compared with the one before."""
    items.execute("ALTER TABLE item ADD at timestamptz DEFAULT clock_timestamp()")
    replay(items)
    items.drain()
    assert items.row("~2").life.needs_backfill
    items.merge()
    assert items.row("~2").life.needs_backfill, "the merge that builds it brings no value of that column"
    assert items.shapes()["public.item~2"].placed_at is None


def test_nobody_starts_a_backfill_of_what_a_merge_builds(items: Items) -> None:
    replay(items)
    assert requested_tables(items.task()) == []
    with items.ledger_connection() as book:
        health = judge_by_ledger(book, items.config)
    (concern,) = [concern for concern in health.of("warning") if concern.table == "public.item~2"]
    assert concern.kind == "replayed"
    assert health.states["public.item~2"] == "replayed"


@pytest.mark.thorough
def test_a_later_try_of_the_run_goes_on_with_what_it_began(items: Items, monkeypatch: pytest.MonkeyPatch) -> None:
    run = items.task("replay")

    def dies(name: str) -> None:
        if name == "drain.before_register":
            raise RuntimeError(name)

    with monkeypatch.context() as patched:
        patched.setattr(drain_module, "reach", dies)
        with pytest.raises(RuntimeError):
            begin_replay(run, ITEM)
    for _ in range(2):
        assert begin_replay(run, ITEM) == ["public.item~2"]
    assert begin_replay(items.task(run_id="another"), ITEM) == ["public.item~2"], (
        "another run too, while it is being built"
    )
    assert items.kept_as() == ["public.item~2"]
    assert list(unplaced(run, ["public.item~2"])) == ["public.item~2"]
    items.merge()
    assert unplaced(run, ["public.item~2"]) == {}


@pytest.mark.parametrize(
    "why",
    [
        "needs a backfill",
        pytest.param("is not merged up to", marks=pytest.mark.thorough),
        pytest.param("no batch in staging that can be applied once more", marks=pytest.mark.thorough),
    ],
)
def test_what_cannot_be_exact_is_refused_before_anything_is_done(items: Items, why: str) -> None:
    if why == "needs a backfill":
        with items.ledger_connection() as book:
            backfill_marks.mark(book, "public.item", backfill_marks.GAP, "a test")
    else:
        items.execute("ALTER TABLE item ADD note text")
        items.insert()
        items.drain()
    if why.startswith("is not merged"):
        items.insert()
        items.drain()
    with pytest.raises(ReplayRefused, match=why):
        replay(items)
    assert (items.kept_as(), items.shapes()) == (["public.item"], {})


@pytest.mark.thorough
def test_a_base_that_moved_in_the_drain_that_begins_it_is_waited_for(items: Items) -> None:
    items.with_bounds(batch_rows=1)
    items.execute("ALTER TABLE item ADD note text")
    items.insert()
    items.insert()
    replay(items)
    base = ends(items)[3]
    plan = items.merge()
    assert plan is not None
    assert [one.table for one in plan.tables] == ["public.item"]
    assert planned(items.merge(), "public.item~2").base == HistoryBase("public.item", 1, base)
    assert items.shapes()["public.item~2"].placed_at is not None


@pytest.mark.thorough
def test_another_shape_that_comes_first_takes_its_place(items: Items) -> None:
    """Also where the catalogue alone shows it."""
    items.execute(TYPE)
    assert replay(items) == []
    assert items.row("~2").backfill_kind == "another_shape"


@pytest.mark.parametrize("parked", ["public.item~2", pytest.param("public.item", marks=pytest.mark.thorough)])
def test_files_that_one_of_the_two_needs_are_kept(items: Items, parked: str) -> None:
    """Two rows of a batch name them: the one that is retired does not take them along."""
    items.insert()
    items.drain()
    replay(items)
    with items.ledger_connection() as book:
        merge_states.park(book, parked, ErrorRecord("MergeFailed", "FIX_TARGET", "a test"))
    items.merge()
    with items.ledger_connection() as book, hold(items.ledger, items.config.pipeline, SLOT, "maintenance/1") as lease:
        now = items.task().now()
        retirement.mark(book, lease, 1, cutoff=now + timedelta(days=1), confirmed=items.staged_lsn(), xmin=2**62)
        needed = {f["path"] for listed in files(items, parked)[-1:] for f in listed}
        gone = {path for batch in retirement.to_remove(book, 1, 100) for path in batch.paths}
        wholes = [batch.end_lsn for batch in retirement.to_remove(book, 1, 100) if batch.is_whole]
    assert needed
    assert needed.isdisjoint(gone)
    assert ends(items, parked)[-1] not in wholes


@pytest.mark.thorough
def test_what_was_replaced_is_put_aside(items: Items) -> None:
    replay(items)
    items.merge()
    items.sound()
    with items.ledger_connection() as book:
        (pair,) = put_aside.all_of(book)
        assert replays.unplaced(book) == {}
    assert (pair.table, pair.name) == ("public.item", "public.item")
