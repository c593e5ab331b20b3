"""What the merge task of a run that follows the source makes of results and of applications that end. Cycles and
spark-submit are given by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.conftest import FOLLOWING
from tests.support.airflow_home import postgres_connection
from tidemark.capture import table_progress
from tidemark.capture.following import merge_cycles
from tidemark.capture.following.merge_cycles import Application, MergeCycle
from tidemark.capture.merge_planning import Ingested, IngestedTable
from tidemark.config.file_reader import load
from tidemark.errors import SparkApplicationFailed
from tidemark.formats.error_record import ErrorRecord
from tidemark.lsn import Lsn
from tidemark_airflow.assets import pipeline_alias
from tidemark_airflow.operators.following_operators import APPLICATIONS, FollowMergeOperator

Cycles = Callable[[int], Iterator[MergeCycle]]


class Following:
    """The task; `cycles` gives those of the first application, of the second one, and so on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = folder / "shop.yaml"
        file.write_text(FOLLOWING)
        self.operator = FollowMergeOperator(task_id="merge", config=load(file))
        self.applications = 0
        self.cycles: Cycles = lambda _: iter(())
        monkeypatch.setattr(merge_cycles.MergeCycles, "results", self._results)
        monkeypatch.setattr(FollowMergeOperator, "run_application", lambda *_: None)
        monkeypatch.setattr(table_progress, "advanced", lambda *_: [])

    def _results(self, application: Application) -> Iterator[MergeCycle]:
        self.applications += 1
        yield from self.cycles(self.applications)

    def execute(self) -> dict[str, Any]:
        added = SimpleNamespace(add=lambda *_: None)
        ti = SimpleNamespace(dag_id="shop_capture", run_id="manual__1", task_id="merge", map_index=-1)
        dag_run = SimpleNamespace(run_type="scheduled", start_date=datetime.now(UTC))
        context: Any = {"ti": ti, "dag_run": dag_run, "outlet_events": {pipeline_alias("shop"): added}}
        return self.operator.execute(context)


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Following:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", postgres_connection("host=h port=1 user=u dbname=d"))
    return Following(tmp_path, monkeypatch)


def cycle(plan: str, kind: str | None = None) -> MergeCycle:
    """The plan's one table, merged, or with an error."""
    error = None if kind is None else ErrorRecord(kind, "RETRY", "broken")
    table = IngestedTable("shop.orders", 1, Lsn(1), Lsn(2), {}, {}, 1.0, error, parked=False)
    return MergeCycle(plan, (Ingested((plan,), (table,)),))


def test_where_application_after_application_meets_a_lake_that_fails_the_task_fails(following: Following) -> None:
    following.cycles = lambda number: iter([cycle(f"p{number}", "LakeFailed")])
    with pytest.raises(SparkApplicationFailed, match="broken"):
        following.execute()
    assert following.applications == APPLICATIONS


def test_a_lake_that_failed_in_the_last_plan_of_the_run_fails_the_task(following: Following) -> None:
    following.cycles = lambda number: iter([cycle("p1", "LakeFailed")] if number == 1 else [])
    with pytest.raises(SparkApplicationFailed, match="broken"):
        following.execute()


def test_a_lake_that_serves_again_is_no_failure(following: Following) -> None:
    failing = {
        1: [cycle("p1", "LakeFailed")],
        2: [cycle("p2", "LakeFailed")],
        3: [cycle("p3"), cycle("p4", "LakeFailed")],
    }
    following.cycles = lambda number: iter(failing.get(number, [cycle("p5")]))
    assert following.execute()["plans"] == 5


def test_an_error_of_one_table_stops_neither_the_task_nor_its_application(following: Following) -> None:
    following.cycles = lambda _: iter([cycle("p1", "MergeFailed"), cycle("p2")])
    assert following.execute() == {"plans": 2, "advanced": 0}
    assert following.applications == 1
