"""What the first preflight creates, what it waits for, and which rows are older than the capture."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import wait_for
from tests.capture.preflight.shop import Shop, said
from tidemark.capture.continuity import discontinuity
from tidemark.capture.continuity import generation as generation_module
from tidemark.errors import (
    LeaseLost,
    SlotCreationBlocked,
)
from tidemark.findings import Report
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import merge_states
from tidemark.ledger.connection import open_ledger
from tidemark.staging import staged_folders
from tidemark.storage.store import Store


class TestFirstRun:
    def test_it_creates_publication_slot_and_generation(self, shop: Shop) -> None:
        shop.sound()
        assert shop.published() == {"orders"}
        assert shop.slots() == [shop.config.slot]
        generation = shop.generation()
        assert generation is not None
        assert (generation.number, generation.slot) == (1, shop.config.slot)
        (options,) = shop.sql(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication"
            f" WHERE pubname = '{shop.config.publication}'"
        )
        assert options == (True, True)

    def test_the_second_run_changes_nothing(self, shop: Shop) -> None:
        shop.sound()
        before = (
            shop.sql("SELECT oid, xmin FROM pg_publication UNION ALL SELECT oid, xmin FROM pg_publication_rel"),
            shop.table_rows(),
        )
        generation = shop.generation()
        reports = [shop.sound() for _ in range(3)]
        after = (
            shop.sql("SELECT oid, xmin FROM pg_publication UNION ALL SELECT oid, xmin FROM pg_publication_rel"),
            shop.table_rows(),
        )
        assert after == before
        assert shop.generation() == generation
        assert not any(f.check in ("publication", "slot", "generation", "tables") for r in reports for f in r.findings)

    def test_looking_creates_nothing(self, shop: Shop) -> None:
        report = shop.sound(act=False)
        assert "Would create publication" in said(report, "publication", "note")
        assert "Would create slot" in said(report, "slot", "note")
        assert (shop.published(), shop.slots(), shop.generation()) == (set(), [], None)

    @pytest.mark.parametrize("after", ["publication", "slot", "generation"])
    def test_a_crash_between_two_steps_is_caught_up(
        self, shop: Shop, after: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop.sql("INSERT INTO shop.orders VALUES (1)")
        broken = {
            "publication": "slot_and_publication.create_slot",
            "slot": "preflight_report.settle",
            "generation": "table_joins.joins.join",
        }[after]

        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"tidemark.capture.preflight.{broken}", crash)
            with pytest.raises(KeyboardInterrupt):
                shop.preflight()
        shop.sound()
        assert shop.table_rows()["shop.orders"].life.needs_backfill
        generation = shop.generation()
        assert generation is not None
        assert generation.number == 1

    def test_two_first_runs_at_once_make_one_of_everything(self, shop: Shop) -> None:
        reports: list[Report] = []
        threads = [threading.Thread(target=lambda: reports.append(shop.preflight())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == 2
        shop.sound()
        assert len(shop.slots()) == 1
        generation = shop.generation()
        assert generation is not None
        assert generation.number == 1

    def test_a_try_that_was_overtaken_between_look_and_opening_opens_nothing(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = discontinuity.open_next

        def overtaken(*arguments: Any) -> Any:
            monkeypatch.undo()
            shop.sound(holder="capture/1/preflight")
            return real(*arguments)

        monkeypatch.setattr(discontinuity, "open_next", overtaken)
        assert [type(f.cause) for f in shop.preflight(holder="capture/1/preflight").errors] == [LeaseLost]
        assert staged_folders.generations(Store(shop.config.lake), shop.config.pipeline) == [1]
        assert shop.settle().number == 1

    def test_a_try_that_takes_over_waits_for_a_generation_that_is_being_opened(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the first one wrote to staging is the second one's too, never a number that is taken already."""
        looked, written = threading.Event(), threading.Event()
        again, write = generation_module.register_again, Store.write_new
        second = threading.Thread(target=lambda: shop.preflight(holder="capture/1/preflight"))

        def look(*arguments: Any) -> Any:
            result = again(*arguments)
            if threading.current_thread() is second:
                looked.set()
                assert written.wait(60)
            return result

        def write_late(store: Store, path: str, content: bytes) -> None:
            if path.endswith("generation.json") and threading.current_thread() is not second:
                second.start()
                with psycopg.connect(shop.ledger, autocommit=True) as witness:
                    wait_for(
                        "the second one looked, or waits",
                        lambda: (
                            looked.is_set()
                            or witness.execute(
                                "SELECT 1 FROM pg_locks l JOIN pg_stat_activity USING (pid) "
                                "WHERE NOT granted AND query LIKE '%tidemark.leases%'"
                            ).fetchone()
                        ),
                    )
            write(store, path, content)
            if path.endswith("generation.json"):
                written.set()

        monkeypatch.setattr(generation_module, "register_again", look)
        monkeypatch.setattr(Store, "write_new", write_late)
        shop.preflight(holder="capture/1/preflight")
        second.join()
        monkeypatch.undo()
        assert staged_folders.generations(Store(shop.config.lake), shop.config.pipeline) == [1]
        assert shop.settle().number == 1

    def test_a_publication_that_another_try_commits_while_this_one_waits_is_taken(self, shop: Shop) -> None:
        with psycopg.connect(shop.ledger, autocommit=True) as book:  # as that try did before it began
            book.execute("INSERT INTO tidemark.pipelines (pipeline) VALUES (%s)", (shop.config.pipeline,))
            book.execute(
                "INSERT INTO tidemark.belongings (pipeline, kind, system_identifier, database, name, origin) "
                "VALUES (%s, 'publication', %s, %s, %s, 'made')",
                (shop.config.pipeline, *server_and_database(shop), shop.config.publication),
            )
        other = shop.open()
        name = shop.config.publication
        other.execute(f"CREATE PUBLICATION {name} FOR TABLE shop.orders WITH (publish_via_partition_root)".encode())
        reports: list[Report] = []
        waiting = threading.Thread(target=lambda: reports.append(shop.preflight()))
        waiting.start()
        blocked = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        wait_for("the preflight waits for the other's transaction", lambda: shop.sql(blocked))
        other.commit()
        waiting.join()
        assert not reports[0].errors, str(reports[0])
        assert shop.published() == {"orders"}
        assert len(shop.slots()) == 1


