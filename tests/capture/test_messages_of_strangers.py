"""Any login may call pg_logical_emit_message: nothing that one writes there stops a drain, or misleads it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import drop_database
from tests.support.pipeline import Pipeline
from tidemark.capture import drain as drain_module
from tidemark.formats.watermark import LONGEST_BYTES, Watermark

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"

_MARK: dict[str, Any] = {
    "kind": "watermark",
    "side": "high",
    "pipeline": "orders",
    "generation": 1,
    "backfill": "b1",
    "table": "public.orders",
    "chunk": "1-1",
    "attempt": "00000000-0000-0000-0000-000000000001",
}

ODD = {
    "nested deeply": "[" * 200_000,
    "nested deeply, yet short": "[" * 4000,
    "nested deeply in an object": '{"kind":' * 500,
    "no JSON": "\x01 or anything",
    "empty": "",
    "null": "null",
    "a number": "1" * 4000,
    "a list": "[]",
    "a side that is a list": json.dumps({**_MARK, "side": ["high"]}),
    "a chunk that is an object": json.dumps({**_MARK, "chunk": {"a": 1}}),
    "a backfill that is a list": json.dumps({**_MARK, "backfill": []}),
    "a table that is null": json.dumps({**_MARK, "table": None}),
    "a generation that is true": json.dumps({**_MARK, "generation": True}),
    "a generation that is infinite": json.dumps({**_MARK, "generation": float("inf")}),
    "an attempt that is no UUID": json.dumps({**_MARK, "attempt": "x"}),
    "half a surrogate pair": json.dumps({**_MARK, "chunk": "\ud800"}),
    "a zero": json.dumps({**_MARK, "chunk": "\0"}),
    "a field more": json.dumps({**_MARK, "more": 1}),
    "a field less": json.dumps({name: value for name, value in _MARK.items() if name != "attempt"}),
    "another kind": json.dumps({**_MARK, "kind": ["watermark"]}),
    "a long one": json.dumps({**_MARK, "chunk": "x" * LONGEST_BYTES}),
    "a heartbeat of somebody's": json.dumps({"kind": "heartbeat", "pipeline": "orders", "attempt": {}}),
}


def emit(pipeline: Pipeline, content: bytes, prefix: str = "tidemark", transactional: bool = True) -> None:
    pipeline.connection.execute("SELECT pg_logical_emit_message(%s, %s, %b)", (transactional, prefix, content))


@pytest.fixture
def begun(pipeline: Pipeline) -> Pipeline:
    pipeline.execute(ORDERS)
    pipeline.begin()
    return pipeline


def test_odd_messages_under_our_prefix_are_counted_and_nothing_else(begun: Pipeline) -> None:
    contents = [content.replace('"orders"', f'"{begun.config.pipeline}"').encode() for content in ODD.values()]
    contents += [b"\xff\xfe", b"\x00", json.dumps(_MARK).encode("utf-16")]
    for content in contents:
        emit(begun, content)
        emit(begun, content, transactional=False)
    begun.execute("INSERT INTO orders VALUES (1)")
    result = begun.drain()
    assert (result.reached_target, result.rows, result.skipped_messages) == (True, 1, 2 * len(contents))


def test_a_message_that_is_not_ours_is_not_copied_however_large_it_is(begun: Pipeline) -> None:
    begun.execute("INSERT INTO orders VALUES (1)")
    begun.execute("SELECT pg_logical_emit_message(true, 'application', repeat('x', 100000000))")
    begun.execute("SELECT pg_logical_emit_message(false, 'tidemark', repeat('x', 50000000))")
    begun.execute("SELECT pg_logical_emit_message(true, 'tidemark', repeat('x', 50000000))")
    begun.execute("INSERT INTO orders VALUES (2)")
    tracemalloc.start()
    try:
        result = begun.drain()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (result.reached_target, result.rows, result.skipped_messages) == (True, 2, 3)
    assert peak_bytes < 25_000_000


def test_a_prefix_that_is_not_utf_8_is_one_that_is_not_ours(pipeline: Pipeline, postgres: PostgresServer) -> None:
    database = f"{pipeline.config.pipeline}_ascii"
    with psycopg.connect(postgres.conninfo(), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {database} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'".encode())
    pipeline.source = postgres.conninfo(database)
    try:
        with psycopg.connect(pipeline.source, autocommit=True) as connection:
            pipeline.connection = connection
            pipeline.execute(ORDERS)
            pipeline.begin()
            pipeline.execute("SELECT pg_logical_emit_message(true, E'tidemark\\377', 'x')")
            pipeline.execute("SELECT pg_logical_emit_message(false, E'\\377', 'x')", "INSERT INTO orders VALUES (1)")
            result = pipeline.drain()
            assert (result.rows, result.skipped_messages) == (1, 2)
    finally:
        drop_database(postgres, pipeline.source)


def test_the_heartbeat_of_this_very_run_ends_nothing_in_another_transaction(
    begun: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drain_module.emit_heartbeat

    def forge_first(conn: Any, config: Any, generation: int, attempt: str, *others: Any) -> Any:
        real(begun.connection, config, generation, attempt)
        begun.execute("INSERT INTO orders VALUES (1)")
        heartbeat = real(conn, config, generation, attempt, *others)
        real(begun.connection, config, generation, attempt)
        return heartbeat

    monkeypatch.setattr(drain_module, "emit_heartbeat", forge_first)
    result = begun.drain()
    assert (result.rows, result.reached_target, result.skipped_messages) == (1, True, 1)
    assert begun.manifests()[-1].heartbeat_lsn == begun.manifests()[-1].end_lsn


def test_a_transaction_of_nothing_but_messages_moves_staged(begun: Pipeline) -> None:
    begun.execute(
        "SELECT pg_logical_emit_message(true, 'application', repeat('x', 1000)) FROM generate_series(1, 20000)"
    )
    result = begun.drain()
    assert (result.rows, result.reached_target, result.skipped_messages) == (0, True, 20_000)
    assert begun.manifests()[-1].transaction_count == 2


def test_watermarks_of_chunks_that_nobody_read_are_not_kept(begun: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    watermark_counts: list[int] = []
    real = drain_module.Watermarks.take

    def take(self: Any) -> Any:
        watermark_counts.append(len(self._high))
        return real(self)

    monkeypatch.setattr(drain_module.Watermarks, "take", take)
    mark = Watermark(**{**{k: v for k, v in _MARK.items() if k != "kind"}, "pipeline": begun.config.pipeline})
    begun.connection.execute(
        "SELECT pg_logical_emit_message(true, 'tidemark', replace(%s, '1-1', i || '-1')) "
        "FROM generate_series(1, 3000) i",
        (mark.content(),),
    )
    result = begun.drain()
    assert (result.reached_target, result.skipped_messages, watermark_counts) == (True, 3000, [0])
