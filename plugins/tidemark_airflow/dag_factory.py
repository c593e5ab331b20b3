"""Makes the DAGs of each pipeline file: `<pipeline>_capture`, `_backfill`, `_verify`, `_maintenance` and `_replay`.

    preflight ─► changes_waiting ─► drain ─► merge ─► confirm ─► health
    preflight ─► drain and merge ─► confirm ─► health                                  capture that follows
    plan ─► read_chunks (one per reader) ─► drain ─► merge ─► confirm ─► report        backfill and verify
    retire ─► compact                                   watch                          maintenance
    replay                                                                             replay

Where the file spreads merges over several Spark applications, merge is `spread ─► merge (one per application)`.

Edge by edge. A failure anywhere leaves the rest undone and the run red; the next run catches up, a backfill goes on
when the failed task is cleared. If nothing waits, the sensor is skipped, and with it drain and merge (all_success);
if there is nothing to read, no reader is mapped, and the same are skipped. drain, merge and confirm of a backfill are
skipped if a run that follows the source has merged what was read. confirm and report have none_failed, so they run
after a skip, not after a failure. health has all_done: it says how the pipeline stands whatever became of the run,
and is red itself where a task before it failed.

Runs of a DAG do not overlap, except in a capture that follows its source. There the next run starts before the earlier
one has ended, and no third one does. `max_active_runs` holds back scheduled and manual runs, `allowed_run_types`
forbids native backfills of Airflow, which it does not hold back, and `max_active_tis_per_dag` allows as many runs of
one task at a time, those of cleared old runs included. That is what 1-slot pools would do, with nothing to create
first; a task whose pool does not exist is never scheduled. All of it is courtesy: the ledger's leases keep the order,
between the two DAGs as well.

A file that is broken becomes a DAG with one task that fails with its problems, under the name its capture
DAG has. An import error would be seen too, but Airflow keeps it for the whole Python file and then
schedules none of the file's DAGs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, TriggerRule, chain

from tidemark.capture.following.window import longest_s, may_overlap
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import read_all
from tidemark.config.problems import Problem
from tidemark.errors import PipelinesNotFound
from tidemark_airflow import deadlines, offered_tables
from tidemark_airflow.assets import pipeline_alias
from tidemark_airflow.forms import replay_form, verify_form
from tidemark_airflow.forms.backfill_form import form
from tidemark_airflow.operators.auto_backfill import backfill_dag_id
from tidemark_airflow.operators.backfill_operators import (
    PlanBackfillOperator,
    ReadChunksOperator,
    ReportBackfillOperator,
)
from tidemark_airflow.operators.capture_operators import (
    MERGE_SLACK_S,
    MERGE_WAIT_S,
    BrokenPipelineFile,
    ConfirmOperator,
    DrainOperator,
    MergeOperator,
    PreflightOperator,
    SpreadOperator,
    slot_wait_s,
)
from tidemark_airflow.operators.following_operators import (
    DRAIN_TASK,
    MERGE_TASK,
    FollowDrainOperator,
    FollowMergeOperator,
    FollowPreflightOperator,
)
from tidemark_airflow.operators.health_operator import HealthOperator
from tidemark_airflow.operators.maintenance_operators import CompactOperator, RetireOperator
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.operators.replay_operators import ReplayOperator
from tidemark_airflow.operators.verify_operators import PlanVerifyOperator, ReportVerifyOperator
from tidemark_airflow.operators.waiting_sensor import TRIGGERER_GRACE_S, ChangesWaitingSensor
from tidemark_airflow.version_compat import BACKOFF, allowing

# A constant, as parsing must give the same DAG each time; without catchup nothing before now is run.
PIPELINES_VARIABLE = "TIDEMARK_PIPELINES"
START = datetime(2025, 1, 1, tzinfo=UTC)
RETRIES = 2
MERGE_RETRIES = 1
# A task that follows the source goes on where it was.
FOLLOW_RETRY_DELAY_S = 10
FOLLOW_MAX_RETRY_DELAY_S = 30
RETRY_DELAY_S = 30
# A reader may work for hours and loses little when it is ended: its tries outlast an outage of about an hour.
READ_RETRIES = 10
READ_MAX_RETRY_DELAY_S = 600
# A report waits by itself for what other merges hold; the tries are for outages.
REPORT_RETRIES = 2
SLACK_S = 3600
BROKEN_SCHEDULE = "*/5 * * * *"
VERIFY_SCHEDULE = "0 2 * * *"

_BACKFILL_DOCUMENT = """\
Reads rows that were there before pipeline `{pipeline}` captured them, or that need to be read again, while capture
goes on. Trigger it, with tables or without: then it takes all that need it.

- **Stop** it by marking the run or a task failed. The tables stay exact; what was read stays read.
- **Go on** by clearing the red task, or by a new run with the same tables, filter and mode: it goes on where that one
  ended.
