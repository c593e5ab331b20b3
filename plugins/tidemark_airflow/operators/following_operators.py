"""Defines the tasks of a capture run that follows the source until the next one is due (`follow` of the pipeline file).

    preflight ─► drain ─┬─► confirm ─► health
             └─► merge ─┘

Drain and merge work beside each other. Neither waits for the other, each may be killed, cleared or retried alone, and
what they are to do they read from the ledger, as the tasks of every run do. There is no sensor: while nothing happens
they wait themselves.

The next run begins while this one follows. It takes over once its Spark application is ready, so that the tables do not
stand still meanwhile. Then the drain of this one stops at its next heartbeat, and its merge with the drain. So they do
where the merge is not tried any more, or no next run comes, as of a paused DAG. Where Airflow lets no run begin before
another one has ended, a run ends as soon as another one waits.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from tidemark.config import PipelineConfig
from tidemark.errors import (
    Move,
    PreflightFailed,
    SparkApplicationFailed,
    SparkApplicationTooLong,
    TidemarkError,
    is_of_no_table,
)
from tidemark.run import Run, utc_now
from tidemark.staging.pandas_import import block_pandas_import
from tidemark.wording import counted
from tidemark_airflow import metrics
from tidemark_airflow.driver import submission
from tidemark_airflow.failures import guarded
from tidemark_airflow.notifiers import notify
from tidemark_airflow.operators.auto_backfill import start_in_the_middle
from tidemark_airflow.operators.capture_operators import (
    MERGE_SLACK_S,
    MergeOperator,
    PreflightOperator,
    holder,
    is_by_hand,
    preflighted,
    run_of,
    slot_wait_s,
)
from tidemark_airflow.operators.ordered_application import OrderedApplication
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.operators.run_figures import note_at_work, timed

if TYPE_CHECKING:
    from datetime import datetime

    import psycopg

    from tidemark.capture.following.merge_cycles import MergeCycle, MergeCycles
    from tidemark.capture.following.run_end import Window
    from tidemark.capture.following.window import FollowWindow
    from tidemark.capture.merge_planning import Ingested

DRAIN_TASK = "drain"
MERGE_TASK = "merge"
ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
# How often in a row an application may die before it has applied a plan.
APPLICATIONS = 3
WATCH_S = 60
# How often the drain asks Airflow whether the run is to end before its time, and the ledger for joins.
ASK_S = 10
JUDGE_AGAIN_S = 60
# How long after its time the next run may be missing.
NEXT_RUN_S = 30


def window(config: PipelineConfig, context: Context) -> FollowWindow:
    """The window of the run, counted from the run's start: every try of its tasks has the same one. Without `follow` in
    the file it is over."""
    from tidemark.capture.following.window import FollowWindow, window_of

    began_at = context["dag_run"].start_date
    assert began_at is not None
    if config.follow is None:
        return FollowWindow(began_at, began_at, 0.0)
    return window_of(config.schedule, config.follow.every_s, began_at)


class TriedWithinWindow:
    """A task of a run that follows the source. The next run may be hours away, so an error that may end meanwhile is
    tried again as long as this run lasts. `within` is the run's window, and `retried_moves` are the moves, besides
    RETRY, with which another try is expected to succeed (`failures.guarded`)."""

    retried_moves: tuple[Move, ...] = ()
    within: Window | None = None

    def is_retried(self, error: TidemarkError) -> bool:
        if error.move in (Move.RETRY, *self.retried_moves):
            return True
        return self.may_end_meanwhile(error) and self.within is not None and self.within.left_s(utc_now()) > 0

    def may_end_meanwhile(self, error: TidemarkError) -> bool:
        return error.may_end_meanwhile


class FollowPreflightOperator(TriedWithinWindow, PreflightOperator):
    """The preflight of such a run. A gap is an error once. A later try begins with the alerts, since nothing else
    of the run is at work."""

    retried_moves = (Move.BACKFILL,)

    @guarded
    def execute(self, context: Context) -> dict[str, Any]:
        self.within = _EarlyEndingWindow(self.config, context)
        if context["ti"].try_number > 1:
            _FollowingHealth(self, context).examine_if_due(run_of(self.config, context))
        report: dict[str, Any] = super().execute(context)
        return report


class FollowDrainOperator(TriedWithinWindow, PipelineOperator):
    """Reads the slot into staging, batch by batch over one connection, until the run's window is over. What a changed
    pipeline file says is looked at as a preflight does, and taken up if that finds no error.

    A later try begins with a preflight, as the next run would. It goes on behind a gap, and makes a slot that is gone.
    The run's own preflight has passed this file, so the findings of a later one are of what changed since.
    """

    retried_moves = (Move.BACKFILL, Move.FIX_SOURCE)

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        block_pandas_import()
        from tidemark.capture.following.drain_cycles import follow

        self.within = within = _EarlyEndingWindow(self.config, context)
        run = run_of(self.config, context, salted=True)
        file = _PreflightedFile(self, context, within, run)
        drained = follow(run, within, wait_s=slot_wait_s(self.config), file=file)
        self.log.info(
            "Staged %s in %s, up to %s",
            counted(drained.rows, "change"),
            counted(len(drained.batches), "batch"),
            drained.staged_lsn,
        )
        return {"batches": len(drained.batches), "rows": drained.rows, "staged_lsn": str(drained.staged_lsn)}

    def may_end_meanwhile(self, error: TidemarkError) -> bool:
        return super().may_end_meanwhile(error) or isinstance(error, PreflightFailed)


class FollowMergeOperator(TriedWithinWindow, MergeOperator):
    """Brings what is staged into Delta, plan by plan, by one Spark application that lasts as long as the run.

    Where the application dies, another one takes over; where one after another does before it has applied a plan, the
    task fails, and is retried.
    """

    is_killed = False

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.following.merge_cycles import MergeCycles

        self.within = window(self.config, context)
        run = run_of(self.config, context)
        file = _FileInForce(self.config)
        watch = _FollowingHealth(self, context)
        watch.examine_if_due(run)

        def between() -> bool:
            watch.examine_if_due(cycles.run)
            return file.has_changed(cycles.run)

        cycles = MergeCycles(
            run,
            self.within,
            holder(context, DRAIN_TASK),
            partial(_has_ended, DRAIN_TASK, context),
            all_of_them=self.all_by_hand and is_by_hand(context),
            between=between,
        )
        ingested, plans = self._until_over(cycles, file, watch, context)
        events = self.emit(cycles.run, _with_earlier_tries(cycles.run, ingested, context), context)
        self.log.info("%s; advanced: %s", counted(plans, "plan"), ", ".join(events) or "no table")
        return {"plans": plans, "advanced": len(events)}

    def _until_over(
        self, cycles: MergeCycles, file: _FileInForce, watch: _FollowingHealth, context: Context
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
                        if not plans:
                            note_at_work(self.config, context)
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
            if (newer := file.taken_up()) is None:
                break
            self.within = cycles.window = window(newer, context)
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
        from tidemark.spark_submit.plan_orders import plan_orders
        from tidemark.storage.store import Store

        run = cycles.run
        with plan_orders(run, Store(run.config.lake, run.config.lake_access)) as orders:
            limit_s = cycles.window.left_s(run.now()) + run.config.merge.timeout_s + MERGE_SLACK_S
            self.driver_flags = submission.giving_memory_back()
            application = OrderedApplication(self, "follow_plans", orders, limit_s, context)
            try:
                yield from cycles.results(application)
            except SparkApplicationTooLong:
                self.on_kill()
                raise
            finally:
                application.end()


class _PreflightedFile:
    """The pipeline file during a drain that follows. New content is used once a preflight has passed it. A preflight
    also runs when a table has joined in the stream, since the table's backfill waits for its verdict, and when the
    source has a table that the publication lacks, since a preflight adds it."""

    def __init__(self, operator: FollowDrainOperator, context: Context, window: _EarlyEndingWindow, run: Run) -> None:
        from tidemark.capture.following.changed_file import ChangedFile
        from tidemark.capture.following.unpublished_tables import UnpublishedTables

        self._log = operator.log
        self._context = context
        self._window = window
        self._file = ChangedFile(operator.config)
        self._needs_preflight = context["ti"].try_number > 1
        self._run = run
        self._asks_at = float("-inf")
        self._tables_wait = False
        self._unpublished = UnpublishedTables()

    def has_changed(self, source: psycopg.Connection[Any]) -> bool:
        if time.monotonic() >= self._asks_at:
            self._asks_at = time.monotonic() + ASK_S
            self._tables_wait = self._tables_wait or _has_joins(self._run)
        self._tables_wait = self._unpublished.has_new(source, self._run.config) or self._tables_wait
        return self._tables_wait or self._file.newer() is not None

    def taken_up(self, run: Run) -> Run:
        """The run with the file's content of now, if a preflight passes that. A preflight also runs in a later try, and
        if none has seen the content that the run began with; its errors are raised."""
        newer = self._file.newer()
        if newer is None:
            if self._needs_preflight or not _is_in_force(run, run.config):
                preflighted(run).raise_for_errors()
                self._needs_preflight = False
                note_at_work(run.config, self._context)
            elif self._tables_wait:
                self._judge_tables(run)
            return run
        other = run_of(newer, self._context, salted=True)
        report = preflighted(other)
        if report.errors:
            self._log.error("%s\nThe run goes on with the file as it was.", report)
            self._file.refuse()
            return run
        self._log.info("%s", report)
        self._file.take_up(newer)
        self._window.take_up(newer)
        self._run = other
        return other

    def _judge_tables(self, run: Run) -> None:
        """What cannot be judged yet is tried again after a while; an error is no reason to end the run."""
        self._tables_wait, self._asks_at = False, time.monotonic() + JUDGE_AGAIN_S
        report = preflighted(run)
        if report.errors:
            self._log.error("%s\nThe run goes on.", report)
        else:
            self._log.info("%s", report)


class _FileInForce:
    """The pipeline file during a merge that follows. New content is used once the drain's preflight has passed it."""

    def __init__(self, config: PipelineConfig) -> None:
        from tidemark.capture.following.changed_file import ChangedFile

        self._file = ChangedFile(config)
        self._accepted: PipelineConfig | None = None

    def has_changed(self, run: Run) -> bool:
        from tidemark.capture.following.changed_file import LOOK_S

        newer = self._file.newer()
        if newer is not None and not _is_in_force(run, newer):
            self._file.refuse(LOOK_S)
            newer = None
        self._accepted = newer
        return newer is not None

    def taken_up(self) -> PipelineConfig | None:
        """What `has_changed` found, whatever the file says by now; None for nothing."""
        accepted, self._accepted = self._accepted, None
        if accepted is not None:
            self._file.take_up(accepted)
        return accepted


