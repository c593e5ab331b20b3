"""A reader that is told to end leaves by an exception: its lease is given back, and the next one need not wait."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.conftest import SHOP
from tests.support.airflow_home import postgres_connection
from tidemark.capture.backfill import exported, reading
from tidemark.capture.backfill.reading import ReadResult
from tidemark.config_file import load
from tidemark_airflow.backfill_operators import ReadChunksOperator

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
    def read(config: Any, *, run_id: str, holder: str, **_: Any) -> ReadResult:
        assert (run_id, holder) == ("shop_backfill/manual__1", "shop_backfill/manual__1/read_chunks/1")
        return ReadResult(2, 30, 1)

    monkeypatch.setattr(reading, "read_chunks", read)
    monkeypatch.setattr(exported, "read_exported", None)
    assert reader.execute(CONTEXT) == {"chunks": 2, "rows": 30}


def test_beside_an_exported_snapshot_chunks_are_read_too(
    reader: ReadChunksOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "read_chunks", lambda *_, **__: ReadResult(1, 5, 1))
    monkeypatch.setattr(exported, "read_exported", lambda *_, readers, **__: ReadResult(readers, 100, 1))
    context = {**CONTEXT, "params": {"mode": "exported_snapshot", "readers": 3}}
    assert reader.execute(context) == {"chunks": 4, "rows": 105}


def test_a_reader_that_is_told_to_end_cleans_up(reader: ReadChunksOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    def read(*_: Any, **__: Any) -> ReadResult:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append("lease")
        return ReadResult(1, 1, 1)

    monkeypatch.setattr(reading, "read_chunks", read)
    # What Airflow's task runner does before it calls execute.
    before = signal.signal(signal.SIGTERM, lambda *_: reader.on_kill())
    try:
        with pytest.raises(SystemExit, match="goes on at its cursor"):
            reader.execute(CONTEXT)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert cleaned == ["lease"]
