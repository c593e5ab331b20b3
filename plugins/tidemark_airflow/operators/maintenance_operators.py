"""Defines the tasks of `<pipeline>_maintenance`, which remove old staging and compact Delta tables.

    retire ─► compact

No table is right or wrong by them: a run that is red, killed or paused for weeks costs space and time, and the next one
does what it left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from tidemark.errors import SparkApplicationFailed, SparkApplicationTooLong
from tidemark.run import Run
from tidemark_airflow.failures import guarded
from tidemark_airflow.operators.capture_operators import (
    MERGE_SLACK_S,
    MERGE_WAIT_S,
    ApplicationOperator,
    raise_without_result,
    run_of,
    skip_unless_begun,
    slot_wait_s,
)
from tidemark_airflow.operators.ordered_application import OrderedApplication
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.operators.run_figures import timed

if TYPE_CHECKING:
    from tidemark.formats.compaction_plan import CompactionPlan, CompactionResult

# What compacts `current` holds its tables' leases; a merge that waits for one of them shall not wait in vain.
CURRENT_S = MERGE_WAIT_S - 120
# Merges come first if they share cores with a compaction. A greater value would hold its tables' leases for longer.
NICENESS = 5


class RetireOperator(PipelineOperator):
    """Removes staging, chunks, plans and rows of the ledger that are older than `staging_days` and needed by nobody."""

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.maintenance.staging_cleanup import retire

        run = run_of(self.config, context)
        skip_unless_begun(run)
        retired = retire(run, wait_s=slot_wait_s(self.config))
        self.log.info("%s", retired)
        return retired.to_json()


class CompactOperator(ApplicationOperator):
    """Compacts Delta tables and removes their dead files: first what does not conflict with merges, then `current` of
    the tables that need it, a few at a time under their leases. One Spark application does both."""

    niceness = NICENESS

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.maintenance import compaction_runs

        run = run_of(self.config, context)
        skip_unless_begun(run)
        plan = compaction_runs.plan_inspection(run)
        if plan is None:
            return {"tables": 0}
        self.log.info("To be looked at: %s", ", ".join(plan.tables))
        with self.application_for(run, plan, context) as application:
            results = [self.result_of(run, plan, application, self.config.merge.timeout_s)]
            for group in compaction_runs.groups(run.config, results[0]):
                with compaction_runs.plan_current(run, group) as leased_plan:
                    if leased_plan is not None:
                        results.append(self.result_of(run, leased_plan, application, CURRENT_S))
        figures = compaction_runs.note(run, plan.tables, results)
        for table in (table for result in results for table in result.tables if table.left):
            self.log.warning("%s of %s: %s", table.kind, table.table, table.left)
        for table in (table for result in results for table in result.tables if table.compacted):
            self.log.info(
                "%s of %s: %d files became %d", table.kind, table.table, table.files_before, table.files_after
            )
        self.log.info("%(compacted)d Delta tables of %(tables)d tables compacted", figures)
        return figures

    @contextmanager
    def application_for(self, run: Run, plan: CompactionPlan, context: Context) -> Iterator[OrderedApplication]:
        """The application of all plans of the run; `plan` is the first one. It ends with the block."""
        from tidemark.formats.layout import maintenance_folder
        from tidemark.spark_submit.plan_orders import plan_orders
        from tidemark.storage.store import Store

        limit_s = self.config.merge.timeout_s + len(plan.tables) * MERGE_WAIT_S + MERGE_SLACK_S
        with plan_orders(run, Store(run.config.lake, run.config.lake_access), maintenance_folder) as orders:
            application = OrderedApplication(self, "compact_tables", orders, limit_s, context)
            try:
                yield application
            finally:
                application.end()

    def result_of(
        self, run: Run, plan: CompactionPlan, application: OrderedApplication, limit_s: float
    ) -> CompactionResult:
        """Order the plan; returns its result. Raises SparkApplicationFailed or SparkApplicationTooLong if the
        application left none, or the error that kept spark-submit from starting it."""
        from tidemark.maintenance import compaction_runs

        try:
            return compaction_runs.ordered_result(run, plan, application, limit_s)
        except SparkApplicationTooLong:
            self.on_kill()
            raise
        except SparkApplicationFailed:
            raise_without_result(plan.plan, application.failure)
