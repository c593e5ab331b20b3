"""The replication stream against a real server: what it confirms, what it answers, and that nothing is held back."""

from __future__ import annotations

import dataclasses

import pytest
from psycopg import sql

from sandbox.services.postgres import wait_for
from tests.support.pipeline import Pipeline
from tidemark.errors import DatabaseRefused, ReplicationFailed
from tidemark.lsn import Lsn
from tidemark.source.wal.replication import XLOG_HEADER_BYTES, ReplicationStream, SlotInUse


def open_stream(pipeline: Pipeline, reply_s: float = 10.0, confirmed: Lsn | None = None) -> ReplicationStream:
    return ReplicationStream(
        pipeline.source,
        application_name="stream under test",
        slot=pipeline.config.slot,
        publication=pipeline.config.publication,
        start=Lsn(0),
        confirmed=confirmed,
        reply_s=reply_s,
    )


@pytest.fixture
def opened(pipeline: Pipeline) -> Pipeline:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    pipeline.begin()
    return pipeline


def kinds(payloads: list[bytes]) -> bytes:
    return bytes(p[XLOG_HEADER_BYTES] for p in payloads)


def read_to_commit(stream: ReplicationStream, commits: int = 1) -> bytes:
    read = b""

    def all_commits_are_read() -> bool:
        nonlocal read
        read += kinds(stream.read(1 << 20, 0.5))
        return read.count(b"C") >= commits

    wait_for("the commits were read", all_commits_are_read)
    return read


def test_the_last_small_message_is_not_held_back_behind_a_large_stream(opened: Pipeline) -> None:
    with open_stream(opened) as stream:
        opened.execute("INSERT INTO orders SELECT i, repeat('x', 100) FROM generate_series(1, 50000) i")
        assert read_to_commit(stream) == b"BR" + b"I" * 50000 + b"C"
        opened.execute("INSERT INTO orders VALUES (-1)")
        # The kernel alone would keep these few bytes until half a megabyte is there, far beyond the bounded wait.
        assert read_to_commit(stream) == b"BIC"


def test_the_server_gets_its_replies_while_nobody_reads(opened: Pipeline) -> None:
    opened.execute("SET wal_sender_timeout = '10min'")
    query = "SELECT reply_time::text FROM pg_stat_replication WHERE application_name = 'stream under test'"
    with open_stream(opened, reply_s=0.05) as stream:
        opened.execute("INSERT INTO orders SELECT i, repeat('x', 100) FROM generate_series(1, 50000) i")
        seen: set[str] = set()

        def replied_five_times() -> bool:
            seen.add(opened.one(query))
            return len(seen) > 5

        wait_for("five replies", replied_five_times)
        assert read_to_commit(stream).count(b"I") == 50000


def test_a_reader_that_pauses_longer_than_the_servers_timeout_is_kept(opened: Pipeline) -> None:
    database = opened.one("SELECT current_database()")
    opened.execute(f"ALTER DATABASE {database} SET wal_sender_timeout = '1s'")
    with open_stream(opened, reply_s=0.2) as stream:
        replies = stream.replies
        wait_for("twice the timeout has passed", lambda: stream.replies >= replies + 10)
        opened.execute("INSERT INTO orders VALUES (1)")
        assert read_to_commit(stream) == b"BRIC"


def test_a_keepalive_that_asks_for_a_reply_gets_one(opened: Pipeline) -> None:
    database = opened.one("SELECT current_database()")
    opened.execute(f"ALTER DATABASE {database} SET wal_sender_timeout = '500ms'")
    with open_stream(opened, reply_s=3600) as stream:
        wait_for("three replies", lambda: stream.read(1, 0.1) == [] and stream.replies >= 3)
        opened.execute("INSERT INTO orders VALUES (1)")
        assert read_to_commit(stream) == b"BRIC"


def test_whatever_is_read_the_slot_stays_where_the_ledger_confirmed_it(opened: Pipeline) -> None:
    before = opened.confirmed_lsn()
    for confirmed in (None, before):
        with open_stream(opened, reply_s=0.02, confirmed=confirmed) as stream:
            opened.execute("INSERT INTO orders VALUES (1)", "TRUNCATE orders")
            read_to_commit(stream, 2)
            replies = stream.replies
            wait_for("it replied after it had read", lambda s=stream, r=replies: s.replies > r + 2)
        wait_for("the slot is free", lambda: opened.one("SELECT bool_and(NOT active) FROM pg_replication_slots"))
        assert opened.confirmed_lsn() == before


def test_a_slot_in_use_is_told_apart_from_other_failures(opened: Pipeline) -> None:
    with open_stream(opened), pytest.raises(SlotInUse):
        open_stream(opened)


def test_a_slot_that_does_not_exist_is_named_by_the_server(pipeline: Pipeline) -> None:
    with pytest.raises(ReplicationFailed, match=f'"{pipeline.config.slot}" does not exist'):
        open_stream(pipeline)


def test_a_publication_with_quotes_in_its_name_is_found(pipeline: Pipeline) -> None:
    name = 'it\'s "one"'
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE orders").format(sql.Identifier(name)))
    pipeline.create_slot()
    pipeline.config = dataclasses.replace(pipeline.config, publication=name)
    with open_stream(pipeline) as stream:
        pipeline.execute("INSERT INTO orders VALUES (1)")
        assert read_to_commit(stream) == b"BRIC"


def test_a_server_that_ends_the_stream_is_heard(opened: Pipeline) -> None:
    with open_stream(opened) as stream:
        opened.execute(f"SELECT pg_terminate_backend({stream.pid})")
        with pytest.raises(ReplicationFailed, match="terminating connection"):
            wait_for("the stream ends", lambda: stream.read(1, 0.1) and False)


def test_a_role_that_may_not_connect_is_refused_and_not_tried_again(pipeline: Pipeline) -> None:
    pipeline.source = pipeline.source.replace("user=postgres", "user=nobody_known")
    with pytest.raises(DatabaseRefused):
        open_stream(pipeline)


def test_a_bound_on_transactions_does_not_end_the_stream_within_a_long_one(opened: Pipeline) -> None:
    opened.execute("INSERT INTO orders SELECT i, repeat('x', 100) FROM generate_series(1, 400000) i")
    opened.execute(f"ALTER DATABASE {opened.connection.info.dbname} SET transaction_timeout = '150ms'")
    with open_stream(opened) as stream:
        assert read_to_commit(stream).endswith(b"IC")