class _EarlyEndingWindow:
    """The run's window, which ends before its time where nothing merges what the drain stages, where a next run waits
    that cannot begin yet, and where there is none that could take over."""

    def __init__(self, config: PipelineConfig, context: Context) -> None:
        self._context = context
        self._asked_at = float("-inf")
        self._is_to_end = False
        self.take_up(config)

    def take_up(self, config: PipelineConfig) -> None:
        from tidemark.capture.following.window import may_overlap

        self._window = window(config, self._context)
        self._may_overlap = may_overlap(config)

    @property
    def began_at(self) -> datetime:
        return self._window.began_at

    @property
    def every_s(self) -> float:
        return self._window.every_s

    def left_s(self, now: datetime) -> float:
        if not self._is_to_end and time.monotonic() - self._asked_at >= ASK_S:
            self._asked_at = time.monotonic()
            with suppress(Exception):  # a scheduler that is away is no reason to end
                self._is_to_end = self._ends_for_another(now) or _has_ended(MERGE_TASK, self._context)
        return 0.0 if self._is_to_end else self._window.left_s(now)

    def _ends_for_another(self, now: datetime) -> bool:
        from tidemark.capture.following.window import HANDOVER_S

        if not self._may_overlap:
            return _runs(self._context, "queued") > 0
        if self._window.left_s(now) > HANDOVER_S - NEXT_RUN_S:
            return False
        return _runs(self._context, "queued", "running") < 2


