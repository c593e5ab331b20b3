"""One clean-up of a pipeline with a source of its own, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from tests.support.pipeline import Pipeline
from tests.support.runs import a_run
from tidemark.capture.confirm import confirm
from tidemark.capture.status import read_status
from tidemark.capture.status_text import text
from tidemark.config import Maintenance
from tidemark.errors import LedgerBehindStaging, Move, ParkedKeepsStaging
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import positions, tables
from tidemark.ledger.connection import open_ledger
from tidemark.maintenance.retiring import Retired, retire
from tidemark.run import Run

A, B = "public.a", "public.b"


@pytest.fixture
def shop(pipeline: Pipeline) -> Pipeline:
    """Two tables, and what is staged of them is eight days old, applied to `a` alone, and confirmed."""
    pipeline.config = replace(pipeline.config, maintenance=Maintenance(staging_days=7))
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    pipeline.begin()
    pipeline.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    pipeline.drain()
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        applied = pipeline.registered()[-1].end_lsn
        positions.rise(book, 1, {A: (applied, applied)})
        tables.park(book, B, ErrorRecord("TargetDiffers", Move.FIX_TARGET, "somebody changed it"))
        book.execute("UPDATE tidemark.batches SET registered_at = registered_at - interval '8 days'")
    confirm(run_for(pipeline))
    return pipeline


def run_for(pipeline: Pipeline) -> Run:
    return a_run(pipeline.config, source=pipeline.source, ledger=pipeline.ledger, holder="maintenance/1")


def kept(pipeline: Pipeline) -> list[str]:
    """What the lake has of the batches."""
    home = layout.generation_folder(pipeline.config.pipeline, 1)
    return [
        name
        for folder in pipeline.store.list(home)
        if "-" in folder
        for name in pipeline.store.list(f"{home}/{folder}")
    ]


def test_what_is_old_goes_and_a_parked_table_keeps_its_own(shop: Pipeline) -> None:
    done = retire(run_for(shop))
    assert (done.batches, sorted(done.kept), done.held_by) == (0, [B], "")
    assert kept(shop) == ["manifest.json", B, "transactions.parquet"]
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        applied = shop.registered()[-1].end_lsn
        positions.rise(book, 1, {B: (applied, applied)})
    done = retire(run_for(shop))
    assert (done.batches, sorted(done.kept)) == (1, [])
    assert kept(shop) == []
    said = text(read_status(shop.config, source=shop.source, ledger=shop.ledger))
    assert ": 1 batch removed from staging, 0 Delta tables compacted" in said
    assert retire(run_for(shop)).batches == 0


def test_what_is_young_stays(shop: Pipeline) -> None:
    shop.config = replace(shop.config, maintenance=Maintenance(staging_days=9))
    assert retire(run_for(shop)).batches == 0
    assert kept(shop) == ["manifest.json", A, B, "transactions.parquet"]


def test_a_transaction_that_is_open_keeps_what_came_after_it(shop: Pipeline) -> None:
    with psycopg.connect(shop.source) as other:
        other.execute("SELECT pg_current_xact_id()")
        shop.execute("INSERT INTO a VALUES (2)")
        shop.drain()
        with open_ledger(shop.ledger, shop.config.pipeline) as book:
            applied = shop.registered()[-1].end_lsn
            positions.rise(book, 1, {A: (applied, applied)})
            book.execute("UPDATE tidemark.batches SET registered_at = registered_at - interval '8 days'")
        confirm(run_for(shop))
        done = retire(run_for(shop))
        assert done.held_by == "a transaction that began before is still open at the source"
        assert f"since {done.held_by}" in text(read_status(shop.config, source=shop.source, ledger=shop.ledger))
    assert retire(run_for(shop)).held_by == ""


def test_what_parked_tables_keep_is_bounded(shop: Pipeline) -> None:
    shop.with_bounds(parked_bytes=1)
    with pytest.raises(ParkedKeepsStaging, match=B):
        retire(run_for(shop))
    assert kept(shop) == ["manifest.json", B, "transactions.parquet"], "everything else was removed"


def test_nothing_is_removed_by_a_ledger_that_is_older_than_the_last_clean_up(shop: Pipeline) -> None:
    retire(run_for(shop))
    with open_ledger(shop.ledger, shop.config.pipeline) as book:
        book.execute("UPDATE tidemark.generations SET retired_lsn = NULL")
        with pytest.raises(LedgerBehindStaging):
            retire(run_for(shop))
    shop.drain()  # which learns of it
    assert isinstance(retire(run_for(shop)), Retired)
