"""Sends the alert of `health` also when a run of the capture never reaches its end (Airflow's deadline alerts).

`health` is the last task of a run. It does not run if the run hangs in a queue, if its DAG is paused meanwhile, or if
the scheduler or the triggerer stands still. So every run has a deadline. Airflow removes it when the run succeeds in
time. Otherwise it calls `look` in the triggerer, once a scheduler and a triggerer run again. `look` judges ledger and
slot as `health` does, and sends the alerts that were not sent yet; a long run alone is no alert. Without a run there is
no deadline: for a DAG that was paused between two runs, `watch` of the maintenance sends the alert.
Source: Airflow 3.3 documentation, "Deadline Alerts"; airflow/models/deadline.py.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from tidemark.capture.following.window import longest_s
from tidemark.config import PipelineConfig
from tidemark.config.schedule import longest_silence_s
from tidemark_airflow import notifiers
from tidemark_airflow.connections import conninfo_in_triggerer
from tidemark_airflow.failures import guarded
from tidemark_airflow.version_compat import deadline_alert

# The time limits by which ledger and slot are judged have passed by then.
SLACK_S: Final = 60


def of_capture(config: PipelineConfig) -> Any:
    """None for a pipeline whose schedule does not say when a run is late, and for a run of `airflow dags test`: when
    that succeeds, Airflow 3.3 looks for a row of the deadline, has none, and ends in an SQL error."""
    if sys.argv[1:3] == ["dags", "test"]:
        return None
    silence_s = longest_silence_s(config)
    if silence_s is None:
        return None
    return after(config, longest_s(config) + max(silence_s, config.alerts.max_lag_s) + SLACK_S)


def after(config: PipelineConfig, seconds: float) -> Any:
    """So long after a run was queued."""
    return deadline_alert(seconds, look, {"path": config.path}, name="no successful run")


async def look(path: str, context: Any = None) -> list[str]:
    """Send an alert for each red finding that has none yet, and return the messages. Raises what the notifier raises.

    Queued deadlines have this function's path, so its name stays.
    """
    from tidemark.config.file_reader import load
    from tidemark.run import Run

    config = await asyncio.to_thread(guarded(load), path)
    source = await conninfo_in_triggerer(config.source_connection)
    ledger = await conninfo_in_triggerer(config.ledger_connection)
    holder = f"{config.pipeline}_capture/deadline"
    return await asyncio.to_thread(guarded(_tell), Run(config, source, ledger, holder, holder), context or {})


def _tell(run: Any, context: Any) -> list[str]:
    from tidemark.observe.run_verdict import examine

    told: list[str] = []

    def tell(message: str) -> None:
        notifiers.notify(run.config, message, context)
        told.append(message)

    examine(run, tell=tell, of_capture=False)
    return told