def _runs(context: Context, *states: str) -> int:
    """How many runs of this DAG are in one of these states."""
    return int(context["ti"].get_dr_count(context["ti"].dag_id, states=list(states)))


def _has_ended(task: str, context: Context) -> bool:
    """Whether a task of this run is not tried any more."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[task], run_ids=[ti.run_id]).get(ti.run_id, {})
    return states.get(task) in ENDED


def _is_in_force(run: Run, config: PipelineConfig) -> bool:
    """Whether what the file says of tables and columns is what preflight noted last."""
    from tidemark.ledger import pipeline_files
    from tidemark.ledger.connection import open_ledger

    with open_ledger(run.ledger, run.pipeline) as book:
        return pipeline_files.is_in_force(book, config.digest)


def _has_joins(run: Run) -> bool:
    """Whether a table joined in the stream, and no preflight judged it yet."""
    from tidemark.ledger.captured import tables
    from tidemark.ledger.connection import open_ledger

    with open_ledger(run.ledger, run.pipeline) as book:
        return tables.any_joining(book)


class _FollowingHealth:
    """What `health` and `confirm` do at the end of a run, every minute in the middle of it: alerts, metrics, the run's
    figures, and the start of a backfill that a table needs.

    A later try begins with it, since tries that fail may end before a minute is over.
    """

    def __init__(self, operator: FollowMergeOperator | FollowPreflightOperator, context: Context) -> None:
        self._operator = operator
        self._context = context
        self._looked_at = time.monotonic() if context["ti"].try_number == 1 else float("-inf")
        self.has_merged = False

    def examine_if_due(self, run: Run) -> None:
        """An error here is logged, and is no failure of the merge."""
        if time.monotonic() - self._looked_at < WATCH_S:
            return
        self._looked_at = time.monotonic()
        steps = {"Alerts, metrics and figures": self._examine, "The start of a backfill": self._start_backfill}
        for what, step in steps.items():
            try:
                step(run)
            except Exception as failed:
                said = failed if isinstance(failed, TidemarkError) else type(failed).__name__
                self._operator.log.warning("%s of this minute failed: %s", what, said)

    def _examine(self, run: Run) -> None:
        from tidemark.observe.run_verdict import examine

        examined = examine(run, tell=self._notify, of_capture=self.has_merged)
        metrics.emit(examined)
        self.has_merged = False

    def _start_backfill(self, run: Run) -> None:
        start_in_the_middle(run, context=self._context)

    def _notify(self, message: str) -> None:
        notify(self._operator.config, message, self._context)


def _with_earlier_tries(run: Run, ingested: list[Ingested], context: Context) -> list[Ingested]:
    """What the whole run merged: Airflow takes the events of a try only if that succeeds. Of other runs' plans, which
    this try ingested, the tables that the run's own plans do not have."""
    from tidemark.capture.table_progress import merged_in_run

    if context["ti"].try_number == 1:
        return ingested
    merged = merged_in_run(run)
    names = {table.table for table in merged.tables}
    others = [replace(one, tables=tuple(t for t in one.tables if t.table not in names)) for one in ingested]
    return [merged, *others]


def _raise_what_is_of_no_table(cycle: MergeCycle) -> None:
    """An error of driver or lake is the task's (R6). Raises SparkApplicationFailed."""
    for table in (table for one in cycle.ingested if cycle.plan in one.plans for table in one.tables):
        if table.error is not None and is_of_no_table(table.error):
            raise SparkApplicationFailed(plan=cycle.plan, detail=table.error.message)
