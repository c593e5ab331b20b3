"""The lake leads elsewhere: to an empty folder, as a volume leaves that is not mounted, or to another endpoint's store.
Whoever would write there says so first, and when it leads back nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.conftest import on_s3
from tests.support.pipeline import Pipeline
from tests.support.remedies import Told
from tests.support.runs import make_plan
from tests.support.s3_server import S3Server, access, running
from tidemark.capture.continuity.ledger_rebuild import rebuild
from tidemark.capture.merge_planning import ingest
from tidemark.errors import ChangesGone, LakeTaken, Move, SlotUnknown, StagingMissing
from tidemark.formats import layout
from tidemark.formats.compaction_plan import CompactionResult, TableCompaction
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.generation_file import GenerationFile
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.ledger.captured import backfill_marks, merge_states
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import positions
from tidemark.maintenance import compaction_runs
from tidemark.maintenance.replay_runs import ReplayRequest, leased_replay
from tidemark.maintenance.staging_cleanup import retire
from tidemark.observe.status import read_status
from tidemark.observe.table_commands import unpark

ITEM = "public.item"
MOUNTED = "whether the lake's volume is mounted on each worker"
ENDPOINT = "whether `lake` and its connection's endpoint and bucket are those that were captured into"


@pytest.fixture
def shop(captured: Pipeline) -> Pipeline:
    """A batch is staged and not merged, another change waits at the source, and a backfill has ranges to read."""
    captured.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    captured.capture()
    captured.execute("INSERT INTO item VALUES (2)")
    captured.drain("first")
    captured.plan(tables=("public.item",))
    captured.execute("INSERT INTO item VALUES (3)")
    return captured


WRITERS: dict[str, Callable[[Pipeline], object]] = {
    "preflight": lambda shop: shop.preflight().raise_for_errors(),
    "preflight --look": lambda shop: shop.preflight(act=False).raise_for_errors(),
    "drain": lambda shop: shop.drain(),
    "reader": lambda shop: shop.read(),
    "merge": lambda shop: make_plan(shop.task("merge")),
    "retire": lambda shop: retire(shop.task("retire")),
    "compact": lambda shop: compaction_runs.plan_inspection(shop.task("compact")),
    "compact current": lambda shop: planned(compaction_runs.plan_current(shop.task("compact"), [ITEM])),
    "replay": lambda shop: planned(leased_replay(shop.task("replay"), ReplayRequest("rebuild", (ITEM,)))),
    "ledger rebuild": lambda shop: rebuild(shop.task("rebuild")),
}


def planned(plan: AbstractContextManager[object]) -> None:
    with plan:
        pass


def known(shop: Pipeline) -> tuple[object, ...]:
    rows = [shop.ledger_query(f"SELECT * FROM tidemark.{name}") for name in ("batches", "chunks", "plans")]
    return (shop.generation(), shop.confirmed_lsn(), *rows)


def unmounted(shop: Pipeline) -> None:
    """As long as its volume is not mounted the lake is an empty folder."""
    shop.config = replace(shop.config, lake=f"{shop.config.lake}-unmounted")


@pytest.mark.some(4)
@pytest.mark.walks("StagingMissing")
@pytest.mark.parametrize("writer", WRITERS)
def test_whoever_writes_finds_an_empty_store_and_nothing_is_missing_when_it_leads_back(
    writer: str, shop: Pipeline, tmp_path: Path, s3_server: S3Server, told: Told
) -> None:
    there = shop.config
    elsewhere = f"s3a://{s3_server.new_bucket()}/lake" if on_s3() else f"{tmp_path}/unmounted"
    shop.config = replace(shop.config, lake=elsewhere)
    before = known(shop)
    with pytest.raises(Exception, match=r"lacks staging/g1/generation\.json") as raised:
        WRITERS[writer](shop)
    told.read("StagingMissing", str(raised.value), ENDPOINT if on_s3() else MOUNTED, "generation 1 open")
    assert known(shop) == before
    assert shop.store.list(there.pipeline) == []
    shop.config = there
    shop.sound()
    shop.drain()
    shop.read()
    assert [row["id"] for row in shop.staged("public.item")] == [2, 3]
    assert make_plan(shop.task("merge")) is not None


def test_an_endpoint_that_leads_to_another_store_is_named(shop: Pipeline, s3_server: S3Server, tmp_path: Path) -> None:
    """With a bucket of that name, as a test's MinIO or a wrong region's has."""
    bucket = s3_server.new_bucket()
    shop.config = replace(shop.config, lake=f"s3a://{bucket}/lake", lake_access=access(s3_server.url))
    with running(tmp_path / "another") as another:
        another.client().create_bucket(Bucket=bucket)
        shop.config = replace(shop.config, lake_access=access(another.url))
        with pytest.raises(StagingMissing, match=f"at {another.url} is empty or not there") as raised:
            shop.drain()
        assert ENDPOINT in str(raised.value)
        assert another.keys(bucket) == []


def test_a_lake_that_was_restored_without_its_staging_says_what_it_has(shop: Pipeline) -> None:
    shop.store.delete(layout.staging_root(shop.config.pipeline))
    shop.store.write_new(f"{shop.config.pipeline}/current/public/item/_delta_log/0.json", b"")
    with pytest.raises(StagingMissing, match=r"has .*current, but not staging/g1/generation\.json"):
        shop.drain()
    status = read_status(shop.config, source=shop.source, ledger=shop.ledger)
    assert "but not staging/g1/generation.json" in status.unseen["lake"]


def test_a_person_may_say_that_it_is_the_folder_all_the_same(shop: Pipeline) -> None:
    shop.store.delete(layout.staging_root(shop.config.pipeline))
    (error,) = shop.preflight().errors
    assert "--staging-is-lost" in str(error)
    before = shop.generation()
    assert "Would write" in str(shop.sound(says=["staging_is_lost"], act=False))
    assert shop.store.list(layout.staging_root(shop.config.pipeline)) == []
    assert "staging/g1/generation.json again" in str(shop.sound(says=["staging_is_lost"]))
    assert shop.generation() == before
    shop.sound()
    shop.drain()
    assert shop.store.exists(layout.generation_file(shop.config.pipeline, 1))


def test_who_says_so_of_a_folder_that_lacks_nothing_is_told(shop: Pipeline) -> None:
    path = layout.generation_file(shop.config.pipeline, 1)
    before = shop.store.read(path)
    assert "generation.json exists: nothing was written again" in str(shop.sound(says=["staging_is_lost"]))
    assert shop.store.read(path) == before


def test_whose_the_slot_is_says_nothing_of_the_folder(shop: Pipeline) -> None:
    """A slot of another name, as a source is moved, on a night on which the volume is not mounted as well."""
    shop.query(f"SELECT FROM pg_create_logical_replication_slot('{shop.config.slot}_moved', 'pgoutput')")
    shop.config = replace(shop.config, slot=f"{shop.config.slot}_moved")
    there = shop.config
    unmounted(shop)
    before = known(shop)
    assert [type(finding.cause) for finding in shop.preflight().errors] == [SlotUnknown]
    assert [type(finding.cause) for finding in shop.preflight(says=["adopt_slot"]).errors] == [StagingMissing]
    assert [type(finding.cause) for finding in shop.preflight(says=["staging_is_lost"]).errors] == [SlotUnknown]
    assert shop.store.list(there.pipeline) == []
    assert known(shop) == before
    said = str(shop.preflight(says=("adopt_slot", "staging_is_lost")))
    assert "staging/g1/generation.json again" in said
    assert "is this pipeline's from now on" in said


def test_a_maintenance_that_lost_its_lake_on_the_way_parks_nothing(shop: Pipeline) -> None:
    """Between its look and its end the volume was unmounted, so that no table was seen."""
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        positions.rise(book, 1, {ITEM: (shop.staged_lsn(), shop.staged_lsn())})
    seen = (
        TableCompaction(ITEM, kind, files_before=1, files_after=1, bytes=10, rows=1) for kind in ("current", "history")
    )
    compaction_runs.note(shop.task("compact"), [ITEM], [CompactionResult("seen", tuple(seen))])
    there = shop.config
    unmounted(shop)
    with pytest.raises(StagingMissing):
        compaction_runs.note(shop.task("compact"), [ITEM], [])
    assert not shop.table_row(ITEM).life.is_parked
    shop.config = there
    compaction_runs.note(shop.task("compact"), [ITEM], [])
    assert shop.table_row(ITEM).life.is_parked, "it is missing in its own lake"


def test_a_result_that_lies_elsewhere_is_not_taken(shop: Pipeline) -> None:
    """As a driver leaves it that was started before there was a plan to be missed, below an empty mount point."""
    plan = make_plan(shop.task("merge"))
    assert plan is not None
    failed = ErrorRecord("StagedFileGone", Move.BACKFILL, "a staged file is gone")
    reached = shop.staged_lsn()
    there = shop.config
    unmounted(shop)
    leave_result(shop, PlanResult(plan.plan, plan.pipeline, 1, (TableResult(ITEM, None, None, error=failed),)))
    with pytest.raises(StagingMissing):
        ingest(shop.task("merge"))
    assert not shop.table_row(ITEM).life.is_parked
    shop.config = there
    assert ingest(shop.task("merge")).plans == ()
    leave_result(shop, PlanResult(plan.plan, plan.pipeline, 1, (TableResult(ITEM, reached, reached),)))
    assert ingest(shop.task("merge")).plans == (plan.plan,)


def leave_result(shop: Pipeline, result: PlanResult) -> None:
    shop.store.write_atomic(layout.result_file(result.pipeline, result.plan), result.to_json().encode())


def test_no_table_begins_anew_beside_a_lake_that_is_not_mounted(shop: Pipeline) -> None:
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        merge_states.park(book, ITEM, ErrorRecord("TargetDiffers", Move.FIX_TARGET, "somebody changed it"))
    there = shop.config
    unmounted(shop)
    with pytest.raises(StagingMissing):
        unpark(shop.config, ITEM, ledger=shop.ledger, anew=True)
    assert shop.table_row(ITEM).life.is_parked
    assert unpark(there, ITEM, ledger=shop.ledger, anew=True)[1]


def test_an_older_ledger_learns_from_such_a_folder_that_changes_may_be_missing(
    captured: Pipeline, new_database: Callable[..., str]
) -> None:
    """It is from before a gap, and what the generation's file said of that is lost with staging."""
    captured.execute("CREATE TABLE item (id int PRIMARY KEY)")
    captured.capture()
    captured.drain()
    older = new_database("ledger", like=captured.ledger)
    captured.execute("INSERT INTO item VALUES (1)")
    captured.advance()
    with pytest.raises(ChangesGone):
        captured.drain()
    captured.store.delete(layout.staging_root(captured.config.pipeline))
    captured.sound(says=["staging_is_lost"])
    captured.drain()
    captured.ledger = older
    assert not captured.table_row("public.item").life.needs_backfill
    captured.sound(says=["staging_is_lost"])
    opened = captured.generation()
    assert opened is not None
    assert opened.number == 2
    assert captured.table_row("public.item").backfill_kind == backfill_marks.GAP


def test_an_older_ledger_takes_no_newer_generation_of_a_folder_whose_own_one_differs(shop: Pipeline) -> None:
    """It was staged by a pipeline whose slot is gone, as a second Airflow's is that was given up."""
    path = layout.generation_file(shop.config.pipeline, 1)
    theirs = GenerationFile.from_json(shop.store.read(path).decode())
    shop.store.write_atomic(path, structs.replace(theirs, reason="of another").to_json().encode())
    newer = structs.replace(theirs, number=2, slot="gone", reason="of another too")
    shop.store.write_new(layout.generation_file(shop.config.pipeline, 2), newer.to_json().encode())
    with pytest.raises(LakeTaken, match=r"its generation 1 was opened on server \d+, because of another"):
        shop.drain()
