"""What is said of slots, publications and servers, done as it is said."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import QUIET
from tests.faults.remedies.conftest import another_row
from tests.support import judge
from tests.support.capture import Environment
from tests.support.remedies import Told, ends_equal
from tests.support.standby import Standby, standby_of
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.errors import (
    ChangesGone,
    ConfirmFailed,
    GenerationMissing,
    PublicationUnknown,
    SlotBusy,
    SlotCreationBlocked,
    SlotDatabaseDiffers,
    SlotInvalidated,
    SlotMissing,
    SlotNotReady,
    SlotOfAnother,
    SlotPluginDiffers,
    SlotSynced,
    SlotTwoPhase,
    SlotUnknown,
    SourceInRecovery,
    SourceReplaced,
    TimelineNotFollowed,
)
from tidemark.formats import layout
from tidemark.postgres.postgres_session import connect_walsender
from tidemark.source.wal import slot as slots
from tidemark.spark_submit.spark_connection import SparkConnection

pytestmark = pytest.mark.thorough

ANOTHER = "Name another slot in the pipeline file, and preflight creates it"


def create_slot(shop: Environment, name: str, kind: str = "logical", options: str = "") -> None:
    plugin = ", 'pgoutput'" if kind == "logical" else ""
    shop.sql(f"SELECT pg_create_{kind}_replication_slot('{name}'{plugin}{options})")


@pytest.mark.walks(
    "SlotOfAnother", "SlotTwoPhase", "SlotDatabaseDiffers", "SlotPluginDiffers", "SlotUnknown", "PublicationUnknown"
)
def test_instead_of_a_slot_that_cannot_be_read_another_one_is_named(
    new_item: Callable[..., Environment],
    new_database: Callable[[str], str],
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = new_item("named")
    shop.execute("INSERT INTO shop.item VALUES (1, 'from before')")
    good = shop.config.slot
    create_slot(shop, f"{good}_physical", "physical")
    create_slot(shop, f"{good}_two_phase", options=", twophase => true")
    create_slot(shop, f"{good}_unknown")
    with psycopg.connect(new_database("elsewhere"), autocommit=True) as elsewhere:
        elsewhere.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"{good}_elsewhere",))
    for name, leaf in {
        "physical": SlotOfAnother,
        "two_phase": SlotTwoPhase,
        "elsewhere": SlotDatabaseDiffers,
        "unknown": SlotUnknown,
    }.items():
        shop.config = replace(shop.config, slot=f"{good}_{name}")
        with told(leaf, "Name another slot in the pipeline file"):
            shop.run()
    # The server of the tests has one plugin, so what is expected is changed, not what the slot has.
    with monkeypatch.context() as patch:
        patch.setattr(slots, "PLUGIN", "another_plugin")
        with told(SlotPluginDiffers, ANOTHER):
            shop.run()
    shop.config = replace(shop.config, slot=good)
    theirs = "CREATE PUBLICATION theirs FOR TABLE public.theirs WITH (publish_via_partition_root)"
    shop.sql("CREATE TABLE public.theirs (id int PRIMARY KEY)", theirs)
    ours = shop.config.publication
    shop.config = replace(shop.config, publication="theirs")
    with told(PublicationUnknown, "Name another publication in the pipeline file, and preflight creates it"):
        shop.run()
    shop.config = replace(shop.config, publication=ours)
    shop.run()
    shop.backfill("shop.item")
    ends_equal(shop)
    assert shop.sql("SELECT tablename FROM pg_publication_tables WHERE pubname = 'theirs'") == [("theirs",)]


@pytest.mark.walks("SlotUnknown", "PublicationUnknown")
def test_or_it_is_said_once_that_it_is_meant_for_this_pipeline(
    new_item: Callable[..., Environment], told: Told
) -> None:
    shop = new_item("adopted")
    create_slot(shop, shop.config.slot)
    theirs = f"CREATE PUBLICATION {shop.config.publication} FOR TABLE public.theirs WITH (publish_via_partition_root)"
    shop.sql("CREATE TABLE public.theirs (id int PRIMARY KEY)")
    shop.execute("INSERT INTO shop.item VALUES (1, 'in its stream')")
    with told(SlotUnknown, "say so once: `tidemark preflight FILE --adopt-slot`"):
        shop.run()
    shop.sql(theirs)
    shop.drop_slot()
    with told(PublicationUnknown, "--adopt-slot`"):
        shop.run()
    create_slot(shop, shop.config.slot)
    preflight(shop.task("preflight"), spark=SparkConnection("local[2]"), says=["adopt_slot"]).raise_for_errors()
    shop.run()
    if judge.marked(shop.table_row("shop.item")):
        shop.backfill("shop.item")
    ends_equal(shop)


@pytest.mark.walks("SlotMissing", "ChangesGone", "SourceReplaced", "GenerationMissing", "SlotCreationBlocked")
def test_after_a_gap_the_next_run_goes_on_and_a_backfill_fills_it(
    new_item: Callable[..., Environment], told: Told
) -> None:
    shop = new_item("gap", drain_stall_s=1)
    with shop.ledger_connection():
        pass
    with psycopg.connect(shop.source) as writer:
        writer.execute("CREATE TABLE public.holds_an_id ()")
        with told(SlotCreationBlocked, "commit or roll them back", "the retry asks again"):
            shop.run()
        with told(GenerationMissing, "Run the pipeline's capture DAG"):
            shop.confirm()
        writer.commit()
    shop.run()
    another_row(shop)
    shop.run()
    assert judge.wrongs(shop) == []

    shop.drop_slot()
    another_row(shop)
    shop.begin_run()
    with told(SlotMissing, "Run the capture DAG: its preflight creates the slot and opens a new generation"):
        shop.drain()
    with told(ChangesGone, "the next run goes on from there. Start a backfill of the pipeline's tables"):
        shop.run()
    shop.run()
    shop.backfill()
    ends_equal(shop)

    # The database was replaced by a copy of itself on another server, as ledger and lake see it.
    opened = Path(str(shop.config.lake), layout.generation_file(shop.config.pipeline, 2))
    raw = json.loads(opened.read_text())
    opened.write_text(json.dumps({**raw, "system_identifier": "7"}))
    shop.ledger_query("UPDATE tidemark.generations SET system_identifier = '7' WHERE number = 2")
    shop.ledger_query("UPDATE tidemark.belongings SET system_identifier = '7' WHERE kind = 'publication'")
    with told(SourceReplaced, "the next run goes on from there. Start a backfill of the pipeline's tables"):
        shop.run()
    another_row(shop)
    shop.run()
    shop.backfill()
    ends_equal(shop)


@pytest.mark.walks("SlotInvalidated", "ChangesGone")
def test_an_invalidated_slot_is_dropped_by_the_statement_that_the_error_prints(
    begun: Callable[..., Environment], told: Told, tmp_path: Path
) -> None:
    with running(tmp_path / "source", 18, **{**QUIET, "max_slot_wal_keep_size": "1MB", "wal_keep_size": "0"}) as server:
        shop = begun("invalid", server=server)
        for number in range(4):
            shop.execute(f"SELECT pg_logical_emit_message(false, 'fill{number}', repeat('x', 1000000))")
            shop.execute("SELECT pg_switch_wal()")
        another_row(shop)
        shop.execute("CHECKPOINT")
        with told(SlotInvalidated, "run the capture DAG, and start a backfill of the pipeline's tables") as invalidated:
            shop.run()
        (drop,) = re.findall(r"\((SELECT [^;]+?\))\)", str(invalidated.value))
        shop.execute(drop)
        with told(ChangesGone, "Start a backfill"):
            shop.run()
        shop.run()
        shop.backfill()
        ends_equal(shop)
        shop.close()


@pytest.mark.walks("SlotBusy", "SlotNotReady", "ConfirmFailed")
def test_a_slot_that_is_in_use_or_not_ready_is_waited_for(
    begun: Callable[..., Environment], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = begun("busy")
    another_row(shop)
    monkeypatch.setattr("tidemark.source.wal.slot_use.BUSY_WAIT_S", 1, raising=False)
    with closing(connect_walsender(shop.source, application_name="somebody's reader")) as walsender:
        command = (
            f'START_REPLICATION SLOT "{shop.config.slot}" LOGICAL 0/0 '
            f"(proto_version '1', publication_names '{shop.config.publication}')"
        )
        walsender.pgconn.send_query(command.encode())
        wait_for(
            "the slot is read",
            lambda: shop.one(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{shop.config.slot}'"),
        )
        with told(SlotBusy, "find out whose slot it is before anything is stopped", "somebody's reader"):
            shop.run()
    free = f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{shop.config.slot}'"
    wait_for("its reader has ended", lambda: shop.one(free))
    ends_equal(shop)

    another_row(shop)
    shop.begin_run()
    shop.drain()
    shop.merge()
    with monkeypatch.context() as patch:
        patch.setattr("tidemark.capture.confirm._advance", lambda *_: None)
        with told(ConfirmFailed, "The retry confirms again"):
            shop.confirm()
    shop.confirm()
    assert shop.confirmed_lsn() == shop.staged_lsn()

    # Somebody makes the slot by hand, behind a transaction that is open.
    shop.drop_slot()
    with psycopg.connect(shop.source) as writer:
        writer.execute("CREATE TABLE public.holds_an_id ()")
        maker = threading.Thread(target=lambda: create_slot(shop, shop.config.slot))
        maker.start()
        query = f"SELECT confirmed_flush_lsn IS NULL FROM pg_replication_slots WHERE slot_name = '{shop.config.slot}'"
        wait_for("the slot is being made", lambda: shop.query(query) == [(True,)])
        shop.begin_run()
        with told(SlotNotReady, "have whoever runs them commit or roll them back", "the retry goes on"):
            shop.drain()
        writer.commit()
        maker.join()
    with pytest.raises(ChangesGone):
        shop.drain()
    shop.run()
    shop.backfill()
    ends_equal(shop)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "primary", 18, fsync="off") as server:
        yield server


@pytest.mark.walks("SourceInRecovery", "SlotSynced", "TimelineNotFollowed")
def test_a_standby_is_left_for_the_primary_or_promoted(
    begun: Callable[..., Environment], primary: PostgresServer, told: Told, tmp_path: Path
) -> None:
    shop = begun("standby", server=primary)
    database = str(psycopg.conninfo.conninfo_to_dict(shop.source)["dbname"])
    with connect_walsender(shop.source, application_name="a_test") as walsender:
        walsender.execute(f"ALTER_REPLICATION_SLOT {shop.config.slot} (FAILOVER true)")
    with standby_of(primary, tmp_path / "standby", database) as standby:

        def carried_over() -> bool:
            shop.execute("SELECT pg_log_standby_snapshot()")
            shop.step("drain")
            shop.step("confirm")
            return standby.has_slot(shop.config.slot)

        wait_for("the slot was carried over", carried_over)
        shop.begin_backfill("shop.item")
        shop.plan()
        at_primary, shop.source = shop.source, standby.conninfo(database)
        with told(SourceInRecovery, "Let the source connection lead to the primary"):
            shop.read()
        with told(SlotSynced, "Let the source connection lead to the primary, or promote this standby first"):
            shop.drain()
        shop.source = at_primary
        another_row(shop)
        shop.run()
        wait_for("the standby has all", lambda: standby.replayed(str(shop.staged_lsn())))
        _fail_over(shop, primary, standby, database)
        backfill = shop.ledger_query("SELECT run_id FROM tidemark.backfills ORDER BY opened_at DESC LIMIT 1")[0][0]
        shop.begin_run(backfill)
        with told(TimelineNotFollowed, "Run the capture DAG: its drain follows the promotion, and the retry goes on"):
            shop.read()
        shop.run()
        shop.begin_run(backfill)
        shop.read()
        shop.run()
        shop.backfill("shop.item")
        ends_equal(shop)
        assert generations_of(shop) == [1]
        shop.close()


def _fail_over(shop: Environment, primary: PostgresServer, standby: Standby, database: str) -> None:
    shop.close()
    primary.stop("immediate")
    standby.promote()
    shop.source = standby.conninfo(database)


def generations_of(shop: Environment) -> list[int]:
    return [number for (number,) in shop.ledger_query("SELECT number FROM tidemark.generations ORDER BY number")]