- **Run it again** whenever you like: on a table that equals its source it changes nothing, else it repairs.

Progress stands in the log of `read_chunks`, the outcome in that of `report`.
"""

_VERIFY_DOCUMENT = """\
Proves that the Delta tables of pipeline `{pipeline}` equal their source, while both keep changing: rows are read as a
backfill reads them, and compared instead of merged. Each night takes a share of every table, that which was proven
longest ago; `status` says through which LSN each table is proven as a whole.

- **Red** where anything differs, once: `report` says what and how many, the keys lie beside the lake.
- **Repair** by triggering it with `repair`, these tables and share `1`.
- It writes no row otherwise, and keeps neither writers nor capture waiting.
"""


_REPLAY_DOCUMENT = """\
Makes Delta tables of pipeline `{pipeline}` anew from their history, without reading tables of the source.

- **as_of** writes the tables as they were at one moment beside the live ones, below `as_of/` of the pipeline's folder;
  all tables of one run show the same position. The live ones are only read.
- **rebuild** puts what `history` says in the place of all that `current` holds, in one commit per table: after somebody
  wrote to `current` by hand, or removed it. Merges leave these tables to their next run meanwhile.
- **staged** takes `history` over up to the oldest batch that staging can apply once more, applies what it holds, and
  puts the new pair in the place of the live one, which is put aside: after merges of the last days went wrong.
