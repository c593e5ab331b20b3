"""Defines the tasks of a capture run that follows the source until the next one is due (`follow` of the pipeline file).

    preflight ─► drain ─┬─► confirm ─► health
             └─► merge ─┘

Drain and merge work beside each other. Neither waits for the other, each may be killed, cleared or retried alone, and
what they are to do they read from the ledger, as the tasks of every run do. There is no sensor: while nothing happens
they wait themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import closing, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from tidemark.config import PipelineConfig
from tidemark.errors import SparkApplicationFailed, SparkApplicationTooLong, TidemarkError, is_of_no_table
from tidemark.run import Run
from tidemark.staging.pandas_import import block_pandas_import
from tidemark.wording import counted
from tidemark_airflow import metrics
from tidemark_airflow.driver import submission
from tidemark_airflow.failures import guarded
from tidemark_airflow.notifiers import notify
from tidemark_airflow.operators.capture_operators import (
    MERGE_SLACK_S,
    MergeOperator,
    holder,
    is_by_hand,
    preflighted,
    run_of,
    slot_wait_s,
)
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.operators.run_figures import timed

if TYPE_CHECKING:
    from tidemark.capture.following.changed_file import ChangedFile
    from tidemark.capture.following.merge_cycles import MergeCycle, MergeCycles
    from tidemark.capture.following.plan_orders import PlanOrders
    from tidemark.capture.following.window import FollowWindow
    from tidemark.capture.merge_planning import Ingested

DRAIN_TASK = "drain"
ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
# How often in a row an application may die before it has applied a plan, and how long it may take to end; the first one
# of a machine leaves an archive of classes then.
APPLICATIONS = 3
ENDING_S = 120
WATCH_S = 60


def window(config: PipelineConfig, context: Context) -> FollowWindow:
    """That of the run, by when it began: every try of its tasks has the same one."""
    from tidemark.capture.following.window import window_of

    assert config.follow is not None
    began_at = context["dag_run"].start_date
    assert began_at is not None
    return window_of(config.schedule, config.follow.every_s, began_at)


class FollowDrainOperator(PipelineOperator):
    """Reads the slot into staging, batch by batch over one connection, until the run's window is over. What a changed
    pipeline file says is looked at as a preflight does, and taken up if that finds no error."""

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        block_pandas_import()
        from tidemark.capture.following.drain_cycles import follow

        run = run_of(self.config, context, salted=True)
        file = _PreflightedFile(self, context)
        drained = follow(run, window(self.config, context), wait_s=slot_wait_s(self.config), file=file)
        self.log.info(
            "Staged %s in %s, up to %s",
            counted(drained.rows, "change"),
            counted(len(drained.batches), "batch"),
            drained.staged_lsn,
        )
        return {"batches": len(drained.batches), "rows": drained.rows, "staged_lsn": str(drained.staged_lsn)}


class FollowMergeOperator(MergeOperator):
    """Brings what is staged into Delta, plan by plan, by one Spark application that lasts as long as the run.

    Where the application dies, another one takes over; where one after another does before it has applied a plan, the
    task fails, and is retried.
    """

    is_killed = False

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.following.changed_file import ChangedFile
        from tidemark.capture.following.merge_cycles import MergeCycles

        run = run_of(self.config, context)
        file = ChangedFile(self.config)
        watch = _FollowingHealth(self, context)

        def between() -> bool:
            watch.examine_if_due(cycles.run)
            return file.newer() is not None

        cycles = MergeCycles(
            run,
            window(self.config, context),
            holder(context, DRAIN_TASK),
            partial(_has_ended, DRAIN_TASK, context),
            all_of_them=self.all_by_hand and is_by_hand(context),
            between=between,
        )
        ingested, plans = self._until_over(cycles, file, watch, context)
        events = self.emit(cycles.run, ingested, context)
        self.log.info("%s; advanced: %s", counted(plans, "plan"), ", ".join(events) or "no table")
        return {"plans": plans, "advanced": len(events)}

    def _until_over(
        self, cycles: MergeCycles, file: ChangedFile, watch: _FollowingHealth, context: Context
    ) -> tuple[list[Ingested], int]:
        """What all plans of the run did, summed up, and how many they were. One application after the other does them:
        another one where the one before died, or the file says something else."""
        from tidemark.capture.table_progress import summed

        ingested: list[Ingested] = []
        left, plans, failed = APPLICATIONS, 0, None
        while True:
            try:
                with closing(self._merges(cycles, context)) as merges:
                    for cycle in merges:
                        plans += 1
                        watch.has_merged = True
                        ingested = [summed([*ingested, *cycle.ingested])]
                        _raise_what_is_of_no_table(cycle)
                        left, failed = APPLICATIONS, None
            except SparkApplicationFailed as raised:
                left, failed = left - 1, raised
                if not left or self.is_killed:
                    raise
                self.log.warning("%s. Another application takes over.", raised)
                continue
            if (newer := file.newer()) is None:
                break
            file.take_up(newer)
            self.config, cycles.run = newer, run_of(newer, context)
        if failed is not None:
            raise failed  # the last plan's, of driver or lake
        return ingested, plans

    def on_kill(self) -> None:
        """Airflow calls it, and the task goes on until it is ended by force: no other application takes over."""
        self.is_killed = True
        super().on_kill()

    def _merges(self, cycles: MergeCycles, context: Context) -> Generator[MergeCycle]:
        """Those of one application, which ends with them."""
        from tidemark.capture.following.plan_orders import plan_orders
        from tidemark.storage.store import Store

        run = cycles.run
        with plan_orders(run, Store(run.config.lake, run.config.lake_access)) as orders:
            limit_s = cycles.window.left_s(run.now()) + run.config.merge.timeout_s + MERGE_SLACK_S
            application = _Application(self, orders, limit_s, context)
            try:
                yield from cycles.results(application)
            except SparkApplicationTooLong:
                self.on_kill()
                raise
            finally:
                application.end()


class _PreflightedFile:
    """The pipeline file of a drain that goes on for long."""

    def __init__(self, operator: FollowDrainOperator, context: Context) -> None:
        from tidemark.capture.following.changed_file import ChangedFile

        self._log = operator.log
        self._context = context
        self._file = ChangedFile(operator.config)

    def has_changed(self) -> bool:
        return self._file.newer() is not None

    def taken_up(self, run: Run) -> Run:
        """A try that begins with a file that no preflight saw does what preflight does; raises what that finds."""
        newer = self._file.newer()
        if newer is None:
            if not _is_in_force(run):
                preflighted(run).raise_for_errors()
            return run
        other = run_of(newer, self._context, salted=True)
        report = preflighted(other)
        if report.errors:
            self._log.error("%s\nThe run goes on with the file as it was.", report)
            self._file.refuse()
            return run
        self._log.info("%s", report)
        self._file.take_up(newer)
        return other


def _has_ended(task: str, context: Context) -> bool:
    """Whether a task of this run is not tried any more."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[task], run_ids=[ti.run_id]).get(ti.run_id, {})
    return states.get(task) in ENDED


