"""The database crashes, the slot moves back, forward, or is another one, the ledger is an older copy: never a silent
gap.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database
from tests.faults import workload
from tests.support import judge
from tests.support.capture import Environment, go_on
from tests.support.thorough import thorough
from tidemark.errors import ChangesGone
from tidemark.formats import layout


@pytest.mark.parametrize("at", [*thorough("drain.before_files"), "drain.after_files"])
def test_a_database_restarted_in_mid_stream_costs_one_retry(
    at: str, shop_on_its_own_server: tuple[Environment, PostgresServer]
) -> None:
    shop, server = shop_on_its_own_server
    workload.change(shop)
    shop.begin_run()
    draining = shop.halt("drain", at)
    server.restart("immediate")
    shop.close()
    go_on(draining)
    shop.drain()  # the retry: the same run, the same holder
    shop.merge()
    shop.confirm()
    assert judge.wrongs(shop) == []
    workload.change(shop)
    _in_sync(shop)


@pytest.mark.thorough
def test_a_slot_that_a_crash_moved_back_sends_again_what_is_staged_already(
    shop_on_its_own_server: tuple[Environment, PostgresServer],
) -> None:
    shop, server = shop_on_its_own_server
    shop.execute("CHECKPOINT")
    on_disk = server.data / "pg_replslot" / shop.config.slot / "state"
    at_checkpoint = on_disk.read_bytes()
    workload.change(shop)
    shop.run()
    before = shop.confirmed_lsn()
    shop.close()
    server.stop("immediate")
    on_disk.write_bytes(at_checkpoint)  # a crash loses what was confirmed since; some servers wrote it all the same
    server.start()
    after = shop.confirmed_lsn()
    assert before is not None
    assert after is not None
    assert after < before == shop.staged_lsn(), "the crash did not move the slot back"
    versions = judge.delta_versions(shop)
    shop.run()
    assert judge.delta_versions(shop) == versions
    workload.change(shop)
    _in_sync(shop)


def _advance(shop: Environment) -> None:
    shop.execute(f"SELECT pg_replication_slot_advance('{shop.config.slot}', pg_current_wal_flush_lsn())")


def _create_again(shop: Environment) -> None:
    shop.drop_slot()
    shop.execute(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")


@pytest.mark.thorough
@pytest.mark.parametrize("move", [_advance, *thorough(_create_again)])
def test_a_slot_that_left_changes_behind_says_so_and_the_pipelinego_on(
    move: Callable[[Environment], None], new_shop: Callable[[str], Environment]
) -> None:
    shop = new_shop("moved")
    workload.change(shop)
    shop.run()
    shop.execute("INSERT INTO shop.event VALUES (-1, 'nobody will ever see this')")
    move(shop)
    with pytest.raises(ChangesGone, match="backfill"):
        shop.run()
    assert all(row.life.needs_backfill for row in judge.captured(shop).values())
    _goes_on_after_the_gap(shop)


@pytest.mark.thorough
def test_a_slot_that_was_dropped_is_made_again_and_the_gap_is_said(new_shop: Callable[[str], Environment]) -> None:
    shop = new_shop("dropped")
    workload.change(shop)
    shop.run()
    shop.drop_slot()
    shop.execute("INSERT INTO shop.event VALUES (-1, 'nobody will ever see this')")
    with pytest.raises(ChangesGone, match="backfill"):
        shop.run()
    assert all(row.life.needs_backfill for row in judge.captured(shop).values())
    _goes_on_after_the_gap(shop)


def test_an_advance_within_what_is_staged_is_no_gap(shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    shop.execute(f"SELECT pg_replication_slot_advance('{shop.config.slot}', '{shop.staged_lsn()}')")
    workload.change(shop)
    _in_sync(shop)


@pytest.fixture
def copied_ledger(postgres: PostgresServer) -> Callable[[Environment], str]:
    """A function that copies the ledger's database as it is now."""

    def copy(environment: Environment) -> str:
        return create_database(postgres, "ledger", like=environment.ledger)

    return copy


@pytest.mark.thorough
@pytest.mark.parametrize("confirmed", [True, False], ids=["confirmed", "not_confirmed"])
def test_a_ledger_restored_from_an_older_copy_takes_its_batches_back_from_staging(
    confirmed: bool, new_shop: Callable[[str], Environment], copied_ledger: Callable[[Environment], str]
) -> None:
    shop = new_shop("restored")
    workload.change(shop)
    shop.run()
    older = copied_ledger(shop)
    for _ in range(2):
        workload.change(shop)
        if confirmed:
            shop.run()
        else:
            shop.begin_run()
            shop.drain()
            shop.merge()
    versions = judge.delta_versions(shop)
    shop.ledger = older
    shop.let_leases_end()
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.delta_versions(shop) == versions
    workload.change(shop)
    _in_sync(shop)


@pytest.mark.thorough
def test_a_ledger_restored_without_the_staging_in_between_says_that_changes_are_gone(
    new_shop: Callable[[str], Environment], copied_ledger: Callable[[Environment], str]
) -> None:
    shop = new_shop("lost")
    workload.change(shop)
    shop.run()
    older = copied_ledger(shop)
    staged = shop.staged_lsn()
    workload.change(shop)
    shop.run()
    store = shop.store
    folder = layout.generation_folder(shop.config.pipeline, 1)
    for batch in store.list(folder):
        if staged.hex16 <= batch < "g":  # generation.json stays
            store.delete(f"{folder}/{batch}")
    shop.ledger = older
    shop.let_leases_end()
    with pytest.raises(ChangesGone, match="backfill"):
        shop.run()
    assert all(row.life.needs_backfill for row in judge.captured(shop).values())
    _goes_on_after_the_gap(shop)


def _in_sync(environment: Environment) -> None:
    environment.run()
    assert judge.wrongs(environment) == []
    assert judge.second_run_changes_nothing(environment) == []


def _goes_on_after_the_gap(shop: Environment) -> None:
    """New changes arrive as before, and the tables stay marked: the gap is not forgotten because later runs are green.

    A truncate of a table makes it equal to its source again, gap or not; the mark stays until a backfill has said so.
    """
    workload.change(shop)
    shop.run()
    assert judge.current_equals_source(shop, "shop.event") == []
    assert all(row.life.needs_backfill for row in judge.captured(shop).values())
    assert judge.second_run_changes_nothing(shop) == []
