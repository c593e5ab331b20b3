"""Maintenance costs by what changed: it looks at the tables that were merged since it saw them last."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.manifests import manifest_of, path_of
from tests.support.pipeline import pipeline_config
from tests.support.runs import a_run
from tidemark.formats import layout
from tidemark.formats.compaction_plan import CompactionResult, Kind, TableCompaction
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.staged import batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.maintenance import compaction_runs
from tidemark.maintenance.compaction_runs import THOROUGH_DAYS, plan_inspection
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.storage.store import Store

TABLES = ("s.a", "s.b")
KINDS: tuple[Kind, ...] = ("current", "history")
A_THOROUGH_DAY = datetime.fromordinal(THOROUGH_DAYS * 105_000).replace(tzinfo=UTC)


def folder(table: str, kind: Kind) -> str:
    place = layout.history_table if kind == "history" else layout.current_table
    return place("shop", TableName.parse(table))


@pytest.fixture
def run(tmp_path: Path, ledger: str, book: Ledger, lease: Lease, generation: Generation) -> Run:
    """Both tables were merged, and a maintenance has seen them since."""
    config = pipeline_config("shop", tmp_path, (), {})
    manifest = manifest_of(100, 200, *TABLES)
    batches.register(book, lease, manifest, path_of(manifest))
    positions.rise(book, 1, {table: (Lsn(200), Lsn(200)) for table in TABLES})
    for table in TABLES:
        for kind in KINDS:
            Store(config.lake).write_atomic(f"{folder(table, kind)}/_delta_log/00000000000000000000.json", b"{}")
    run = a_run(config, ledger=ledger, now=lambda: A_THOROUGH_DAY + timedelta(days=1))
    assert inspected(run) == [*TABLES], "no maintenance has seen them yet"
    seen = tuple(TableCompaction(table, kind, 1, 1, bytes=9, rows=1) for table in TABLES for kind in KINDS)
    compaction_runs.note(run, TABLES, [CompactionResult("seen", seen)])
    return run


def inspected(run: Run) -> list[str]:
    plan = plan_inspection(run)
    return [] if plan is None else list(plan.tables)


def test_what_was_not_merged_since_is_not_looked_at(run: Run, book: Ledger, lease: Lease) -> None:
    assert inspected(run) == []
    manifest = manifest_of(200, 300, "s.b")
    batches.register(book, lease, manifest, path_of(manifest))
    positions.rise(book, 1, {"s.b": (Lsn(300), Lsn(300))})
    assert inspected(run) == ["s.b"]


def test_a_table_that_is_missing_is_looked_at_and_parked(run: Run, book: Ledger) -> None:
    shutil.rmtree(Path(run.config.lake) / folder("s.a", "current"))
    assert inspected(run) == ["s.a"]
    compaction_runs.note(run, ["s.a"], [CompactionResult("seen", (TableCompaction("s.a", "history", 1, 1, bytes=9),))])
    parked = book.execute("""SELECT "table" FROM tidemark.tables WHERE state = 'parked'""").fetchall()
    assert parked == [("s.a",)]


def test_every_table_is_looked_at_where_dead_files_are_looked_for(run: Run) -> None:
    thorough = a_run(run.config, ledger=run.ledger, now=lambda: A_THOROUGH_DAY)
    assert inspected(thorough) == [*TABLES]
