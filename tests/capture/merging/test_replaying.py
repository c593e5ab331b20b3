"""A replay's plan: which tables it may hold, whose leases it needs, and what is refused before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.manifests import manifest_of, path_of
from tests.support.pipeline import pipeline_config
from tests.support.remedies import Told
from tests.support.runs import a_run
from tidemark.capture.merge_planning import leased_plan
from tidemark.config import PipelineConfig
from tidemark.errors import LeaseTaken, ReplayRefused
from tidemark.formats import layout
from tidemark.formats.replay_plan import ReplayedTable, ReplayPlan, ReplayResult
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease, hold, of_table
from tidemark.ledger.staged import batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.maintenance.replay_runs import ReplayRequest, leased_replay, take_result
from tidemark.run import Run
from tidemark.storage.store import Store


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    return pipeline_config("shop", tmp_path, (), {})


@pytest.fixture
def run(config: PipelineConfig, ledger: str, book: Ledger, lease: Lease, generation: Generation) -> Run:
    """a and b have a batch each that no merge has taken yet."""
    manifest = manifest_of(100, 200, "s.a", "s.b")
    batches.register(book, lease, manifest, path_of(manifest))
    return a_run(config, ledger=ledger, holder="replay/1", run_id="run1")


def test_a_rebuild_keeps_merges_from_its_tables_while_it_works(config: PipelineConfig, ledger: str, run: Run) -> None:
    with leased_replay(run, ReplayRequest("rebuild", ("s.a",))) as plan:
        stored = Store(config.lake).read(layout.replay_file("shop", plan.plan)).decode()
        assert ReplayPlan.from_json(stored) == plan
        assert (plan.keys, plan.generation) == ({"s.a": ("id",)}, 1)
        with leased_plan(a_run(config, ledger=ledger, holder="merge/1", run_id="run2")) as merge:
            assert merge is not None
            assert [table.table for table in merge.tables] == ["s.b"]
    with leased_plan(a_run(config, ledger=ledger, holder="merge/1", run_id="run2")) as merge:
        assert merge is not None
        assert [table.table for table in merge.tables] == ["s.a", "s.b"]


def test_a_rebuild_waits_for_all_of_its_tables_and_a_moment_for_none(ledger: str, run: Run) -> None:
    with hold(ledger, "shop", of_table("s.b"), "merge/1"):
        with pytest.raises(LeaseTaken), leased_replay(run, ReplayRequest("rebuild", ("s.a", "s.b"))):
            pass
        with leased_replay(run, ReplayRequest("as_of", ("s.a", "s.b"), "0/64")) as plan:
            assert plan.moment == "0/64"


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (ReplayRequest("rebuild", ()), "it names no table"),
        (ReplayRequest("rebuild", ("s.aa",)), "nothing of s.aa was ever merged (did you mean s.a?)"),
        (ReplayRequest("rebuild", ("s.a",), "0/64"), "takes no moment"),
        (ReplayRequest("as_of", ("s.a",), "yesterday"), "neither an LSN"),
        (ReplayRequest("as_of", ("s.a",), "2026-11-17T00:00:00"), "with its zone"),
    ],
)
@pytest.mark.walks("ReplayRefused")
def test_what_cannot_be_done_is_refused_before_anything_is(
    run: Run, request_: ReplayRequest, problem: str, told: Told
) -> None:
    with told(ReplayRefused, problem, "Correct the form's answers"), leased_replay(run, request_):
        pass
    assert Store(run.config.lake).list("shop/replays") == []
    moment = "" if request_.step == "rebuild" else "0/64"
    with leased_replay(run, ReplayRequest(request_.step, ("s.a",), moment)) as plan:
        assert list(plan.keys) == ["s.a"]


def test_the_form_as_it_comes_is_every_merged_table_as_of_what_all_of_them_have(run: Run, book: Ledger) -> None:
    with pytest.raises(ReplayRefused, match="it names no table"), leased_replay(run, ReplayRequest("as_of", ())):
        pass
    positions.rise(book, 1, {"s.a": (Lsn(200), Lsn(200)), "s.b": (Lsn(150), Lsn(150))})
    with leased_replay(run, ReplayRequest("as_of", ())) as plan:
        assert (sorted(plan.keys), plan.moment) == (["s.a", "s.b"], str(Lsn(100))), "a batch counts as a whole"
    with leased_replay(run, ReplayRequest("as_of", ("s.a",))) as plan:
        assert (list(plan.keys), plan.moment) == (["s.a"], str(Lsn(200)))


def test_a_result_is_taken_once_and_leaves_no_files(run: Run) -> None:
    with leased_replay(run, ReplayRequest("rebuild", ("s.a",))) as plan:
        result = ReplayResult(plan.plan, (ReplayedTable("s.a", "path", "0/64 of generation 1", 3),))
        path = f"{layout.replay_folder('shop', plan.plan)}/result.json"
        Store(run.config.lake).write_atomic(path, result.to_json().encode())
    assert take_result(run, plan) == result
    assert take_result(run, plan) is None
    assert Store(run.config.lake).list("shop/replays") == []
