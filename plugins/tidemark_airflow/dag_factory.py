"""Pipeline files -> DAGs: one `<pipeline>_capture` each.

    preflight ─► changes_waiting ─► drain ─► merge ─► confirm

Edge by edge. A failure anywhere leaves the rest undone and the run red; the next run catches up. Where nothing waits
the sensor is skipped, and with it drain and merge (all_success); confirm has none_failed, so it runs after a skip, not
after a failure.

Runs of a DAG do not overlap: `max_active_runs` holds back scheduled and manual runs, `allowed_run_types` forbids native
backfills, which it does not hold back, and `max_active_tis_per_dag` keeps a cleared task of an old run from running
beside the same task of the newest. That is what 1-slot pools would do, with nothing to create first; a task whose pool
does not exist is never scheduled. All of it is courtesy: the ledger's leases keep the order.

A file that is broken becomes a DAG with one task that fails with its problems, under the name its capture
DAG has. An import error would be seen too, but Airflow keeps it for the whole Python file and then
schedules none of the file's DAGs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, TriggerRule, chain

from tidemark.config import PipelineConfig
from tidemark.config_file import Problem, read_all
from tidemark_airflow.failures import MovePolicy
from tidemark_airflow.operators import (
    BrokenPipelineFile,
    ConfirmOperator,
    DrainOperator,
    MergeOperator,
    PreflightOperator,
)
from tidemark_airflow.sensors import TRIGGERER_GRACE_S, ChangesWaitingSensor

# A constant, as parsing must give the same DAG each time; without catchup nothing before now is run.
START = datetime(2025, 1, 1, tzinfo=UTC)
RETRIES = 2
MERGE_RETRIES = 1
RETRY_DELAY_S = 30
SLACK_S = 3600
BROKEN_SCHEDULE = "*/5 * * * *"


def pipeline_dags(folder: Path | str) -> Iterator[DAG]:
    """The DAGs of every pipeline file in `folder`, broken ones included."""
    configs, problems = read_all(folder)
    taken: set[str] = set()
    for config in configs:
        try:
            dag = capture_dag(config)
            dag.validate()
        except Exception as refused:  # whatever Airflow says of one file must not take the others with it
            problems.append(Problem(config.path, 0, f"Airflow refuses it: {refused}"))
            continue
        taken.add(dag.dag_id)
        yield dag
    for path in sorted({problem.path for problem in problems}):
        stem = Path(path).stem
        dag_id = f"{stem}_capture" if f"{stem}_capture" not in taken else f"{Path(path).name}_broken"
        yield broken_dag(dag_id, [str(problem) for problem in problems if problem.path == path])


def capture_dag(config: PipelineConfig) -> DAG:
    """The DAG `<pipeline>_capture`."""
    bounds = config.bounds
    dag = DAG(
        dag_id=f"{config.pipeline}_capture",
        description=f"Changes of {config.source_connection} into Delta tables",
        doc_md=_document(config),
        schedule=config.schedule,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        allowed_run_types=["scheduled", "manual"],
        dagrun_timeout=timedelta(seconds=run_timeout_s(config)),
        default_args=_defaults(),
        tags=["tidemark", config.pipeline],
    )
    one = {"dag": dag, "config": config, "max_active_tis_per_dag": 1}
    chain(
        PreflightOperator(task_id="preflight", dag=dag, config=config),
        ChangesWaitingSensor(task_id="changes_waiting", dag=dag, config=config, timeout=bounds.wait_s),
        DrainOperator(task_id="drain", **one),
        MergeOperator(
            task_id="merge",
            retries=MERGE_RETRIES,
            execution_timeout=timedelta(seconds=bounds.merge_timeout_s),
            **one,
        ),
        ConfirmOperator(task_id="confirm", trigger_rule=TriggerRule.NONE_FAILED, **one),
    )
    return dag


def run_timeout_s(config: PipelineConfig) -> int:
    """The longest that a sound run can take: every try of every task, and an hour for one huge transaction."""
    bounds = config.bounds
    drains = (RETRIES + 1) * (bounds.run_s + bounds.drain_stall_s)
    merges = (MERGE_RETRIES + 1) * bounds.merge_timeout_s
    return bounds.wait_s + TRIGGERER_GRACE_S + drains + merges + SLACK_S


def broken_dag(dag_id: str, problems: list[str]) -> DAG:
    """A DAG that shows, and fails with, what is wrong with a pipeline file; unpaused, or nobody would look."""
    dag = DAG(
        dag_id=dag_id,
        description="The pipeline file is broken: " + problems[0],
        doc_md="\n".join(["The pipeline file cannot be used:", "", *(f"- `{problem}`" for problem in problems)]),
        schedule=BROKEN_SCHEDULE,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["tidemark", "broken"],
    )
    BrokenPipelineFile(task_id="pipeline_file", dag=dag, problems=problems, retries=0)
    return dag


def _defaults() -> dict[str, Any]:
    return {
        "owner": "tidemark",
        "retries": RETRIES,
        "retry_delay": timedelta(seconds=RETRY_DELAY_S),
        "retry_policy": MovePolicy(),
    }


def _document(config: PipelineConfig) -> str:
    tables = "\n".join(f"- `{rule.pattern}`" for rule in config.tables)
    return (
        f"Captures slot `{config.slot}` (publication `{config.publication}`) of connection "
        f"`{config.source_connection}` into `{config.lake}/{config.pipeline}`.\n\nTables:\n\n{tables}\n\n"
        "Each change is in `history`, the newest row in `current`. A red run is caught up by the next one; its error "
        "says whose move it is."
    )