def server_and_database(shop: Shop) -> tuple[str, str]:
    (row,) = shop.sql("SELECT system_identifier::text, current_database()::text FROM pg_control_system()")
    return str(row[0]), str(row[1])


class TestWaiting:
    def test_the_slot_waits_for_open_transactions_and_names_them(self, shop: Shop) -> None:
        shop.with_bounds(drain_stall_s=1)
        blocking = shop.open()
        blocking.execute("INSERT INTO shop.orders VALUES (1)")
        report = shop.preflight()
        assert f"process {blocking.info.backend_pid}" in said(report, "source")
        with pytest.raises(SlotCreationBlocked):
            report.raise_for_errors()
        assert shop.slots() == []
        blocking.rollback()
        shop.sound()
        assert shop.slots() == [shop.config.slot]

    def test_a_locked_table_is_left_out_and_the_others_are_not(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        blocking = shop.open()
        blocking.execute("LOCK TABLE shop.orders IN SHARE MODE")
        text = said(shop.sound(), "publication", "table")
        assert f"process {blocking.info.backend_pid} holds ShareLock on shop.orders" in text
        assert shop.published() == {"lines"}
        blocking.rollback()
        assert said(shop.sound(), "publication", "table") == ""
        assert shop.published() == {"lines", "orders"}


class TestRowsBeforeTheJoin:
    def test_an_empty_table_needs_no_backfill_and_a_filled_one_does(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "INSERT INTO shop.lines VALUES (1)")
        report = shop.sound()
        rows = shop.table_rows()
        assert not rows["shop.orders"].life.needs_backfill
        assert (rows["shop.lines"].life.needs_backfill, rows["shop.lines"].backfill_kind) == (True, "existing_rows")
        assert rows["shop.lines"].join_horizon is not None
        assert "shop.lines needs a backfill" in said(report, "backfill", "warning")
        with open_ledger(shop.ledger, shop.config.pipeline) as book:
            merge_states.park(book, "shop.lines", ErrorRecord("TargetDiffers", "FIX_TARGET", "It differs. Undo that."))
        assert said(shop.sound(), "backfill", "warning") == "", "nothing can be read of a parked table"

    def test_a_row_in_flight_at_the_join_is_not_taken_for_none(self, shop: Shop) -> None:
        """Its transaction began before the table was published, so its rows are in neither chunk nor stream."""
        shop.sound()
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "CREATE TABLE public.other (id int)")
        in_flight = shop.open()
        in_flight.execute("INSERT INTO public.other VALUES (1)")
        shop.sound()
        assert f"process {in_flight.info.backend_pid}" in str(shop.table_rows()["shop.lines"].backfill_reason)
        shop.sound()
        assert shop.table_rows()["shop.lines"].life.needs_backfill
        in_flight.execute("INSERT INTO shop.lines VALUES (1)")
        in_flight.commit()
        shop.sound()
        assert shop.table_rows()["shop.lines"].life.needs_backfill

    def test_the_mark_goes_once_the_table_was_seen_empty(self, shop: Shop) -> None:
        shop.sound()
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "CREATE TABLE public.other (id int)")
        in_flight = shop.open()
        in_flight.execute("INSERT INTO public.other VALUES (1)")
        shop.sound()
        assert shop.table_rows()["shop.lines"].life.needs_backfill
        in_flight.rollback()
        shop.sound()
        assert not shop.table_rows()["shop.lines"].life.needs_backfill

    def test_a_table_seen_empty_has_its_fingerprint_from_that_moment(self, shop: Shop) -> None:
        """What alters it before the first drain looks at it would else be what it always was (R11)."""
        shop.sound()
        before = shop.table_rows()["shop.orders"].fingerprint
        shop.sql("ALTER TABLE shop.orders ADD COLUMN more int DEFAULT 7")
        shop.sound()
        assert before is not None
        assert "more" not in [column["name"] for column in before["columns"]]
        assert shop.table_rows()["shop.orders"].fingerprint == before

    def test_a_delta_table_that_is_there_already_is_not_taken_for_empty(self, shop: Shop) -> None:
        path = f"{shop.config.pipeline}/current/shop/orders/_delta_log/00000000000000000000.json"
        Store(shop.config.lake).write_atomic(path, b"{}")
        shop.sound()
        assert shop.table_rows()["shop.orders"].life.needs_backfill
