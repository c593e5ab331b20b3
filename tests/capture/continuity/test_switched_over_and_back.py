"""Two promotions within a minute, to the standby and back to the very server that was the primary, with changes in
between, a backfill under way, and with or without a run that sees the one in the middle. No Spark: a model merges.

That server has the pipeline's slot still, at the place where it was left, and the standby has one or not. Nothing may
be lost either way, and what is read again is what a gap was said for (R7, R8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.simulation import chunk_model
from tests.simulation.chunk_model import Model
from tests.support.capture import Environment
from tests.support.standby import Standby, rejoined, standby_of
from tidemark.config import TableRule
from tidemark.errors import SourceForked, SourceReplaced
from tidemark.ledger.captured import backfill_marks

pytestmark = pytest.mark.thorough

TABLES = ("item", "line", "bag")


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    # pg_rewind looks for the last checkpoint that both have.
    with running(tmp_path / "primary", 18, fsync="off", wal_keep_size="256MB") as server:
        yield server


@pytest.fixture
def shop(primary: PostgresServer, new_environment: Callable[..., Environment]) -> Environment:
    return new_environment("back", (TableRule("shop.*"), TableRule("shop.bag")), server=primary)


@pytest.fixture
def model(shop: Environment, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Two tables with a key and one without; their rows are in the lake."""
    model = chunk_model.stand_in(shop, monkeypatch)
    shop.execute("CREATE SCHEMA shop")
    shop.execute("CREATE TABLE shop.item (id int PRIMARY KEY, note text)")
    shop.execute("CREATE TABLE shop.line (id int PRIMARY KEY, note text)")
    shop.execute("CREATE TABLE shop.bag (id int, note text)", "ALTER TABLE shop.bag REPLICA IDENTITY FULL")
    for table in TABLES:
        shop.execute(f"INSERT INTO shop.{table} SELECT i, 'from before' FROM generate_series(1, 12) i")
    shop.run()
    shop.backfill()
    assert model.wrongs() == []
    return model


def database(shop: Environment) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(shop.source)["dbname"])


def carry_over(shop: Environment, standby: Standby) -> None:
    def carried_over() -> bool:
        shop.execute("SELECT pg_log_standby_snapshot()")
        shop.run()
        return standby.has_slot(shop.config.slot)

    wait_for("the slot was carried over", carried_over, 120)


def switch_over(shop: Environment, primary: PostgresServer, standby: Standby) -> None:
    """As an operator does it: the primary is shut down, and its standby has all of it."""
    wait_for("the standby has all", lambda: standby.replayed(str(shop.flush_lsn())))
    name = database(shop)
    shop.close()
    primary.stop("fast")
    standby.promote()
    shop.source = standby.conninfo(name)


def change(shop: Environment, number: int) -> None:
    """Something of each kind in each table, on the server that is the primary now."""
    shop.execute("BEGIN")
    for table in TABLES:
        shop.execute(
            f"INSERT INTO shop.{table} VALUES ({100 + number}, 'of life {number}')",
            f"UPDATE shop.{table} SET note = 'of life {number}' WHERE id = {number}",
            f"DELETE FROM shop.{table} WHERE id = {12 - number}",
            f"UPDATE shop.{table} SET id = {200 + number} WHERE id = {number + 4}",
        )
    shop.execute("COMMIT")


def begin_backfill(shop: Environment) -> str:
    """Its first chunk is read, and has no high watermark yet."""
    shop.begin_backfill("shop.item", chunk_rows=2)
    shop.plan()
    shop.crash("read.after_chunk")
    shop.let_leases_end()
    return shop.report.run_id


def whole_run(shop: Environment) -> list[str]:
    """With what is said once before it goes on."""
    try:
        shop.run()
    except (SourceReplaced, SourceForked) as gap:
        shop.run()
        return [str(gap)]
    return []


def marked(shop: Environment) -> dict[str, set[int] | str | None]:
    """The tables that need a backfill: the keys, or the kind of those that need all rows."""
    return {
        table.removeprefix("shop."): row.backfill_kind
        if row.lost_keys is None
        else {int(key[0]) for key in row.lost_keys}
        for table, row in shop.table_rows().items()
        if row.life.needs_backfill
    }


def life(shop: Environment) -> tuple[int, int]:
    generation = shop.generation()
    assert generation is not None
    return generation.number, generation.timeline


def ends_equal(shop: Environment, model: Model) -> None:
    shop.let_leases_end()
    shop.backfill()
    shop.run()
    assert model.wrongs() == []
    assert not shop.run().waiting


@pytest.mark.parametrize("looks", [True, False], ids=["a_run_between", "no_run_between"])
@pytest.mark.parametrize("carried", [True, False], ids=["with_the_slot", "without"])
def test_a_switch_over_and_back_to_the_same_server_loses_nothing(
    shop: Environment, model: Model, primary: PostgresServer, tmp_path: Path, *, carried: bool, looks: bool
) -> None:
    """Its own slot has everything since, whatever the server in the middle had. Only where a run met that one without
    the slot is there a gap: that it will be filled by going back, nobody could know."""
    name = database(shop)
    with standby_of(primary, tmp_path / "standby", name, slots=carried) as standby:
        if carried:
            carry_over(shop, standby)
        change(shop, 1)
        backfill = begin_backfill(shop)
        switch_over(shop, primary, standby)
        back = rejoined(primary, standby, name, name="back")
        change(shop, 2)
        said = whole_run(shop) if looks else []
        change(shop, 3)
        switch_over(shop, standby, back)
        change(shop, 4)
        assert whole_run(shop) == []
        if looks and not carried:
            assert len(said) == 1
            assert "was not carried over" in said[0]
            assert life(shop) == (2, 3)
            assert marked(shop) == dict.fromkeys(TABLES, backfill_marks.GAP)
        else:
            assert said == []
            assert life(shop) == (1, 3)
            assert model.wrongs() == []
            shop.begin_run(backfill)
            shop.read()
            shop.end_backfill()
            assert model.wrongs() == []
        ends_equal(shop, model)


def test_two_promotions_that_each_lose_changes_add_up_what_is_read_again(
    shop: Environment, model: Model, primary: PostgresServer, tmp_path: Path
) -> None:
    """The old primary crashes, is rewound, and takes over again from a server that crashes; between the two nothing is
    repaired."""
    name = database(shop)
    with standby_of(primary, tmp_path / "standby", name) as standby:
        carry_over(shop, standby)
        crash_ahead_of(shop, primary, standby, "UPDATE shop.item SET note = 'lost' WHERE id = 1")
        assert "lost 1 transaction" in whole_run(shop)[0]
        change(shop, 2)
        back = rejoined(primary, standby, name, name="back", rewinds=True)
        carry_over(shop, back)
        assert marked(shop) == {"item": {1}}
        lost = "DELETE FROM shop.item WHERE id = 3; INSERT INTO shop.line VALUES (300, 'lost')"
        crash_ahead_of(shop, standby, back, lost)
        change(shop, 4)
        assert "lost 1 transaction" in whole_run(shop)[0]
        assert life(shop) == (3, 3)
        assert marked(shop) == {"item": {1, 3}, "line": {300}}
        ends_equal(shop, model)


def crash_ahead_of(shop: Environment, primary: PostgresServer, standby: Standby, lost: str) -> None:
    """The lake has what the standby, which takes over, never hears of."""
    wait_for("the standby has all", lambda: standby.replayed(str(shop.flush_lsn())))
    standby.fall_behind()
    shop.execute(lost)
    shop.run()
    name = database(shop)
    shop.close()
    primary.stop("immediate")
    standby.promote()
    shop.source = standby.conninfo(name)
