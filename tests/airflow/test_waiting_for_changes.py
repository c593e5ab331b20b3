"""The sensor looks once, defers only if the file asks for it, and believes no event that it does not know."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.sdk.module_loading import import_string

from tests.airflow.conftest import SHOP
from tests.support.airflow_home import postgres_connection
from tidemark.capture import waiting
from tidemark.capture.waiting import Waiting
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.errors import UnexpectedError
from tidemark_airflow.operators import waiting_trigger
from tidemark_airflow.operators.waiting_sensor import ChangesWaitingSensor

Answers = Callable[..., list[Any]]
AT = "2026-11-22T10:00:00+00:00"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", postgres_connection(f"host=h port=1 user=u dbname={name.lower()}"))
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return load(file)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Let `changes_waiting` give these answers, in turn; returns the list of its calls."""

    def give(*answers: bool) -> list[Any]:
        calls: list[Any] = []

        def changes_waiting(config: PipelineConfig, *, source: str, ledger: str, all_of_them: bool = False) -> Waiting:
            said_all = {"all_of_them": all_of_them}
            calls.append(SimpleNamespace(pipeline=config.pipeline, source=source, ledger=ledger, **said_all))
            return Waiting(answers[len(calls) - 1], f"look {len(calls)}")

        monkeypatch.setattr(waiting, "changes_waiting", changes_waiting)
        return calls

    return give


def sensor(config: PipelineConfig, wait_s: int = 0) -> ChangesWaitingSensor:
    bounds = config.bounds.model_copy(update={"wait_s": wait_s})
    return ChangesWaitingSensor(task_id="changes_waiting", config=dataclasses.replace(config, bounds=bounds))


def of_a_run(run_type: str = "scheduled") -> Any:
    return {"dag_run": SimpleNamespace(run_type=run_type)}


@pytest.mark.parametrize(("run_type", "all_of_them"), [("scheduled", False), ("manual", True)])
def test_what_waits_by_choice_is_work_for_a_run_that_a_person_triggers(
    config: PipelineConfig, answers: Answers, run_type: str, all_of_them: bool
) -> None:
    calls = answers(True)
    sensor(config).execute(of_a_run(run_type))
    assert [call.all_of_them for call in calls] == [all_of_them]


def test_it_succeeds_when_something_waits(config: PipelineConfig, answers: Answers) -> None:
    calls = answers(True)
    assert sensor(config, wait_s=60).execute(of_a_run()) == "look 1"
    assert [call.source for call in calls] == ["host=h port=1 user=u dbname=shop_source"]


def test_it_looks_once_and_skips_when_nothing_waits(config: PipelineConfig, answers: Answers) -> None:
    calls = answers(False)
    with pytest.raises(AirflowSkipException, match="look 1"):
        sensor(config).execute(of_a_run())
    assert len(calls) == 1


def test_it_defers_only_when_the_file_asks_for_it(config: PipelineConfig, answers: Answers) -> None:
    answers(False)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(config, wait_s=60).execute(of_a_run())
    classpath, arguments = deferred.value.trigger.serialize()
    assert import_string(classpath)(**arguments).serialize() == (classpath, {"path": config.path, "wait_s": 60})
    assert deferred.value.timeout.total_seconds() > 60


def test_after_the_wait_it_skips_or_succeeds(config: PipelineConfig) -> None:
    task = sensor(config, wait_s=60)
    assert task.execute_complete({}, {"waiting": True, "reason": "changes", "looked_at": AT}) == "changes"
    with pytest.raises(AirflowSkipException, match="idle"):
        task.execute_complete({}, {"waiting": False, "reason": "idle", "looked_at": AT})


@pytest.mark.parametrize(
    "event", [None, {}, "done", {"waiting": "yes", "reason": "x"}, {"waiting": True, "reason": "x"}]
)
def test_an_event_it_does_not_know_is_an_error(config: PipelineConfig, event: Any) -> None:
    with pytest.raises(UnexpectedError, match="TypeError"):
        sensor(config, wait_s=60).execute_complete({}, event)


def fire(config: PipelineConfig, wait_s: float) -> Any:
    async def first() -> Any:
        async for event in waiting_trigger.ChangesTrigger(path=config.path, wait_s=wait_s).run():
            looked_at = datetime.fromisoformat(event.payload.pop("looked_at"))
            assert abs(datetime.now(UTC) - looked_at) < timedelta(minutes=10)
            return event.payload
        return None

    return asyncio.run(first())


def test_the_trigger_fires_as_soon_as_something_waits(
    config: PipelineConfig, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_trigger, "LOOK_EVERY_S", 0.01)
    calls = answers(False, False, True)
    assert fire(config, wait_s=30) == {"waiting": True, "reason": "look 3"}
    assert calls[-1].ledger.endswith("dbname=tidemark_ledger")


def test_the_trigger_says_that_nothing_came(config: PipelineConfig, answers: Answers) -> None:
    answers(False, False)
    assert fire(config, wait_s=0) == {"waiting": False, "reason": "look 1"}
