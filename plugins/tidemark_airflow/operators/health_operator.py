"""Defines the last task of a capture, `health`: it fails, or is skipped, while the pipeline is not exact.

It runs when all others have ended (all_done), so it judges a run whose drain failed as well, and then is red: as the
last task alone it decides what the run is. Nothing waits for it, confirm least of all: the next run comes as ever.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from airflow.sdk import Context

from tidemark.config import PipelineConfig
from tidemark.findings import listed
from tidemark_airflow import metrics, offered_tables
from tidemark_airflow.failures import guarded
from tidemark_airflow.notifiers import notify
from tidemark_airflow.operators.capture_operators import run_of, skip_unless_begun
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.version_compat import AirflowFailException, AirflowSkipException

FAILED: Final = ("failed", "upstream_failed")


class HealthOperator(PipelineOperator):
    """Says what is not exact, why, since when and what to do; tells the pipeline's notifier what is new, or over.

    With `decides` off it is skipped if it would be red: it tells, of a pipeline whose capture may not run.
    """

    def __init__(self, *, config: PipelineConfig, decides: bool = True, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.decides = decides

    @guarded
    def execute(self, context: Context) -> str:
        from tidemark.observe.health import NOT_CAPTURED
        from tidemark.observe.run_verdict import examine

        run = run_of(self.config, context)
        if not self.decides:
            skip_unless_begun(run)
        examined = examine(run, tell=lambda message: notify(self.config, message, context), of_capture=self.decides)
        metrics.emit(examined)
        health = examined.health
        if self.decides and health.states:
            names = [table for table, state in health.states.items() if state != NOT_CAPTURED]
            offered_tables.offer(self.config.pipeline, names)
        for concern in (*health.of("red"), *health.of("warning")):
            level = logging.ERROR if concern.severity == "red" else logging.WARNING
            self.log.log(level, "%s", "\n".join([concern.line, concern.message, *concern.ways]))
        failed = self._failed(context) if self.decides else []
        if failed:
            said = f"{listed(failed)} failed: see there"
            # Warnings are in the log above. That the pipeline is new, for one, explains no failure.
            is_red = health.worst == "red"
            raise AirflowFailException(f"{said}. {health.line}" if is_red else f"{self.config.pipeline}: {said}")
        if health.worst == "red" and self.decides and self.config.alerts.health == "red":
            raise AirflowFailException(health.line)
        if health.worst:
            raise AirflowSkipException(health.line)
        self.log.info("%s", health.line)
        return health.line

    def _failed(self, context: Context) -> list[str]:
        """The tasks of this run that failed themselves, else those that could not begin."""
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        for state in FAILED:
            if tasks := sorted(task for task, its in states.items() if its == state and task != ti.task_id):
                return tasks
        return []
