"""Slots and publications of somebody else: none is read, changed or dropped because a file names it (R9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import wait_for
from tests.capture.preflight.shop import Shop, said, since_18
from tidemark.capture.preflight import preflight_report as preflight_module
from tidemark.capture.preflight import slot_and_publication
from tidemark.capture.waiting import changes_waiting
from tidemark.errors import PublicationUnknown, SlotBusy, SlotUnknown
from tidemark.findings import Report
from tidemark.lsn import Lsn
from tidemark.source.wal import slot as slots
from tidemark.source.wal.replication import ReplicationStream


def make_slot(shop: Shop) -> str:
    """Somebody's slot, which stands where it was made, and the publication that it may be read with."""
    shop.sql(
        f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders WITH (publish_via_partition_root)",
        f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')",
        "INSERT INTO shop.orders VALUES (7, 'not read by its owner yet')",
    )
    return confirmed(shop)


def confirmed(shop: Shop) -> str:
    query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{shop.config.slot}'"
    return str(shop.sql(query)[0][0])


@contextmanager
def reading(shop: Shop, application_name: str) -> Iterator[ReplicationStream]:
    """Somebody reads the slot while the block runs, and has let go of it at its end."""
    with ReplicationStream(
        shop.source,
        application_name=application_name,
        slot=shop.config.slot,
        publication=shop.config.publication,
        start=Lsn.parse(confirmed(shop)),
        confirmed=None,
    ) as stream:
        yield stream
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{shop.config.slot}' AND active"
    wait_for("the slot is free", lambda: not shop.sql(active))


def causes(report: Report) -> list[type[Exception]]:
    return [type(finding.cause) for finding in report.errors if finding.cause is not None]