"""

_MAINTENANCE_DOCUMENT = """\
Removes what pipeline `{pipeline}` does not need any more: applied staging after {days} days, chunks, plans, rows of the
ledger, and dead files of the Delta tables, whose small files become few. Nothing is wrong while it is paused, things
only grow.
"""


def pipeline_dags(folder: Path | str | None = None) -> Iterator[DAG]:
    """The DAGs of every pipeline file in `folder`, or in that of the variable TIDEMARK_PIPELINES; broken ones too."""
    folder = folder or os.environ.get(PIPELINES_VARIABLE)
    if folder is None or not Path(folder).is_dir():
        raise PipelinesNotFound(where=f"{PIPELINES_VARIABLE} is not set" if folder is None else folder)
    configs, problems = read_all(folder)
    dag_ids: set[str] = set()
    for config in configs:
        try:
            tables = offered_tables.offered(config.pipeline)
            dags = [
                capture_dag(config),
                backfill_dag(config, tables),
                verify_dag(config, tables),
                maintenance_dag(config),
                replay_dag(config, tables),
            ]
            for dag in dags:
                dag.validate()
        except Exception as refused:  # whatever Airflow says of one file must not take the others with it
            problems.append(Problem(config.path, 0, f"Airflow refuses it: {refused}"))
            continue
        dag_ids.update(dag.dag_id for dag in dags)
        yield from dags
    for path in sorted({problem.path for problem in problems}):
        stem = Path(path).stem
        dag_id = f"{stem}_capture" if f"{stem}_capture" not in dag_ids else f"{Path(path).name}_broken"
        yield broken_dag(dag_id, [str(problem) for problem in problems if problem.path == path])


def capture_dag(config: PipelineConfig) -> DAG:
    """The DAG `<pipeline>_capture`."""
    dag = _scheduled(
        config,
        f"{config.pipeline}_capture",
        config.schedule,
        description=f"Changes of {config.source_connection} into Delta tables",
        doc_md=_document(config),
        dagrun_timeout=timedelta(seconds=run_timeout_s(config)),
        max_active_runs=2 if may_overlap(config) else 1,
        deadline=deadlines.of_capture(config),
    )
    one: dict[str, Any] = {"dag": dag, "config": config}
    health = HealthOperator(task_id="health", trigger_rule=TriggerRule.ALL_DONE, **one)
    if config.follow is not None:
        preflight = FollowPreflightOperator(task_id="preflight", **one, **_lasting(config))
        chain(preflight, _following(dag, config), _confirm(dag, config, starts_backfill=True), health)
        return dag
    chain(
        PreflightOperator(task_id="preflight", **one),
        ChangesWaitingSensor(task_id="changes_waiting", timeout=config.bounds.wait_s, **one),
        *_shared(dag, config, starts_backfill=True, all_by_hand=True),
        health,
    )
    return dag


def _following(dag: DAG, config: PipelineConfig) -> list[BaseOperator]:
    """drain and merge of a capture run that follows the source, beside each other."""
    at_once = dag.max_active_runs
    one: dict[str, Any] = {"dag": dag, "config": config, "max_active_tis_per_dag": at_once, **_lasting(config)}
    longest = timedelta(seconds=longest_s(config) + config.merge.timeout_s + MERGE_SLACK_S)
    return [
        FollowDrainOperator(task_id=DRAIN_TASK, **one),
        FollowMergeOperator(task_id=MERGE_TASK, execution_timeout=longest, all_by_hand=True, **one),
    ]


def _lasting(config: PipelineConfig) -> dict[str, Any]:
    """Tries for as long as a run that follows may last: no outage must end it, as the next one may be hours away."""
    return {
        "retries": math.ceil(longest_s(config) / FOLLOW_RETRY_DELAY_S),
        "retry_delay": timedelta(seconds=FOLLOW_RETRY_DELAY_S),
        "retry_exponential_backoff": BACKOFF,
        "max_retry_delay": timedelta(seconds=FOLLOW_MAX_RETRY_DELAY_S),
    }


def _confirm(
    dag: DAG, config: PipelineConfig, *, starts_backfill: bool, yields_to_follower: bool = False
) -> ConfirmOperator:
    return ConfirmOperator(
        task_id="confirm",
        trigger_rule=TriggerRule.NONE_FAILED,
        starts_backfill=starts_backfill,
        yields_to_follower=yields_to_follower,
        max_active_tis_per_dag=1,
        dag=dag,
        config=config,
    )


def backfill_dag(config: PipelineConfig, tables: Sequence[str] = ()) -> DAG:
    """The DAG `<pipeline>_backfill`: a form that offers these `tables`, and no time limit, as a backfill may take
    days."""
    dag = _triggered(
        config,
        backfill_dag_id(config),
        description=f"Existing rows of {config.source_connection} into Delta tables, beside the changes",
        doc_md=_BACKFILL_DOCUMENT.format(pipeline=config.pipeline),
        params=form(config, tables),
    )
    _read_and_merge(dag, config, PlanBackfillOperator, ReportBackfillOperator)
    return dag


def verify_dag(config: PipelineConfig, tables: Sequence[str] = ()) -> DAG:
    """The DAG `<pipeline>_verify`: every night, if the pipeline has a schedule at all."""
    dag = _scheduled(
        config,
        f"{config.pipeline}_verify",
        None if config.schedule is None else VERIFY_SCHEDULE,
        description=f"Proves that the Delta tables equal {config.source_connection}, part by part",
        doc_md=_VERIFY_DOCUMENT.format(pipeline=config.pipeline),
        params=verify_form.form(config, tables),
    )
    _read_and_merge(dag, config, PlanVerifyOperator, ReportVerifyOperator)
    return dag


def _read_and_merge(
    dag: DAG, config: PipelineConfig, plans: type[PipelineOperator], reports: type[ReportBackfillOperator]
) -> None:
    """A plan, its report, and what lies between them."""
    one: dict[str, Any] = {"dag": dag, "config": config}
    plan = plans(task_id="plan", max_active_tis_per_dag=1, **one)
    report = reports(task_id="report", trigger_rule=TriggerRule.NONE_FAILED, retries=REPORT_RETRIES, **one)
    read = ReadChunksOperator.partial(
        task_id="read_chunks",
        retries=READ_RETRIES,
        retry_exponential_backoff=BACKOFF,
        max_retry_delay=timedelta(seconds=READ_MAX_RETRY_DELAY_S),
        map_index_template="reader {{ task.reader }}",
        **one,
    ).expand(reader=plan.output)
    chain(plan, read, *_shared(dag, config, run_s=math.inf, yields_to_follower=True), report)


def maintenance_dag(config: PipelineConfig) -> DAG:
    """The DAG `<pipeline>_maintenance`. `compact` has all_done: what keeps staging says nothing of the tables. `watch`
    waits for neither: it tells of a capture that does not run."""
    dag = _scheduled(
        config,
        f"{config.pipeline}_maintenance",
        config.maintenance.schedule,
        description=f"Keeps staging, ledger and Delta tables of {config.pipeline} small",
        doc_md=_MAINTENANCE_DOCUMENT.format(pipeline=config.pipeline, days=config.maintenance.staging_days),
    )
    one: dict[str, Any] = {"dag": dag, "config": config, "max_active_tis_per_dag": 1}
    retire = RetireOperator(task_id="retire", **one)
    compact = CompactOperator(task_id="compact", retries=MERGE_RETRIES, trigger_rule=TriggerRule.ALL_DONE, **one)
    chain(retire, compact)
    HealthOperator(task_id="watch", decides=False, dag=dag, config=config)
    return dag


def replay_dag(config: PipelineConfig, tables: Sequence[str] = ()) -> DAG:
    """The DAG `<pipeline>_replay`: a form."""
    dag = _triggered(
        config,
        f"{config.pipeline}_replay",
        description=f"Makes the Delta tables of {config.pipeline} anew from their history",
        doc_md=_REPLAY_DOCUMENT.format(pipeline=config.pipeline),
        params=replay_form.form(config, tables),
    )
    ReplayOperator(task_id="replay", max_active_tis_per_dag=1, retries=MERGE_RETRIES, dag=dag, config=config)
    return dag


def _shared(
    dag: DAG,
    config: PipelineConfig,
    *,
    run_s: float | None = None,
    starts_backfill: bool = False,
    all_by_hand: bool = False,
    yields_to_follower: bool = False,
) -> list[Any]:
    """drain, merge and confirm, which all of these DAGs have."""
    merge_wait_s = MERGE_WAIT_S if yields_to_follower else 0
    one: dict[str, Any] = {"dag": dag, "config": config, "max_active_tis_per_dag": 1}
    applications = config.merge.applications
    merge: dict[str, Any] = {
        **one,
        "task_id": "merge",
        "retries": MERGE_RETRIES,
        "execution_timeout": timedelta(seconds=merge_wait_s + config.merge.timeout_s + MERGE_SLACK_S),
        "wait_s": merge_wait_s,
        "all_by_hand": all_by_hand,
        "max_active_tis_per_dag": applications,
    }
    if applications == 1:
        merges: list[Any] = [MergeOperator(**merge)]
    else:
        spread = SpreadOperator(task_id="spread", all_by_hand=all_by_hand, **one)
        merges = [
            spread,
            MergeOperator.partial(
                map_index_template="{{ task.tables | length }} of the tables, {{ task.tables[0] }} first",
                outlets=[pipeline_alias(config.pipeline)],
                **merge,
            ).expand(tables=spread.output),
        ]
    return [
        DrainOperator(task_id=DRAIN_TASK, run_s=run_s, yields_to_follower=yields_to_follower, **one),
        *merges,
        _confirm(dag, config, starts_backfill=starts_backfill, yields_to_follower=yields_to_follower),
    ]


def run_timeout_s(config: PipelineConfig) -> int:
    """The longest that a sound run can take: every try of every task with its wait for the other DAG, and an hour for
    one huge transaction."""
    bounds = config.bounds
    drains = (RETRIES + 1) * (slot_wait_s(config) + bounds.run_s + bounds.drain_stall_s)
    # Where there is but one worker, applications follow each other.
    merges = (MERGE_RETRIES + 1) * config.merge.applications * (config.merge.timeout_s + MERGE_SLACK_S)
    confirms = (RETRIES + 1) * slot_wait_s(config)
    return longest_s(config) + bounds.wait_s + TRIGGERER_GRACE_S + drains + merges + confirms + SLACK_S


def broken_dag(dag_id: str, problems: list[str]) -> DAG:
    """A DAG that shows, and fails with, what is wrong with a pipeline file; unpaused, or nobody would look."""
    dag = _dag(
        dag_id,
        "broken",
        description="The pipeline file is broken: " + problems[0],
        doc_md="\n".join(["The pipeline file cannot be used:", "", *(f"- `{problem}`" for problem in problems)]),
        schedule=BROKEN_SCHEDULE,
        is_paused_upon_creation=False,
    )
    BrokenPipelineFile(task_id="pipeline_file", dag=dag, problems=problems, retries=0)
    return dag


def _scheduled(config: PipelineConfig, dag_id: str, schedule: str | None, **options: Any) -> DAG:
    return _dag(dag_id, config.pipeline, schedule=schedule, **allowing("scheduled", "manual"), **options)


def _triggered(config: PipelineConfig, dag_id: str, **options: Any) -> DAG:
    """A DAG without schedule. It is not paused when it is new: it does nothing by itself, and a triggered run of a
    paused DAG would only wait."""
    may = allowing("manual", "operator_triggered")
    return _dag(dag_id, config.pipeline, schedule=None, is_paused_upon_creation=False, **may, **options)


def _dag(dag_id: str, tag: str, **more: Any) -> DAG:
    """What all DAGs have: nothing from before now, and one run at a time unless it says otherwise."""
    tasks = {"owner": "tidemark", "retries": RETRIES, "retry_delay": timedelta(seconds=RETRY_DELAY_S)}
    more.setdefault("max_active_runs", 1)
    return DAG(dag_id, start_date=START, catchup=False, default_args=tasks, tags=["tidemark", tag], **more)


def _document(config: PipelineConfig) -> str:
    tables = "\n".join(f"- `{rule.pattern}`" for rule in config.tables)
    return (
        f"Captures slot `{config.slot}` (publication `{config.publication}`) of connection "
        f"`{config.source_connection}` into `{config.lake}/{config.pipeline}`.\n\nTables:\n\n{tables}\n\n"
        "Each change is in `history`, the newest row in `current`. A red run is caught up by the next one; its error "
        "says whose move it is.\n\nThe task `health` is red, or skipped, as long as a table is not exact, and the next "
        "run comes all the same. Its log says which table, why and what to do."
    )
