"""Holds all code that differs between the versions of Airflow and its Spark provider: 3.1, 3.2, 3.3 and later.

| | 3.1 | 3.2 | 3.3 |
|---|---|---|---|
| exceptions of tasks | `airflow.exceptions` | `airflow.sdk.exceptions` | the same |
| deadline alerts | `airflow.sdk.definitions.deadline` | `airflow.sdk` | with a name |
| metrics | `airflow.stats` | the same | `airflow.sdk.observability` |
| run types that a DAG allows | - | `allowed_run_types` | with `operator_triggered` |
| note of a triggered run | - | - | `note` |
| backoff of retries | on or off, times 2 | a factor | a factor |

Each difference is found by trying, not by comparing version numbers, so a later version needs no change here. The
features that an older version lacks are named by `tidemark.capture.preflight.airflow_findings`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from typing import Any, Final

from airflow.sdk import DAG, BaseOperator

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        DagRunTriggerException,
    )
except ImportError:
    from airflow.exceptions import (  # type: ignore[no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        DagRunTriggerException,
    )

__all__ = [
    "BACKOFF",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "DagRunTriggerException",
    "accepted",
    "allowing",
    "deadline_alert",
    "gauge",
    "trigger_at_once",
]


def accepted(call: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """The options that `call` takes in this version."""
    return {name: value for name, value in options.items() if name in signature(call).parameters}


# Doubles the delay from retry to retry. As a factor it is a number; 3.1 refuses to serialize one.
BACKOFF: Final[float] = (
    True if signature(BaseOperator).parameters["retry_exponential_backoff"].default is False else 2.0
)


def allowing(*run_types: str) -> dict[str, Any]:
    """Arguments of a DAG that forbid all other types of runs, Airflow's own backfills above all. Before 3.3 a run that
    an operator triggers has the type `manual`."""
    try:
        from airflow.sdk.api.datamodels._generated import DagRunType
    except ImportError:
        from airflow.utils.types import DagRunType  # type: ignore[assignment]
    existing = {run_type.value for run_type in DagRunType}
    return accepted(DAG, allowed_run_types=[run_type for run_type in run_types if run_type in existing])


def deadline_alert(seconds: float, call: Callable[..., Any], arguments: dict[str, Any], name: str) -> Any:
    """A deadline that has the triggerer call `call` if the run has not succeeded `seconds` after it was queued."""
    try:
        from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]
    except ImportError:
        from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=seconds),
        callback=AsyncCallback(call, kwargs=arguments),
        **accepted(DeadlineAlert, name=name),
    )


def gauge(name: str, value: float, tags: dict[str, str] | None = None) -> None:
    """Send one gauge through Airflow's metrics."""
    send: Any
    try:
        from airflow.sdk.observability.stats import gauge as send
    except ImportError:
        from airflow.stats import Stats

        send = Stats.gauge
    send(name, value, tags=tags)


def trigger_at_once(wanted: DagRunTriggerException) -> None:
    """Creates the run that the exception asks for, in the middle of a task. The task runner sends the same message for
    an exception that ends a task."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import TriggerDagRun

    asked: dict[str, Any] = {"dag_id": wanted.trigger_dag_id, "run_id": wanted.dag_run_id, "conf": wanted.conf}
    if "note" in TriggerDagRun.model_fields:
        asked["note"] = wanted.note
    task_runner.SUPERVISOR_COMMS.send(TriggerDagRun(**asked))
