"""Defines the tasks of a capture; each resolves its connections and calls one function of the library.

    preflight ─► changes_waiting ─► drain ─► merge ─► confirm ─► health

drain, merge and confirm are those of a backfill and a verify too. Two DAGs of one pipeline may do them at the same
time: drain and confirm wait for the slot's lease; a merge takes the tables that are free. A capture's merge waits for
none of the others, a backfill's waits `MERGE_WAIT_S` if all of its tables are taken. Beside a run that follows the
source those of a backfill wait for that run, and are skipped.

A task hands nothing to the next one: what is staged, planned, applied and confirmed is read from the ledger each time
(R3-R5), so any task may be retried, cleared, or marked by hand. What goes to XCom is for people.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, Context

from tidemark.config import PipelineConfig
from tidemark.errors import (
    DiskFull,
    JarsUnresolved,
    LeaseTaken,
    PipelineFileInvalid,
    SparkApplicationFailed,
    SparkApplicationTooLong,
    TidemarkError,
)
from tidemark.findings import Report, listed
from tidemark.formats.layout import plan_file, result_file
from tidemark.run import Run
from tidemark.spark_submit import jar_download, spark_jars
from tidemark.staging.pandas_import import block_pandas_import
from tidemark.wording import counted, duration
from tidemark_airflow.assets import event_extra, pipeline_alias, table_asset
from tidemark_airflow.connections import conninfo, salt, spark_connection, with_lake
from tidemark_airflow.driver import submission
from tidemark_airflow.driver.class_archive import class_archive
from tidemark_airflow.driver.driver_folder import driver_folder
from tidemark_airflow.driver.time_limit import ending_with_descendants, time_limit
from tidemark_airflow.failures import guarded
from tidemark_airflow.lineage import Lineage, facets, lineage_of
from tidemark_airflow.operators.auto_backfill import start_wanted
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.operators.run_figures import run_id, timed
from tidemark_airflow.page.pipeline_link import LINKS
from tidemark_airflow.version_compat import AirflowException, AirflowFailException, AirflowSkipException, accepted

if TYPE_CHECKING:
    from tidemark.capture.merge_planning import Ingested
    from tidemark.formats.merge_plan import MergePlan
    from tidemark.storage.lake_access import LakeAccess


# A merge holds its tables as long as its application runs, so waiting for it is bounded by far less than that. A
# capture does not wait at all: other tables' changes come with its next run.
MERGE_WAIT_S = 600
LEFT_TO_FOLLOWER = (
    "No backfill or verify of this run is open any more, and a run follows the source: it drains, merges and confirms. "
    "The task report has the outcome"
)
# What a merge task does besides waiting and its application: plan, results, ending an application whose time is over.
MERGE_SLACK_S = 300
# Of what spark-submit prints, the last lines say why it gave up.
OUTPUT_LINES = 1000
# How the operating system and the library say that a disk is full.
NO_SPACE = "no space left on"


def slot_wait_s(config: PipelineConfig) -> int:
    """How long a task waits for the slot: as long as a drain of capture may hold it."""
    return config.bounds.run_s + config.bounds.drain_stall_s


def holder(context: Context, task_id: str | None = None) -> str:
    """Names the task instance in the ledger, not its try: a later try takes over an earlier one's leases at once. That
    of another task of the run, which is not mapped, by its id."""
    ti = context["ti"]
    task, index = (ti.task_id, ti.map_index) if task_id is None else (task_id, -1)
    return f"{ti.dag_id}/{ti.run_id}/{task}/{index}"


def is_by_hand(context: Context) -> bool:
    """Whether a person, or a program in their place, triggered the run, rather than its schedule."""
    return context["dag_run"].run_type == "manual"


def run_of(config: PipelineConfig, context: Context, *, salted: bool = False) -> Run:
    """The task's record, with its connections resolved. The masks' salt goes to those that read rows, by `salted`.

    Raises ConnectionMissing or ConnectionInvalid.
    """
    return Run(
        with_lake(config),
        source=conninfo(config.source_connection),
        ledger=conninfo(config.ledger_connection),
        run_id=run_id(context),
        holder=holder(context),
        salt=salt(config.mask_salt_connection) if salted else None,
    )


def skip_unless_begun(run: Run) -> None:
    """Raise AirflowSkipException for a pipeline of which nothing was ever captured: nothing is there to be proven or
    cleaned up."""
    from tidemark.ledger.staged.generations import has_begun

    if not has_begun(run.ledger, run.pipeline):
        raise AirflowSkipException(f"{run.pipeline}_capture has not run yet: there is nothing to do")


def preflighted(run: Run) -> Report:
    """A preflight as the tasks of a run make it."""
    from tidemark.capture.preflight.preflight_report import preflight

    config = run.config
    return preflight(
        run,
        spark=spark_connection(config.spark_connection),
        jars=spark_jars.jars(config.lake, os.environ, config.spark_conf) or "",
        only_new_notes=True,
    )


class PreflightOperator(PipelineOperator):
    """Looks at source, ledger, lake and Spark before anything is touched, and says everything that is wrong at once."""

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.preflight.table_findings import NO_TABLE_YET

        report = preflighted(run_of(self.config, context))
        self.log.info("%s", report)
        report.raise_for_errors()
        for finding in report.findings:
            if finding.check == NO_TABLE_YET:
                raise AirflowSkipException(finding.message)
        return {"warnings": sum(finding.severity == "warning" for finding in report.findings)}


class DrainOperator(PipelineOperator):
    """Reads the slot into staging, batch by batch, until the run's heartbeat is in or `run_s` is over.

    The default of `run_s` is the pipeline's. `yields_to_follower`: the task belongs to a backfill or a verify. If a run
    follows the source, the task waits until that run has merged what was read. Then the task is skipped.
    """

    def __init__(
        self, *, config: PipelineConfig, run_s: float | None = None, yields_to_follower: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(config=config, **kwargs)
        self.run_s = run_s
        self.yields_to_follower = yields_to_follower

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        block_pandas_import()
        from tidemark.capture.drain import drain
        from tidemark.capture.following.follower_wait import wait_for_follower

        run = run_of(self.config, context, salted=True)
        if self.yields_to_follower and wait_for_follower(run, wait_s=MERGE_WAIT_S):
            raise AirflowSkipException(LEFT_TO_FOLLOWER)
        drained = drain(run, run_s=self.run_s, wait_s=slot_wait_s(self.config))
        self.log.info(
            "Staged %s in %s, up to %s%s",
            counted(drained.rows, "change"),
            counted(len(drained.batches), "batch"),
            drained.staged_lsn,
            "" if drained.reached_target else "; the next run goes on",
        )
        return {
            "batches": [[str(start), str(end)] for start, end in drained.batches],
            "rows": drained.rows,
            "staged_lsn": str(drained.staged_lsn),
            "reached_target": drained.reached_target,
        }


class ApplicationOperator(SparkSubmitOperator):
    """Runs one of the Spark applications by spark-submit. Nothing is resumed, so `durable` is off. Marking the task
    failed kills spark-submit and its driver, and so does the application's time limit.
    """

    operator_extra_links = LINKS
    niceness = 0  # of spark-submit and its driver: how far they give way to other processes of the machine

    def __init__(self, *, config: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(
            conn_id=config.spark_connection,
            name=f"tidemark_{config.pipeline}",
            **accepted(SparkSubmitOperator, durable=False),
            **kwargs,
        )
        self.config = config
        self.driver_flags: dict[str, str] = {}  # variables for a driver on this machine
        self._environment: dict[str, str] = {}  # of spark-submit
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)  # of spark-submit

    def run_plan(self, name: str, file: str, plan: str, run: Run, limit_s: float, context: Context) -> Exception | None:
        """`run_application` with a plan that lies below the lake's root as `file`."""
        return self.run_application(name, f"{run.config.lake}/{file}", plan, run.config.lake_access, limit_s, context)

    def run_application(
        self, name: str, manifest: str, plan: str, access: LakeAccess, limit_s: float, context: Context
    ) -> Exception | None:
        """Run spark-submit to its end, or for `limit_s`; returns what went wrong, if anything did.

        Whether the plan has a result is another question: the driver may have written it and died later.
        """
        failure: Exception | None = None
        with driver_folder() as scratch:
            self._hook = None  # it keeps the arguments of the application before
            self.application = spark_jars.application(name, os.environ)
            self.application_args = ["--manifest", manifest]
            self.conf = {**access.spark_settings(self.config.lake), **self.config.spark_conf}
            self.jars = spark_jars.jars(self.config.lake, os.environ, self.config.spark_conf)
            self._environment, self.py_files = {}, None
            chosen_flags, connection = None, spark_connection(self.config.spark_connection)
            if connection.drives_here:
                chosen_flags = submission.chosen_jvm_flags(self.config.spark_conf)
                self._environment |= submission.without_airflow() | submission.quiet_log(self.config.spark_conf)
                self._environment |= submission.lake_secrets(access, scratch)
                self._environment |= submission.driver_environment()
                self._environment |= self.driver_flags
            else:
                self.py_files = submission.library_zip(scratch)
            ships_settings = connection.ships_settings
            with (
                class_archive(chosen_flags, ships_settings=ships_settings) as archive,
                time_limit(limit_s, self.on_kill) as limit,
            ):
                self._environment |= submission.with_jvm_flags(archive.flags, self._environment) | archive.environment
                self.properties_file = archive.properties_file
                try:
                    super().execute(context)
                    archive.ended_well = True
                except AirflowException as failed:
                    failure = _cause(self._output, self.config.lake) or failed
            if limit.passed:
                return SparkApplicationTooLong(plan=plan, ran=duration(limit.ran_s), limit=duration(limit_s))
        return failure

    def merge(self, run: Run, plan: MergePlan, context: Context) -> Exception | None:
        """Run the merge's application; returns what went wrong, if anything did."""
        self.driver_flags = submission.first_compiler_alone(plan)
        file = plan_file(plan.pipeline, plan.plan)
        return self.run_plan("merge_batch", file, plan.plan, run, self.config.merge.timeout_s, context)

    def _get_hook(self) -> SparkSubmitHook:
        """With the environment of its child: as `env_vars` the hook would write it into the command line too, where it
        is for YARN or Kubernetes, and everybody of the machine reads that.

        The child has no standard input. A task's is its connection to the process that supervises it. While a driver
        holds that too, Airflow notices only after a minute that the task was killed.
        """
        hook = super()._get_hook()
        hook._env = self._environment
        vars(hook)["submit"] = partial(hook.submit, stdin=subprocess.DEVNULL)
        self._output.clear()
        if self.niceness and shutil.which("nice"):  # some images lack it
            command = hook._build_spark_submit_command
            prefix = ["nice", "-n", str(self.niceness)]
            vars(hook)["_build_spark_submit_command"] = lambda application: [*prefix, *command(application)]
        process_log = hook._process_spark_submit_log
        vars(hook)["_process_spark_submit_log"] = lambda lines: process_log(self._remembered(lines))
        return hook

    def _remembered(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._output.append(line)
            yield line

    def on_kill(self) -> None:
        """spark-submit, the driver's JVM and its Python; on a cluster the driver there, by the hook."""
        process = None if self._hook is None else self._hook._submit_sp
        with ending_with_descendants(None if process is None else process.pid):
            super().on_kill()


class SpreadOperator(PipelineOperator):
    """Spreads the tables that are due over the Spark applications of a run; returns the tables of each, none for none.

    What it returns is a proposal: each application plans its own tables again, under their leases, so that this task
    may be retried or cleared.
    """

    def __init__(self, *, config: PipelineConfig, all_by_hand: bool = False, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.all_by_hand = all_by_hand

    @guarded
    @timed
    def execute(self, context: Context) -> list[list[str]]:
        from tidemark.capture.driver_shares import spread
        from tidemark.capture.merge_planning import PlanScope

        scope = PlanScope(all_of_them=self.all_by_hand and is_by_hand(context))
        shares = spread(run_of(self.config, context), scope)
        for number, share in enumerate(shares):
            self.log.info("Application %d: %s, about %s", number, listed(share.tables), duration(share.seconds))
        return [list(share.tables) for share in shares]


class MergeOperator(ApplicationOperator):
    """Brings what is staged and not applied into Delta, by one Spark application for all tables, or for its share.

    Each try writes a plan of its own. `merge.timeout_s` counts from the application's start; a driver that survives it
    loses by the fence (R5).

    Tables that another task holds are left to the next merge. If that is all of them it waits for `wait_s`, then it
    is skipped. What is staged stays unapplied until then, and confirm counts what is applied. `tables` are its share
    where several applications merge a run; with `all_by_hand` a run that a person triggers merges every table.
    """

    def __init__(
        self,
        *,
        config: PipelineConfig,
        wait_s: float = 0.0,
        all_by_hand: bool = False,
        tables: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("outlets", [pipeline_alias(config.pipeline)])  # a mapped task is made with those of its DAG
        super().__init__(config=config, **kwargs)
        self.lineage: Lineage | None = None
        self.wait_s = wait_s
        self.all_by_hand = all_by_hand
        self.tables = tables

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.merge_planning import PlanScope, ingest, ingested_by_another, leased_plan

        run = run_of(self.config, context)
        ingested = [ingest(run)]
        failure = None
        share = None if self.tables is None else frozenset(self.tables)
        scope = PlanScope(all_of_them=self.all_by_hand and is_by_hand(context), tables=share)
        try:
            with leased_plan(run, scope, wait_s=self.wait_s) as plan:
                if plan is not None:
                    failure = self.merge(run, plan, context)
                    ingested.append(ingest(run))
        except LeaseTaken as busy:
            raise AirflowSkipException(f"Left to the next merge: {busy}") from busy
        events = self.emit(run, ingested, context)
        self.log.info("%s; advanced: %s", plan.plan if plan else "Nothing to merge", ", ".join(events) or "no table")
        if plan is not None:
            if not any(plan.plan in result.plans for result in ingested):
                ingested.append(ingested_by_another(run, plan.plan))
            raise_errors(run.config, plan.plan, ingested, failure)
        return {"plan": plan.plan if plan else None, "advanced": len(events)}

    def emit(self, run: Run, ingested: Sequence[Ingested], context: Context) -> list[str]:
        """Add an asset event for every table whose position advanced; returns the tables."""
        from tidemark.capture.table_progress import advanced

        tables = advanced(run, ingested)
        events = context["outlet_events"][pipeline_alias(self.config.pipeline)]
        for table in tables:
            events.add(table_asset(self.config.pipeline, table.called), extra=event_extra(self.config, table))
        self.lineage = lineage_of(self.config, run.source, [table.table for table in tables])
        return [str(table.table) for table in tables]

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """What Airflow's OpenLineage provider asks for when the task is over: the source tables whose Delta tables were
        moved on, and those. None if none was."""
        return None if self.lineage is None else facets(self.lineage)


def _cause(output: Iterable[str], lake: str) -> TidemarkError | None:
    """Why spark-submit or its driver ended, where its lines say more than its exit status."""
    lines = list(output)
    if (unresolved := jar_download.unresolved(lines)) is not None:
        return JarsUnresolved(detail=unresolved)
    return DiskFull.of_a_driver(lake) if any(NO_SPACE in line.lower() for line in lines) else None


def raise_without_result(plan: str, failure: Exception | None) -> NoReturn:
    """Raise what ended an application before it left the plan's result, if that is known."""
    if isinstance(failure, TidemarkError):
        raise failure
    raise SparkApplicationFailed(plan=plan, detail="it left no result") from failure


def raise_errors(config: PipelineConfig, plan: str, ingested: Sequence[Ingested], failure: Exception | None) -> None:
    """Whether the run goes on after a plan (R6): an error of one table is the table's, one of driver or lake the run's.

    Raises SparkApplicationFailed, or SparkApplicationTooLong, to be retried, if the driver left no result or the
    lake failed; AirflowFailException if no table of the plan was merged and none was parked for it: nothing else would
    tell.
    """
    from tidemark.errors import is_of_no_table
    from tidemark.storage.store import Store

    if not Store(config.lake, config.lake_access).exists(result_file(config.pipeline, plan)):
        raise_without_result(plan, failure)
    tables = [table for result in ingested if plan in result.plans for table in result.tables]
    errors = {table.table: table.error for table in tables if table.error is not None}
    for error in errors.values():
        if error.kind == DiskFull.__name__:
            raise DiskFull.of_a_driver(config.lake) from failure
        if is_of_no_table(error):
            raise SparkApplicationFailed(plan=plan, detail=error.message) from failure
    if tables and len(errors) == len(tables) and not any(table.parked for table in tables):
        raise AirflowFailException("\n".join(f"{table}: {error.message}" for table, error in errors.items()))


class ConfirmOperator(PipelineOperator):
    """Moves the slot up to what is applied (R3). With `starts_backfill` it ends by starting the backfill that a table
    needs. With `yields_to_follower` it is skipped if a run follows and nothing of this run is open: that run confirms.
    """

    def __init__(
        self, *, config: PipelineConfig, starts_backfill: bool = False, yields_to_follower: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(config=config, **kwargs)
        self.starts_backfill = starts_backfill
        self.yields_to_follower = yields_to_follower

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.confirm import confirm
        from tidemark.capture.following.follower_wait import wait_for_follower

        run = run_of(self.config, context)
        if self.yields_to_follower and wait_for_follower(run):
            raise AirflowSkipException(LEFT_TO_FOLLOWER)
        confirmed = confirm(run, wait_s=slot_wait_s(self.config))
        self.log.info("Confirmed %s, was %s, staged %s", confirmed.after, confirmed.before, confirmed.staged)
        if self.starts_backfill and (instead := start_wanted(run, context=context)):
            self.log.info("%s", instead)
        return {"before": str(confirmed.before), "after": str(confirmed.after), "staged": str(confirmed.staged)}


class BrokenPipelineFile(BaseOperator):
    """Stands in for the tasks of a pipeline whose file is broken, and fails with everything that is wrong with it."""

    operator_extra_links = LINKS

    def __init__(self, *, problems: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.problems = problems

    @guarded
    def execute(self, context: Context) -> None:
        raise PipelineFileInvalid(problems="\n".join(self.problems))
