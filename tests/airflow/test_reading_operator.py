"""A reader that is told to end leaves by an exception: its lease is given back, and the next one need not wait."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.conftest import SHOP
from tests.support.airflow_home import postgres_connection
from tidemark.backfill import backfill_report, exported_snapshot, range_reading
from tidemark.backfill.range_reading import ReadResult
from tidemark.config.file_reader import load
from tidemark.errors import DatabaseUnreachable
from tidemark.run import Run
from tidemark_airflow.operators import backfill_operators
from tidemark_airflow.operators.backfill_operators import ReadChunksOperator

CONTEXT: dict[str, Any] = {
    "ti": SimpleNamespace(dag_id="shop_backfill", run_id="manual__1", task_id="read_chunks", map_index=1),
    "params": {"mode": "chunks", "readers": 3},
}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadChunksOperator:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", postgres_connection("host=h port=1 user=u dbname=d"))
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return ReadChunksOperator(task_id="read_chunks", config=load(file), reader=2)


def test_a_reader_names_its_run_and_itself(reader: ReadChunksOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(run: Run, **_: Any) -> ReadResult:
        assert (run.run_id, run.holder) == ("shop_backfill/manual__1", "shop_backfill/manual__1/read_chunks/1")
        return ReadResult(2, 30, 1)

    monkeypatch.setattr(range_reading, "read_chunks", read)
    monkeypatch.setattr(exported_snapshot, "read_exported", None)
    assert reader.execute(CONTEXT) == {"chunks": 2, "rows": 30}


def test_beside_an_exported_snapshot_chunks_are_read_too(
    reader: ReadChunksOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reading, "read_chunks", lambda *_, **__: ReadResult(1, 5, 1))
    monkeypatch.setattr(exported_snapshot, "read_exported", lambda _: ReadResult(3, 100, 1))
    context = {**CONTEXT, "params": {"mode": "exported_snapshot", "readers": 3}}
    assert reader.execute(context) == {"chunks": 4, "rows": 105}


@pytest.fixture
def told_to_end(monkeypatch: pytest.MonkeyPatch, reader: ReadChunksOperator) -> Iterator[list[str]]:
    """A reader that gets SIGTERM while it reads; what it cleans up is in the list."""
    cleaned: list[str] = []

    def read(*_: Any, **__: Any) -> ReadResult:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append("lease")
        return ReadResult(1, 1, 1)

    monkeypatch.setattr(range_reading, "read_chunks", read)
    monkeypatch.setattr(backfill_report, "progress_lines", lambda *_, **__: [])
    # What Airflow's task runner does before it calls execute.
    before = signal.signal(signal.SIGTERM, lambda *_: reader.on_kill())
    yield cleaned
    signal.signal(signal.SIGTERM, before)


def test_a_reader_that_is_told_to_end_cleans_up(reader: ReadChunksOperator, told_to_end: list[str]) -> None:
    with pytest.raises(SystemExit, match="goes on at its cursor"):
        reader.execute(CONTEXT)
    assert told_to_end == ["lease"]


def test_a_reader_that_is_told_to_end_says_what_is_filled(
    reader: ReadChunksOperator, told_to_end: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ids: list[str] = []

    def progress_lines(run: Run) -> list[str]:
        assert told_to_end == ["lease"]
        run_ids.append(run.run_id)
        return ["shop.orders: 5 rows; filled of 2 ranges: range 1 as a whole"]

    monkeypatch.setattr(backfill_report, "progress_lines", progress_lines)
    lines = logged(reader, monkeypatch)
    with pytest.raises(SystemExit):
        reader.execute(CONTEXT)
    assert run_ids == ["shop_backfill/manual__1"]
    (line,) = lines
    assert "filled of 2 ranges: range 1 as a whole" in line
    assert "clearing read_chunks goes on there" in line


def test_a_ledger_that_does_not_answer_delays_no_end(
    reader: ReadChunksOperator, told_to_end: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Event()
    monkeypatch.setattr(backfill_report, "progress_lines", lambda *_, **__: answers.wait(60))
    monkeypatch.setattr(backfill_operators, "TOLD_WITHIN_S", 0.05)
    lines = logged(reader, monkeypatch)
    began = time.monotonic()
    with pytest.raises(SystemExit):
        reader.execute(CONTEXT)
    assert time.monotonic() - began < 30
    answers.set()
    assert "the ledger did not say what is filled" in lines[0]


def test_a_ledger_that_fails_changes_no_end(
    reader: ReadChunksOperator, told_to_end: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def progress_lines(*_: Any, **__: Any) -> list[str]:
        raise DatabaseUnreachable(database="ledger", detail="it is down")

    monkeypatch.setattr(backfill_report, "progress_lines", progress_lines)
    lines = logged(reader, monkeypatch)
    with pytest.raises(SystemExit, match="goes on at its cursor"):
        reader.execute(CONTEXT)
    assert "the ledger did not say what is filled" in lines[0]


def logged(reader: ReadChunksOperator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the task's log gets from here on."""
    lines: list[str] = []
    log = SimpleNamespace(info=lambda text, *given: lines.append(text % given), warning=lambda *_: None)
    monkeypatch.setattr(ReadChunksOperator, "log", log)
    return lines
