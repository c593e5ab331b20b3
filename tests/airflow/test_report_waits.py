"""A report beside a capture waits for the merge that has its tables: waiting is no failure."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.config import PipelineConfig
from tidemark.errors import BackfillNotApplied
from tidemark.run import Run
from tidemark_airflow.operators import backfill_operators
from tidemark_airflow.operators.backfill_operators import ReportBackfillOperator


class Report(ReportBackfillOperator):
    """Finds everything applied when it has looked so many times."""

    looks = 0
    applied_at = 3

    def report(self, run: Run) -> object:
        self.looks += 1
        if self.looks < self.applied_at:
            raise BackfillNotApplied(run_id=run.run_id, pending="shop.orders: its one chunk is not merged")
        return "all of it is applied"


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE", "postgres://nobody@127.0.0.1:1/x")
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", "postgres://nobody@127.0.0.1:1/x")
    monkeypatch.setattr(backfill_operators, "REPORT_POLL_S", 0.0)
    return {"ti": SimpleNamespace(dag_id="shop_verify", run_id="manual__1", task_id="report", map_index=-1)}


def report() -> Report:
    return Report(task_id="report", config=PipelineConfig("shop", "source", "s", "p", True, (), "/lake", "ledger"))


def test_it_looks_again_until_all_is_applied(context: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    task = report()
    assert task.execute(context) == "all of it is applied"
    assert task.looks == 3
    assert caplog.records == []


def test_it_fails_when_nobody_merges_for_long(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_operators, "REPORT_WAIT_S", 0.0)
    with pytest.raises(BackfillNotApplied, match=r"shop\.orders: its one chunk is not merged"):
        report().execute(context)
