"""A reader of a backfill or of a verify is halted between two chunks, and the source is another one when it goes on:
its slot was dropped and made again, or a backup from before was put in its place (R7, R8).

What was read before is evidence of nothing by then. The run says that it came to nothing, no verify proves anything by
it, what lies in the gap is said once, and the backfill that follows makes everything equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.simulation import chunk_model
from tests.simulation.chunk_model import Model
from tests.support import stages
from tests.support.capture import Environment, go_on
from tests.support.stage_process import Started
from tests.support.standby import standby_of
from tidemark.backfill.verifying import VerifyRequest
from tidemark.config import TableRule
from tidemark.errors import BackfillClosed, ChangesGone, SourceReplaced, TimelineNotFollowed
from tidemark.ledger.reading import proofs

pytestmark = pytest.mark.thorough


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "primary", 18, fsync="off") as server:
        yield server


@pytest.fixture
def shop(primary: PostgresServer, new_environment: Callable[..., Environment]) -> Environment:
    return new_environment("replaced", (TableRule("shop.*"),), {"chunk_rows": 3}, server=primary)


@pytest.fixture
def model(shop: Environment, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A table whose rows are in the lake."""
    model = chunk_model.stand_in(shop, monkeypatch)
    shop.execute("CREATE SCHEMA shop", "CREATE TABLE shop.item (id int PRIMARY KEY, note text)")
    shop.execute("INSERT INTO shop.item SELECT i, 'from before' FROM generate_series(1, 12) i")
    shop.run()
    shop.backfill()
    assert model.wrongs() == []
    return model


def change(shop: Environment, number: int) -> None:
    """In each of the table's parts: what the reader has read, what it reads next, and what it comes to later."""
    shop.execute(
        f"INSERT INTO shop.item VALUES ({-number}, 'new {number}'), ({100 + number}, 'new {number}')",
        f"UPDATE shop.item SET note = 'changed {number}' WHERE id IN ({number}, {number + 8})",
        f"DELETE FROM shop.item WHERE id = {number + 4}",
    )


def begin(shop: Environment, purpose: str) -> Started:
    """A reader of the table that has recorded its first chunk, and has not written its watermark."""
    if purpose == "backfill":
        shop.begin_backfill("shop.item", chunk_rows=3)
        shop.plan()
    else:
        shop.begin_run("the verify")
        shop.verify_request = VerifyRequest(tables=("shop.item",), share=Fraction(1))
        stages.plan_verify(shop.stage_input())
    return shop.halt("read", "read.after_chunk")


def end(shop: Environment, purpose: str, run_id: str) -> None:
    """The run's other tasks, which go on as if nothing had been: they say that it came to nothing."""
    shop.begin_run(run_id)
    shop.let_leases_end()
    shop.read()
    shop.drain()
    shop.merge()
    shop.confirm()
    if purpose == "backfill":
        with pytest.raises(BackfillClosed, match=r"shop\.item"):
            shop.reported()
        return
    (proof,) = stages.verified(shop.stage_input()).tables
    assert proof.unproven is not None
    assert proof.proven_lsn is None
    with shop.ledger_connection() as book:
        progress = proofs.verified(book).get("shop.item")
    assert progress is None or progress.through_lsn is None


def ends_equal(shop: Environment, model: Model) -> None:
    shop.let_leases_end()
    shop.backfill()
    shop.run()
    assert model.wrongs() == []
    assert not shop.run().waiting
    (proof,) = shop.verify("shop.item").tables
    assert (proof.unproven, proof.outcome.differences) == (None, 0)
    assert proof.through_lsn is not None


@pytest.mark.parametrize("purpose", ["backfill", "verify"])
@pytest.mark.parametrize("sees", ["another_run", "nobody"])
def test_a_slot_made_again_under_a_reader_is_a_gap_and_nothing_is_lost(
    shop: Environment, model: Model, purpose: str, sees: str
) -> None:
    """`another_run`: a capture meets the new slot while the reader is halted; else the reader is through before."""
    change(shop, 1)
    reader = begin(shop, purpose)
    run_id = shop.report.run_id
    shop.drop_slot()
    change(shop, 2)
    shop.create_slot(", false, false, true")
    change(shop, 3)
    if sees == "another_run":
        with pytest.raises(ChangesGone):
            shop.run()
        shop.run()
    said = go_on(reader)
    if sees == "nobody":
        assert said == 0
        with pytest.raises(ChangesGone):
            shop.step("drain")
    change(shop, 4)
    shop.run()
    end(shop, purpose, run_id)
    ends_equal(shop, model)


@pytest.mark.parametrize("purpose", ["backfill", "verify"])
@pytest.mark.parametrize("sees", ["another_run", "nobody"])
def test_a_backup_put_in_the_sources_place_under_a_reader_is_said_and_nothing_is_lost(
    shop: Environment, model: Model, primary: PostgresServer, tmp_path: Path, purpose: str, sees: str
) -> None:
    """The backup is from before changes that the lake has, and that the first chunk saw."""
    moment = {"recovery_target": "immediate", "recovery_target_action": "promote"}
    database = str(psycopg.conninfo.conninfo_to_dict(shop.source)["dbname"])
    with standby_of(primary, tmp_path / "restored", database, slots=False, settings=moment) as restored:
        wait_for("the copy has its own timeline", restored.is_primary)
        change(shop, 1)
        shop.run()
        reader = begin(shop, purpose)
        run_id = shop.report.run_id
        change(shop, 2)
        shop.close()
        primary.stop("immediate")
        shop.source = restored.conninfo(database)
        change(shop, 3)
        go_on(reader)  # its session went with the server
        shop.begin_run(run_id)
        shop.let_leases_end()
        if sees == "nobody":
            with pytest.raises(TimelineNotFollowed):
                shop.read()
        with pytest.raises(SourceReplaced, match=r"lost .* transactions that the lake has"):
            shop.run()
        shop.run()
        change(shop, 4)
        end(shop, purpose, run_id)
        ends_equal(shop, model)
