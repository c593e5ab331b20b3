"""The level of a plan: tables outside the plan with nothing left to merge are complete up to what is staged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.merging.test_plan_and_ingest import BROKEN, applied, plan_for
from tests.support.manifests import manifest_of, path_of
from tests.support.pipeline import pipeline_config
from tidemark.capture.complete_tables import level_of_plan
from tidemark.config import PipelineConfig
from tidemark.formats.merge_plan import MergePlan, StagedLevel
from tidemark.ledger.captured import backfill_marks, joins, merge_states
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.staged import batches, generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn, WalPoint


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    return pipeline_config("shop", tmp_path, (), {})


@pytest.fixture(autouse=True)
def opened(generation: Generation) -> None:
    """Batches begin at 100."""


def register(book: Ledger, lease: Lease, start: int, *names: str) -> None:
    manifest = manifest_of(start, start + 100, *names)
    batches.register(book, lease, manifest, path_of(manifest))


def test_a_plan_names_the_tables_of_which_nothing_waits(
    config: PipelineConfig, ledger: str, book: Ledger, lease: Lease
) -> None:
    register(book, lease, 100, "s.a", "s.b", "s.c")
    applied(config, ledger, plan_for(config, ledger))
    register(book, lease, 200, "s.a", "s.b")
    merge_states.park(book, "s.b", BROKEN)
    joins.join(book, "s.c", 800, WalPoint(1, Lsn(50)), backfill=None)
    plan = plan_for(config, ledger)
    assert plan is not None
    assert [table.table for table in plan.tables] == ["s.a"]
    committed_at = generations.required(book).last_committed_at
    when = None if committed_at is None else committed_at.isoformat()
    assert plan.level == StagedLevel(1, Lsn(300), when, ("s.c",), ("s.a",))
    assert MergePlan.from_json(plan.to_json()) == plan


def test_a_batch_that_is_registered_while_a_plan_is_made_leaves_its_tables_out(
    config: PipelineConfig, ledger: str, book: Ledger, lease: Lease
) -> None:
    register(book, lease, 100, "s.a", "s.b")
    applied(config, ledger, plan_for(config, ledger))
    before = generations.required(book)
    assert level_of_plan(book, before, {"s.a": batches.unapplied(book, names=["s.a"])}).tables == ("s.b",)
    register(book, lease, 200, "s.b")
    assert level_of_plan(book, before, {"s.a": batches.unapplied(book, names=["s.a"])}).tables == ()
    assert (before.number, before.staged_lsn) == (1, Lsn(200))


def test_a_table_that_needs_a_backfill_is_level_and_not_exact(
    config: PipelineConfig, ledger: str, book: Ledger, lease: Lease
) -> None:
    register(book, lease, 100, "s.a")
    applied(config, ledger, plan_for(config, ledger))
    joins.join(book, "s.a", 800, WalPoint(1, Lsn(50)), backfill=None)
    joined = level_of_plan(book, generations.required(book), {})
    assert (joined.lsn, joined.tables, joined.inexact) == (Lsn(200), ("s.a",), ())
    backfill_marks.mark(book, "s.a", backfill_marks.GAP, "a gap")
    assert level_of_plan(book, generations.required(book), {}).inexact == ("s.a",)