def _is_in_force(run: Run) -> bool:
    from tidemark.ledger import pipeline_files
    from tidemark.ledger.connection import open_ledger

    with open_ledger(run.ledger, run.pipeline) as book:
        return pipeline_files.is_in_force(book, run.config.digest)


class _FollowingHealth:
    """What `health` does at the end of a run, every minute in the middle of it: alerts, metrics, the run's figures."""

    def __init__(self, operator: FollowMergeOperator, context: Context) -> None:
        self._operator = operator
        self._context = context
        self._looked_at = time.monotonic()
        self.has_merged = False

    def examine_if_due(self, run: Run) -> None:
        """An error here is logged, and is no failure of the merge."""
        if time.monotonic() - self._looked_at < WATCH_S:
            return
        self._looked_at = time.monotonic()
        try:
            from tidemark.observe.run_verdict import examine

            examined = examine(run, tell=self._notify, of_capture=self.has_merged)
            metrics.emit(examined)
            self.has_merged = False
        except Exception as failed:
            said = failed if isinstance(failed, TidemarkError) else type(failed).__name__
            self._operator.log.warning("Alerts, metrics and figures of this minute failed: %s", said)

    def _notify(self, message: str) -> None:
        notify(self._operator.config, message, self._context)


class _Application:
    """spark-submit on a thread, from the start on."""

    def __init__(self, operator: FollowMergeOperator, orders: PlanOrders, limit_s: float, context: Context) -> None:
        self._operator = operator
        self._orders = orders
        self._limit_s = limit_s
        # Airflow refuses an `execute` outside of the task's context.
        run = partial(copy_context().run, self._run, context)
        self._thread = threading.Thread(target=run, name="application of the merge", daemon=True)
        self._thread.start()

    def _run(self, context: Context) -> None:
        access = self._operator.config.lake_access
        self._operator.driver_flags = submission.giving_memory_back()
        try:
            failure = self._operator.run_application(
                "follow_plans", self._orders.manifest, self._orders.attempt, access, self._limit_s, context
            )
            kind = None if failure is None else type(failure)
        except Exception as failed:
            kind = type(failed)
        if kind is not None:
            self._operator.log.warning("The Spark application ended: %s", kind.__name__)

    def order(self, plan: str) -> None:
        self._orders.order(plan)

    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        """Let it end what it is at, for a while."""
        with suppress(Exception):  # without the lake it ends by itself, or is ended
            self._orders.end()
        self._thread.join(ENDING_S)
        if self._thread.is_alive():
            self._operator.on_kill()
            self._thread.join(ENDING_S)


def _raise_what_is_of_no_table(cycle: MergeCycle) -> None:
    """An error of driver or lake is the task's (R6). Raises SparkApplicationFailed."""
    for table in (table for one in cycle.ingested if cycle.plan in one.plans for table in one.tables):
        if table.error is not None and is_of_no_table(table.error):
            raise SparkApplicationFailed(plan=cycle.plan, detail=table.error.message)
