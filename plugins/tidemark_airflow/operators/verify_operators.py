"""Defines the tasks of a verify that a backfill does not have. A backfill's tasks read, stage and merge for both.

plan ─► read_chunks (one per reader) ─► drain ─► merge ─► confirm ─► report
"""

from __future__ import annotations

from airflow.sdk import Context

from tidemark.run import Run
from tidemark_airflow.failures import guarded
from tidemark_airflow.forms import backfill_form, verify_form
from tidemark_airflow.operators.backfill_operators import ReportBackfillOperator
from tidemark_airflow.operators.capture_operators import run_of, skip_unless_begun
from tidemark_airflow.operators.pipeline_operator import PipelineOperator
from tidemark_airflow.operators.run_figures import timed


class PlanVerifyOperator(PipelineOperator):
    """Opens the verifies that are due, or that the form asks for. Returns the readers' numbers, none for none."""

    @guarded
    @timed
    def execute(self, context: Context) -> list[int]:
        from tidemark.backfill.verifying import plan_verify

        answers = context["params"]
        run = run_of(self.config, context)
        skip_unless_begun(run)
        planned = plan_verify(
            run,
            request=verify_form.request(self.config, answers, context["dag_run"].conf or {}),
        )
        self.log.info("To be compared: %s", ", ".join(one.table for one in planned) or "nothing; nothing is due")
        return backfill_form.readers(answers) if planned else []


class ReportVerifyOperator(ReportBackfillOperator):
    """Says what was proven, once all of it is applied, and is red, once, where anything differs."""

    def report(self, run: Run) -> object:
        from tidemark.backfill.verify_report import report

        return report(run)
