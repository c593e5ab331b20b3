"""Starts a run of the backfill DAG at the end of a capture whose tables need one, if the file has `auto_backfill`.

A table that is built beside another one (`evolve: follow`) gets its run in any case. Without `auto_backfill` the run is
for these tables alone.

The task raises DagRunTriggerException, as TriggerDagRunOperator does in Airflow 3. Airflow's supervisor then creates
the run, and the task succeeds. Nothing is started while a run is queued or running: a run without tables in its form
reads all tables that need a backfill when it begins.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from textwrap import shorten
from typing import TYPE_CHECKING

from airflow.sdk import Context

from tidemark.config import PipelineConfig
from tidemark.run import Run
from tidemark_airflow.version_compat import DagRunTriggerException, accepted, trigger_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.backfill.backfill_requests import RequestedTable

log = logging.getLogger(__name__)

# What `DAG.test` calls the user of its runs (airflow/sdk/definitions/dag.py); a run that it created would never start.
DAGS_TEST_USER = "dag_test"
UNFINISHED = ["queued", "running"]
NOTE_CHARACTERS = 1000
# A backfill that failed, or that a person stopped, is not begun again at once.
QUIET_S = 600


def backfill_dag_id(config: PipelineConfig) -> str:
    return f"{config.pipeline}_backfill"


def start_wanted(run: Run, *, context: Context) -> str | None:
    """Start a backfill of the tables that need one. Returns why none was started, None if no table needs one.

    Raises DagRunTriggerException to start it; the task then ends successfully.
    """
    answer = _wanted_run(run, context)
    if isinstance(answer, DagRunTriggerException):
        raise answer
    return answer


def start_in_the_middle(run: Run, *, context: Context) -> None:
    """Start the backfill that tables need, without ending the task that calls this."""
    answer = _wanted_run(run, context)
    if isinstance(answer, DagRunTriggerException):
        log.info("Starting a run of %s", backfill_dag_id(run.config))
        trigger_at_once(answer)


def _wanted_run(run: Run, context: Context) -> DagRunTriggerException | str | None:
    """The exception that starts the run, or why none is started; None if no table needs a backfill."""
    from tidemark.backfill.backfill_requests import requested_tables

    takes_all = run.config.auto_backfill
    needs = [one for one in requested_tables(run, quiet_s=QUIET_S) if takes_all or one.builds]
    if not needs:
        return None
    conf = {} if takes_all else {"tables": [one.table for one in needs]}
    dag_id, tables = backfill_dag_id(run.config), _tables(needs)
    if context["dag_run"].triggering_user_name == DAGS_TEST_USER:
        form = f" --conf '{json.dumps(conf)}'" if conf else ""
        return f"Run `airflow dags test {dag_id}{form}` next: {tables}"
    if context["ti"].get_dr_count(dag_id, states=UNFINISHED):
        return f"A run of {dag_id} is there already: {tables}"
    return DagRunTriggerException(
        trigger_dag_id=dag_id,
        dag_run_id=f"operator_triggered__{datetime.now(UTC).isoformat()}",
        conf=conf,
        logical_date=None,
        reset_dag_run=False,
        skip_when_already_exists=False,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=0,
        deferrable=False,
        **accepted(
            DagRunTriggerException,
            note=shorten(f"Started by the capture: {tables}", NOTE_CHARACTERS, placeholder=" …"),
        ),
    )


def _tables(needs: Sequence[RequestedTable]) -> str:
    return "; ".join(f"{one.table} ({one.reason})" for one in needs)
