"""The drain against a real server: what is staged, where batches end, what a second try does."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sandbox.services.postgres import PostgresServer, wait_for
from tests.conftest import drop_database
from tests.support.pipeline import Pipeline
from tidemark.capture import drain as drain_module
from tidemark.capture.continuity import generation
from tidemark.config import TableRule
from tidemark.errors import DrainStalled, GenerationStale, LeaseTaken, ReplicationFailed, SlotBusy
from tidemark.formats import layout
from tidemark.ledger import leases
from tidemark.lsn import Lsn
from tidemark.source.wal.replication import ReplicationStream

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note text)"


@contextmanager
def streaming(pipeline: Pipeline, application_name: str) -> Iterator[ReplicationStream]:
    """Another reader of the pipeline's slot."""
    with ReplicationStream(
        pipeline.source,
        application_name=application_name,
        slot=pipeline.config.slot,
        publication=pipeline.config.publication,
        start=Lsn(0),
        confirmed=None,
    ) as stream:
        yield stream


def before_heartbeat(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Do something at the source when the drain's stream is open and its heartbeat is about to be written."""
    real = drain_module.emit_heartbeat

    def act(*arguments: Any) -> Any:
        action()
        return real(*arguments)

    monkeypatch.setattr(drain_module, "emit_heartbeat", act)


# In PostgreSQL a transaction that fills a table of nobody's takes the stream minutes in which it says nothing. A filter
# that takes long for each row, and lets none through, is the same in small.
SLOW = "slow WHERE (length(repeat('x', 100000 + id)) < 0)"
NOTHING_FOR_SECONDS = ("INSERT INTO slow SELECT generate_series(1, 20000)",)


def publish_slowly(pipeline: Pipeline) -> None:
    name = pipeline.config.publication
    pipeline.execute(
        ORDERS,
        "CREATE TABLE slow (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {name} FOR TABLE orders, {SLOW} WITH (publish_via_partition_root)",
    )
    pipeline.create_slot()


# --- what is staged --------------------------------------------------------------------------------------------------


def test_a_transaction_is_staged_whole_and_in_order(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute(
        "BEGIN",
        "INSERT INTO orders SELECT i, i * 1.5, 'n' || i FROM generate_series(1, 3) i",
        "UPDATE orders SET note = NULL WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
        "COMMIT",
    )
    result = pipeline.drain()

    assert result.reached_target
    assert result.rows == 5
    rows = pipeline.staged("public.orders")
    assert [(r["_op"], r["id"], r["note"]) for r in rows] == [
        ("insert", 1, "n1"),
        ("insert", 2, "n2"),
        ("insert", 3, "n3"),
        ("update", 2, None),
        ("delete", 3, None),
    ]
    assert [r["_ordinal"] for r in rows] == [0, 1, 2, 3, 4]
    assert len({(r["_commit_lsn"], r["_xid"], r["_committed_at"]) for r in rows}) == 1


def test_the_transaction_index_has_64_bit_ids_and_the_tables_of_each_transaction(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS, "CREATE TABLE lines (id int PRIMARY KEY)")
    pipeline.begin()
    with pipeline.connection.transaction():
        xid = pipeline.one("SELECT pg_current_xact_id()::text::bigint")
        pipeline.execute("INSERT INTO orders VALUES (1)", "INSERT INTO lines VALUES (1)")
    pipeline.execute("INSERT INTO lines VALUES (2)")
    pipeline.drain()

    first, second, heartbeat = pipeline.transactions()
    assert (first["xid"], sorted(first["tables"])) == (xid, ["public.lines", "public.orders"])
    assert second["tables"] == ["public.lines"]
    assert heartbeat["tables"] == []
    assert {r["_xid"] for r in pipeline.staged("public.orders")} == {xid}


def test_left_out_columns_and_clear_values_of_masked_ones_never_reach_staging(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE people (id int PRIMARY KEY, name text, phone text, born date)")
    rule = TableRule("public.people", leave_out=("born",), mask={"name": "sha256", "phone": "null"})
    pipeline.with_tables(rule)
    pipeline.begin()
    pipeline.execute("INSERT INTO people VALUES (1, 'Ada Lovelace', '555-1815', '1815-12-10')")
    pipeline.drain()

    (row,) = pipeline.staged("public.people")
    assert "born" not in row
    assert row["phone"] is None
    assert len(row["name"]) == 64
    for folder, _, files in os.walk(pipeline.config.lake):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                assert b"Lovelace" not in file.read()


def test_tables_that_no_rule_names_are_left_out_and_count_in_the_ordinals(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS, "CREATE TABLE other (id int PRIMARY KEY)")
    pipeline.with_tables(TableRule("public.orders"))
    pipeline.begin()
    pipeline.execute("BEGIN", "INSERT INTO other VALUES (1), (2)", "INSERT INTO orders VALUES (1)", "COMMIT")
    pipeline.drain()

    assert [t.table for m in pipeline.manifests() for t in m.tables] == ["public.orders"]
    assert [r["_ordinal"] for r in pipeline.staged("public.orders")] == [2]


def test_messages_and_heartbeats_of_others_are_skipped_and_counted(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute("SELECT pg_logical_emit_message(true, 'application', 'hello')")
    pipeline.execute("SELECT pg_logical_emit_message(false, 'application', 'hello')")
    drain_module.emit_heartbeat(pipeline.connection, pipeline.config, 1, "the attempt of another")
    pipeline.execute("INSERT INTO orders VALUES (1)")
    result = pipeline.drain()

    assert result.reached_target
    assert result.rows == 1
    assert result.skipped_messages == 3


def test_a_batch_without_changes_moves_staged_and_has_no_files_but_its_manifest(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    result = pipeline.drain()

    (manifest,) = pipeline.manifests()
    assert (manifest.tables, manifest.transactions, manifest.transaction_count) == ((), None, 1)
    assert manifest.heartbeat_lsn == manifest.end_lsn == result.staged_lsn
    folder = layout.batch_folder(pipeline.config.pipeline, 1, manifest.start_lsn, manifest.attempt)
    assert pipeline.store.list(folder) == ["manifest.json"]


# --- where batches end -----------------------------------------------------------------------------------------------


def test_a_batch_ends_at_the_first_commit_after_its_bound_of_rows(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.with_bounds(batch_rows=10)
    for i in range(5):
        pipeline.execute(f"INSERT INTO orders SELECT {i} * 4 + i FROM generate_series(1, 4) i")
    result = pipeline.drain()

    assert [m.tables[0].rows for m in pipeline.manifests() if m.tables] == [12, 8]
    assert result.reached_target
    ends = [start for start, _ in result.batches[1:]]
    assert ends == [end for _, end in result.batches[:-1]]
    assert [r["id"] for r in pipeline.staged("public.orders")] == list(range(1, 21))


def test_a_transaction_larger_than_every_bound_is_one_batch(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.with_bounds(batch_rows=10, batch_bytes=4096, batch_s=1)
    pipeline.execute("INSERT INTO orders VALUES (-1)")
    pipeline.execute("INSERT INTO orders SELECT i, i, repeat('x', 100) FROM generate_series(1, 20000) i")
    pipeline.execute("INSERT INTO orders VALUES (-2)")
    pipeline.drain()

    of_transaction = {}
    for number, manifest in enumerate(pipeline.manifests()):
        if manifest.tables:
            of_transaction[number] = manifest.tables[0].rows
    assert sum(of_transaction.values()) == 20002
    assert any(rows >= 20000 for rows in of_transaction.values())
    assert len(pipeline.staged("public.orders")) == 20002


def test_a_backlog_is_drained_batch_by_batch_and_what_run_s_leaves_is_the_next_runs(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.with_bounds(batch_rows=5)
    for i in range(6):
        pipeline.execute(f"INSERT INTO orders SELECT {i} * 5 + i FROM generate_series(1, 5) i")

    first = pipeline.drain(run_s=0)
    assert (first.reached_target, first.rows, len(first.batches)) == (False, 5, 1)
    second = pipeline.drain()
    assert (second.reached_target, second.rows) == (True, 25)
    assert second.batches[0][0] == first.batches[-1][1]
    assert [r["id"] for r in pipeline.staged("public.orders")] == list(range(1, 31))


# --- tries and runs --------------------------------------------------------------------------------------------------


def test_a_second_try_of_a_finished_run_returns_its_batches_and_stages_nothing(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    first = pipeline.drain("monday")
    pipeline.execute("INSERT INTO orders VALUES (2)")
    pipeline.drain("tuesday")

    again = pipeline.drain("monday")
    assert again.batches == first.batches
    assert again.rows == 1
    assert len(pipeline.registered()) == 2


def test_a_second_try_goes_on_where_the_first_did_not_reach_its_heartbeat(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.with_bounds(batch_rows=1)
    pipeline.execute("INSERT INTO orders VALUES (1)", "INSERT INTO orders VALUES (2)")
    first = pipeline.drain("monday", run_s=0)
    again = pipeline.drain("monday")

    assert not first.reached_target
    assert again.reached_target
    assert again.batches[0] == first.batches[0]
    assert again.rows == 2


def test_two_drains_at_once_stage_every_change_once(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    with leases.hold(pipeline.ledger, pipeline.config.pipeline, leases.SLOT, "another run"), pytest.raises(LeaseTaken):
        pipeline.drain()
    pipeline.drain()
    assert [r["id"] for r in pipeline.staged("public.orders")] == [1]


# --- the slot --------------------------------------------------------------------------------------------------------


def test_a_drain_reads_much_foreign_wal_and_leaves_the_slot_where_it_was(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS, "CREATE UNLOGGED TABLE nothing (id int)", "CREATE TABLE foreign_table (t text)")
    pipeline.with_tables(TableRule("public.orders"))
    pipeline.begin()
    before = pipeline.confirmed_lsn()
    pipeline.execute("INSERT INTO foreign_table SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
    result = pipeline.drain()

    assert result.staged_lsn - before > 10_000_000
    assert pipeline.confirmed_lsn() == before


def test_a_slot_that_a_dead_attempt_still_holds_is_taken_over(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    with streaming(pipeline, pipeline.config.application_name) as zombie:
        result = pipeline.drain()
        assert result.rows == 1
        with pytest.raises(ReplicationFailed):
            wait_for("the zombie's stream ends", lambda: zombie.read(1, 0.1) and False)


def test_a_slot_that_another_application_reads_is_named_and_left_alone(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "SLOT_WAIT_S", 0.3)
    pipeline.execute(ORDERS)
    pipeline.begin()
    with streaming(pipeline, "somebody else") as other:
        with pytest.raises(SlotBusy, match=f"process {other.pid} .application_name somebody else.") as busy:
            pipeline.drain()
        assert busy.value.facts["pid"] == other.pid
        assert pipeline.one(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {other.pid}") == 1


def test_a_slot_moved_between_the_judgement_and_the_stream_stages_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.drain()
    settle = generation.settle

    def settle_and_move(*arguments: Any) -> Any:
        settled = settle(*arguments)
        pipeline.execute("INSERT INTO orders VALUES (1)")
        pipeline.advance()
        return settled

    monkeypatch.setattr(generation, "settle", settle_and_move)
    with pytest.raises(GenerationStale):
        pipeline.drain()
    assert len(pipeline.registered()) == 1


def test_a_slot_that_retains_too_much_is_confirmed_up_to_staged_first(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    first = pipeline.drain()
    assert pipeline.confirmed_lsn() < first.staged_lsn
    pipeline.with_bounds(wal_valve_bytes=1)
    second = pipeline.drain()
    assert pipeline.confirmed_lsn() == first.staged_lsn
    assert second.staged_lsn > first.staged_lsn


# --- when the source fails -------------------------------------------------------------------------------------------


def test_a_walsender_that_dies_in_mid_stream_is_a_retry_that_loses_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    with monkeypatch.context() as patch:
        before_heartbeat(patch, lambda: pipeline.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication"))
        with pytest.raises(ReplicationFailed):
            pipeline.drain("monday")
    assert pipeline.registered() == []
    assert pipeline.drain("monday").rows == 1


def test_a_silent_server_is_a_retry_that_names_the_cause(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.with_bounds(drain_stall_s=1)
    stopped: list[int] = []

    def stop_walsender() -> None:
        query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{pipeline.config.slot}'"
        stopped.append(pipeline.one(query))
        waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {stopped[0]} AND wait_event_type IN ('Activity', 'Client')"
        wait_for("the walsender has nothing to do", lambda: pipeline.sql(waits))
        os.kill(stopped[0], signal.SIGSTOP)

    before_heartbeat(monkeypatch, stop_walsender)
    with psycopg.connect(pipeline.source) as other:
        other.execute("CREATE TABLE long_transaction ()")
        its_pid = other.info.backend_pid
        try:
            with pytest.raises(DrainStalled) as stalled:
                pipeline.drain()
        finally:
            os.kill(stopped[0], signal.SIGCONT)
    assert f"walsender (pid {stopped[0]})" in str(stalled.value)
    assert f"the longest open transaction is that of pid {its_pid}" in str(stalled.value)
    assert pipeline.registered() == []


@pytest.mark.thorough
def test_a_server_that_works_through_a_transaction_of_which_nothing_is_published_is_not_stalled(
    pipeline: Pipeline,
) -> None:
    """It says nothing meanwhile, and its position does not move."""
    publish_slowly(pipeline)
    pipeline.drain()
    pipeline.with_bounds(drain_stall_s=1)
    pipeline.execute(*NOTHING_FOR_SECONDS, "INSERT INTO orders VALUES (1)")
    assert pipeline.drain().rows == 1


@pytest.mark.thorough
def test_a_drain_outlasts_what_its_databases_allow_idle_sessions(pipeline: Pipeline) -> None:
    publish_slowly(pipeline)
    pipeline.drain()
    with psycopg.connect(pipeline.ledger, autocommit=True) as ledger:
        for connection in (pipeline.connection, ledger):
            database = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET idle_session_timeout = '500ms'").format(database))
    pipeline.execute(*NOTHING_FOR_SECONDS, "INSERT INTO orders VALUES (1)")
    assert pipeline.drain().rows == 1


def test_changes_written_while_it_drains_wait_for_the_next_run(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    real = drain_module.emit_heartbeat

    def write_after(*arguments: Any) -> Any:
        heartbeat = real(*arguments)
        pipeline.execute("INSERT INTO orders VALUES (1)")
        return heartbeat

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "emit_heartbeat", write_after)
        assert pipeline.drain().rows == 0
    assert pipeline.drain().rows == 1


# --- what attempts leave behind --------------------------------------------------------------------------------------


def test_what_a_dead_attempt_left_is_removed_and_what_is_registered_stays(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS)
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    staged = pipeline.drain().staged_lsn
    home = layout.generation_folder(pipeline.config.pipeline, 1)
    left = layout.batch_folder(pipeline.config.pipeline, 1, staged, "00000000-0000-0000-0000-000000000000")
    pipeline.store.write_atomic(f"{left}/public.orders/v1-1.parquet", b"half a file")
    registered = [name for name in pipeline.store.list(home) if not left.endswith(name)]
    pipeline.execute("INSERT INTO orders VALUES (2)")
    pipeline.drain()

    names = pipeline.store.list(home)
    assert not pipeline.store.exists(left)
    assert set(registered) < set(names)
    assert [r["id"] for r in pipeline.staged("public.orders")] == [1, 2]


def test_bytes_that_are_no_text_in_an_sql_ascii_database_do_not_stop_the_drain(
    postgres: PostgresServer, ledger_database: str, pipeline: Pipeline
) -> None:
    database = "sql_ascii"
    with psycopg.connect(postgres.conninfo(), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {database} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'".encode())
    source = postgres.conninfo(database)
    try:
        with psycopg.connect(source, autocommit=True) as connection:
            there = dataclasses.replace(pipeline, source=source, sessions={"main": connection})
            there.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
            there.begin()
            there.execute("INSERT INTO orders VALUES (1, E'caf\\351'), (2, E'caf\\303\\251')")
            there.drain()
            assert [(r["id"], r["note"], r["_text"]) for r in there.staged("public.orders")] == [
                (1, None, [("note", "caf\\xe9")]),
                (2, "caf\N{LATIN SMALL LETTER E WITH ACUTE}", None),
            ]
    finally:
        drop_database(postgres, source)


def test_a_batch_says_of_each_table_when_its_first_and_last_change_committed(pipeline: Pipeline) -> None:
    pipeline.execute(ORDERS, "CREATE TABLE carts (id int PRIMARY KEY)")
    pipeline.begin()
    for statement in ("orders VALUES (1)", "orders VALUES (2)", "carts VALUES (1)", "orders VALUES (3)"):
        pipeline.execute(f"INSERT INTO {statement}")
    pipeline.drain()
    (manifest,) = pipeline.manifests()
    rows = {table.table: pipeline.staged(table.table) for table in manifest.tables}
    assert len(rows) == 2
    for table in manifest.tables:
        committed = [row["_committed_at"].isoformat() for row in rows[table.table]]
        assert (table.first_committed_at, table.last_committed_at) == (committed[0], committed[-1])
