from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tidemark.errors import LeaseLost, LeaseTaken
from tidemark.ledger import leases
from tidemark.ledger.connection import Ledger, connect, open_ledger
from tidemark.ledger.leases import SLOT, hold, hold_free
from tidemark.postgres.postgres_session import one_row


def test_another_holder_is_refused_with_the_holders_name(ledger: str) -> None:
    with (
        hold(ledger, "shop", SLOT, "drain/1"),
        pytest.raises(LeaseTaken, match="drain/1"),
        hold(ledger, "shop", SLOT, "confirm/2"),
    ):
        pass


def test_who_waits_for_a_lease_says_who_holds_it_and_until_when(ledger: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with (
        hold(ledger, "shop", SLOT, "drain/1"),
        pytest.raises(LeaseTaken),
        hold(ledger, "shop", SLOT, "confirm/2", wait_s=1.2),
    ):
        pass
    assert re.search(r"Waiting for the lease slot, held by drain/1 until 20\d\d-\S+ \d\d:\d\d:\d\d UTC", caplog.text)


def test_a_lease_is_free_again_when_its_block_ends(ledger: str) -> None:
    with hold(ledger, "shop", SLOT, "drain/1") as first:
        pass
    with hold(ledger, "shop", SLOT, "confirm/2") as second:
        assert second.attempt != first.attempt


def test_a_lease_is_given_back_by_another_session_if_its_own_is_gone_and_the_next_one_breaks(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks = iter([True])

    def break_once(conninfo: str) -> psycopg.Connection[Any]:
        if next(breaks, False):
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return connect(conninfo)

    with hold(ledger, "shop", SLOT, "drain/1"), connect(ledger) as other:
        (ended,) = one_row(
            other,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
        )
        assert ended
        monkeypatch.setattr(leases, "connect", break_once)
    assert next(breaks, None) is None
    with hold(ledger, "shop", SLOT, "confirm/2"):
        pass


def test_a_later_try_of_the_same_task_takes_over_at_once_and_the_first_one_loses(ledger: str, book: Ledger) -> None:
    with hold(ledger, "shop", SLOT, "drain/1") as first:
        first.check(book)
        with hold(ledger, "shop", SLOT, "drain/1") as second:
            second.check(book)
            with pytest.raises(LeaseLost, match="slot"):
                first.check(book)
            assert first.lost
        # What the second one gave back was its own.
        with pytest.raises(LeaseLost):
            first.check(book)


def test_the_end_of_a_replaced_attempt_leaves_the_lease_of_its_successor(ledger: str, book: Ledger) -> None:
    first = hold(ledger, "shop", SLOT, "drain/1")
    first.__enter__()
    with hold(ledger, "shop", SLOT, "drain/1") as second:
        first.__exit__(None, None, None)
        second.check(book)


def test_a_lease_outlives_its_length_while_its_task_runs(ledger: str, book: Ledger) -> None:
    with hold(ledger, "shop", SLOT, "drain/1", lease_s=0.6) as lease:
        (first,) = book.execute("SELECT expires_at FROM tidemark.leases").fetchone() or (None,)
        wait_for(
            "the lease was renewed beyond its first end",
            lambda: book.execute(
                "SELECT 1 FROM tidemark.leases WHERE expires_at > %s AND clock_timestamp() > %s", (first, first)
            ).fetchone(),
        )
        lease.check(book)
        with pytest.raises(LeaseTaken), hold(ledger, "shop", SLOT, "confirm/2"):
            pass


def test_the_lease_of_a_killed_process_ends_by_itself(ledger: str, book: Ledger) -> None:
    code = (
        "import sys, signal; from tidemark.ledger.leases import hold\n"
        "with hold(sys.argv[1], 'shop', 'slot', 'drain/1', lease_s=1):\n"
        "    print('held', flush=True); signal.pause()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code, ledger], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        row = book.execute("SELECT attempt::text FROM tidemark.leases").fetchone()
        assert row is not None
        assert not leases.ended(book, row[0])
        process.send_signal(signal.SIGKILL)
    with hold(ledger, "shop", SLOT, "confirm/2", wait_s=20) as lease:
        lease.check(book)
    assert leases.ended(book, row[0])


def test_several_leases_are_taken_all_or_none(ledger: str, book: Ledger) -> None:
    with hold(ledger, "shop", "table:b", "merge/1"):
        with (
            pytest.raises(LeaseTaken, match="table:b"),
            hold(ledger, "shop", ["table:c", "table:b", "table:a"], "merge/2"),
        ):
            pass
        assert book.execute("SELECT name FROM tidemark.leases").fetchall() == [("table:b",)]


def test_a_lease_says_nothing_about_names_it_does_not_hold(ledger: str, book: Ledger) -> None:
    with hold(ledger, "shop", "table:a", "merge/1") as lease, pytest.raises(LeaseLost, match="table:b"):
        lease.check(book, "table:a", "table:b")


def test_a_takeover_waits_for_the_transaction_that_checked(ledger: str, book: Ledger) -> None:
    is_taken = threading.Event()

    def take_over() -> None:
        with hold(ledger, "shop", SLOT, "drain/1"):
            is_taken.set()

    with hold(ledger, "shop", SLOT, "drain/1") as first:
        second = threading.Thread(target=take_over)
        with book.transaction(), open_ledger(ledger, "shop") as witness:
            first.check(book)
            second.start()
            wait_for(
                "the takeover waits for a lock",
                lambda: witness.execute(
                    "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
                ).fetchone(),
            )
            assert not is_taken.is_set()
        second.join()
        assert is_taken.is_set()


def test_a_lease_survives_a_restart_of_the_ledgers_server(tmp_path: Any) -> None:
    from tidemark.ledger.migrations import migrate

    server = PostgresServer(tmp_path / "ledger", settings={"fsync": "off"}).start()
    try:
        migrate(server.conninfo())
        with hold(server.conninfo(), "shop", SLOT, "drain/1", lease_s=3) as lease:
            server.restart("immediate")
            with connect(server.conninfo()) as book:
                (seen,) = book.execute("SELECT expires_at FROM tidemark.leases").fetchone() or (None,)
                wait_for(
                    "the lease is renewed over a new connection",
                    lambda: book.execute("SELECT 1 FROM tidemark.leases WHERE expires_at > %s", (seen,)).fetchone(),
                )
                lease.check(Ledger(book, "shop"))
    finally:
        server.remove()


class TestThoseThatAreFree:
    NAMES = ("table:a", "table:b", "table:c")

    def test_what_another_holds_is_left_with_its_holder_and_the_rest_is_ours(self, ledger: str, book: Ledger) -> None:
        with (
            hold(ledger, "shop", "table:b", "compact/1"),
            hold_free(ledger, "shop", self.NAMES, "merge/1") as ours,
        ):
            assert ours.names == ("table:a", "table:c")
            assert {name: taken.facts["holder"] for name, taken in ours.left.items()} == {"table:b": "compact/1"}
            ours.check(book)
            with pytest.raises(LeaseLost):
                ours.check(book, "table:b")
        with hold(ledger, "shop", self.NAMES, "merge/2"):
            pass

    def test_where_none_is_free_it_is_refused_with_a_holder(self, ledger: str) -> None:
        with (
            hold(ledger, "shop", self.NAMES, "backfill/1"),
            pytest.raises(LeaseTaken, match=r"table:a .* is held by backfill/1"),
            hold_free(ledger, "shop", self.NAMES, "merge/1"),
        ):
            pass

    def test_it_waits_for_the_first_that_becomes_free(self, ledger: str) -> None:
        with ExitStack() as other:
            other.enter_context(hold(ledger, "shop", ["table:a", "table:c"], "compact/1"))
            ends = ExitStack()
            ends.enter_context(hold(ledger, "shop", "table:b", "compact/2"))
            threading.Timer(0.3, ends.close).start()
            with hold_free(ledger, "shop", self.NAMES, "merge/1", wait_s=30) as ours:
                assert ours.names == ("table:b",)

    def test_a_later_try_of_the_task_takes_over_what_the_first_one_got(self, ledger: str, book: Ledger) -> None:
        with (
            hold_free(ledger, "shop", self.NAMES[:2], "merge/1") as first,
            hold_free(ledger, "shop", self.NAMES, "merge/1") as second,
        ):
            assert second.names == self.NAMES
            with pytest.raises(LeaseLost):
                first.check(book)


def test_a_dead_holders_lease_ends_though_the_ledgers_clock_was_put_back(ledger: str, book: Ledger) -> None:
    """It was taken while the clock was a year ahead, as that of a machine that was just started may be."""
    dead = hold(ledger, "shop", [SLOT, "range:b:1"], "drain/1")
    dead.__enter__()
    with ExitStack() as stack:
        stack.callback(dead.__exit__, None, None, None)
        book.execute(
            "UPDATE tidemark.leases SET expires_at = expires_at + interval '1 year', attempt = gen_random_uuid()"
        )
        with hold(ledger, "shop", SLOT, "confirm/2", lease_s=0.5, wait_s=30):
            assert "range:b:1" not in leases.holders(book)


def test_a_living_holder_keeps_its_lease_when_the_ledgers_clock_is_put_back(ledger: str, book: Ledger) -> None:
    with hold(ledger, "shop", SLOT, "drain/1") as lease:
        book.execute("UPDATE tidemark.leases SET expires_at = expires_at + interval '1 year'")
        with pytest.raises(LeaseTaken), hold(ledger, "shop", SLOT, "confirm/2"):
            pass
        lease.check(book)