class TestASlotOfSomebodyElse:
    def test_it_is_refused_named_and_stays_where_it_stands(self, shop: Shop) -> None:
        stood = make_slot(shop)
        report = shop.preflight()
        assert causes(report) == [SlotUnknown]
        assert stood in said(report, "slot")
        assert "--adopt-slot" in said(report, "slot")
        with pytest.raises(SlotUnknown):
            shop.settle()
        assert (confirmed(shop), shop.generation()) == (stood, None)

    def test_adopted_by_hand_it_is_gone_on_with_from_where_it_stands(self, shop: Shop) -> None:
        stood = make_slot(shop)
        report = shop.sound(says=["adopt_slot"])
        assert "from now on" in said(report, "slot", "note")
        generation = shop.generation()
        assert generation is not None
        assert (str(generation.start_lsn), str(generation.staged_lsn)) == (stood, stood)
        shop.sound()

    def test_it_is_refused_too_where_the_pipeline_reads_another_one(self, shop: Shop) -> None:
        shop.sound()
        first = shop.config.slot
        shop.config = replace(shop.config, slot=f"{first}_other")
        shop.sql(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")
        try:
            assert causes(shop.preflight()) == [SlotUnknown]
            with pytest.raises(SlotUnknown):
                shop.settle()
            assert changes_waiting(shop.config, source=shop.source, ledger=shop.ledger).waiting
        finally:
            shop.drop_slot()
            shop.drop_slot(first)

    def test_one_that_another_server_has_under_the_name_is_not_taken_for_ours(self, shop: Shop) -> None:
        """The connection leads to another server, and there the name is somebody else's."""
        shop.sound()
        with psycopg.connect(shop.ledger, autocommit=True) as book:
            for table in ("generations", "belongings"):
                book.execute(
                    f"UPDATE tidemark.{table} SET system_identifier = '7' WHERE pipeline = %s".encode(),
                    (shop.config.pipeline,),
                )
        assert causes(shop.preflight()) == [SlotUnknown]

    def test_the_advice_to_drop_a_slot_is_for_ones_own_alone(self, shop: Shop) -> None:
        """Its publication is missing, as it is where the file names a slot by mistake."""
        shop.sql(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")
        report = shop.preflight()
        assert causes(report) == [SlotUnknown]
        assert "pg_drop_replication_slot" not in str(report)
        assert shop.published() == set()

    def test_of_ones_own_it_is_said_that_it_is(self, shop: Shop) -> None:
        shop.sound()
        shop.sql(f"DROP PUBLICATION {shop.config.publication}")
        assert f"pg_drop_replication_slot('{shop.config.slot}')" in said(shop.preflight(), "publication")

    @since_18
    def test_an_invalidated_one_is_not_advised_to_be_dropped(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        make_slot(shop)
        real = slots.read_slot

        def lost(connection: psycopg.Connection[Any], name: str) -> slots.SlotState | None:
            state = real(connection, name)
            return None if state is None else replace(state, wal_status="lost")

        monkeypatch.setattr(slots, "read_slot", lost)
        report = shop.preflight()
        assert causes(report) == [SlotUnknown]
        with pytest.raises(SlotUnknown):
            shop.settle()


class TestAnActiveSlot:
    def test_that_of_another_program_is_named_with_its_reader_and_not_adopted(self, shop: Shop) -> None:
        make_slot(shop)
        with reading(shop, "somebody's reader") as stream:
            report = shop.preflight()
            assert f"process {stream.pid}, application_name somebody's reader" in said(report, "slot")
            report = shop.preflight(says=["adopt_slot"])
            assert causes(report) == [SlotBusy]
            assert f"process {stream.pid} (application_name somebody's reader)" in said(report, "slot")
            assert shop.generation() is None

    def test_ones_own_slot_read_by_another_program_stops_the_preflight(self, shop: Shop) -> None:
        shop.sound()
        with reading(shop, "somebody's reader"):
            assert causes(shop.preflight()) == [SlotBusy]
        shop.sound()

    def test_a_drain_of_our_own_is_not_in_the_way(self, shop: Shop) -> None:
        shop.sound()
        with reading(shop, shop.config.application_name):
            shop.sound()

    def test_a_slot_of_somebody_else_is_not_taken_for_a_dead_attempt_of_ours(self, shop: Shop) -> None:
        """Another installation has a pipeline of the same name: its drain calls itself as ours would."""
        make_slot(shop)
        with reading(shop, shop.config.application_name) as stream:
            assert causes(shop.preflight(says=["adopt_slot"])) == [SlotBusy]
            row = shop.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {stream.pid}")
            assert row == [(1,)]


class TestWhoMadeIt:
    def test_a_slot_whose_maker_died_before_the_ledger_knew_its_generation_is_our_own(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(preflight_module, "settle", crash)
            with pytest.raises(KeyboardInterrupt):
                shop.preflight()
        assert (shop.slots(), shop.generation()) == ([shop.config.slot], None)
        shop.sound()

    def test_a_slot_that_somebody_makes_between_look_and_making_is_not_ours(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = slot_and_publication.create_slot

        def later(*arguments: Any) -> bool:
            monkeypatch.undo()
            shop.sql(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")
            return real(*arguments)

        monkeypatch.setattr(slot_and_publication, "create_slot", later)
        assert causes(shop.preflight()) == [SlotUnknown]
        assert causes(shop.preflight()) == [SlotUnknown]

    def test_what_the_server_refused_to_make_is_not_noted(self, shop: Shop) -> None:
        shop.with_bounds(drain_stall_s=1)
        blocking = shop.open()
        blocking.execute("INSERT INTO shop.orders VALUES (1)")
        shop.preflight()
        blocking.rollback()
        shop.sql(f"SELECT pg_create_logical_replication_slot('{shop.config.slot}', 'pgoutput')")
        assert causes(shop.preflight()) == [SlotUnknown]

    def test_a_ledger_that_was_lost_knows_its_slot_from_staging(self, shop: Shop) -> None:
        shop.sound()
        forget_everything(shop)
        shop.sound()
        generation = shop.generation()
        assert generation is not None
        assert generation.number == 1

    def test_a_pipeline_older_than_these_notes_knows_its_slot_from_its_generations(self, shop: Shop) -> None:
        shop.sound()
        with psycopg.connect(shop.ledger, autocommit=True) as book:
            book.execute("DELETE FROM tidemark.belongings WHERE pipeline = %s", (shop.config.pipeline,))
        shop.sound()


class TestAPublicationOfSomebodyElse:
    def publish(self, shop: Shop) -> None:
        shop.sql(
            "CREATE TABLE public.other (id int PRIMARY KEY)",
            f"CREATE PUBLICATION {shop.config.publication} FOR TABLE public.other WITH (publish_via_partition_root)",
        )

    def test_its_tables_stay_what_they_are(self, shop: Shop) -> None:
        self.publish(shop)
        report = shop.preflight()
        assert causes(report) == [PublicationUnknown]
        assert "add shop.orders, take out public.other" in said(report, "publication")
        assert (shop.published(), shop.slots()) == ({"other"}, [])

    def test_one_that_appears_while_ours_is_made_stays_what_it_is(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = slot_and_publication.publication.change

        def later(*arguments: Any, **options: Any) -> None:
            monkeypatch.undo()
            self.publish(shop)
            real(*arguments, **options)

        monkeypatch.setattr(slot_and_publication.publication, "change", later)
        assert causes(shop.preflight()) == [PublicationUnknown]
        assert shop.published() == {"other"}

    def test_adopted_by_hand_it_follows_the_file(self, shop: Shop) -> None:
        self.publish(shop)
        shop.sound(says=["adopt_slot"])
        assert shop.published() == {"orders"}

    def test_one_that_needs_no_change_is_used_and_stays_its_owners(self, shop: Shop) -> None:
        shop.sql(f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders")
        shop.sound()
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        assert causes(shop.preflight()) == [PublicationUnknown]
        assert shop.published() == {"orders"}


def forget_everything(shop: Shop) -> None:
    """The ledger is another one, of which nothing is written yet."""
    with psycopg.connect(shop.ledger, autocommit=True) as book:
        for table in (
            "belongings",
            "relations",
            "schema_versions",
            "tables",
            "generations",
            "leases",
            "pipeline_files",
            "pipelines",
        ):
            book.execute(
                f"DELETE FROM tidemark.{table} WHERE pipeline = %s".encode(),
                (shop.config.pipeline,),
            )
