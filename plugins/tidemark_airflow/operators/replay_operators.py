"""Defines the task of `<pipeline>_replay`, which makes Delta tables anew from their history, or from staging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from tidemark.errors import ReplayFailed
from tidemark.formats.layout import replay_file
from tidemark_airflow.failures import guarded
from tidemark_airflow.forms import replay_form
from tidemark_airflow.operators.capture_operators import (
    MERGE_WAIT_S,
    ApplicationOperator,
    raise_without_result,
    run_of,
    slot_wait_s,
)
from tidemark_airflow.operators.run_figures import timed

if TYPE_CHECKING:
    from tidemark.maintenance.replay_runs import ReplayRequest
    from tidemark.run import Run


class ReplayOperator(ApplicationOperator):
    """Rebuilds `current` of the form's tables under their leases, makes them as of a moment, or has them replayed from
    staging: a drain from which on they are others, and a merge that builds these. Run again it does the same again, but
    for a replay, which a later try of the run goes on with."""

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.maintenance import replay_runs as replaying

        request = replay_form.request(self.config, context["params"], context["dag_run"].conf or {})
        if request.step == "staged":
            return self._from_staging(run_of(self.config, context, salted=True), request, context)
        run = run_of(self.config, context)
        with replaying.leased_replay(run, request, wait_s=MERGE_WAIT_S) as plan:
            file, limit_s = replay_file(plan.pipeline, plan.plan), self.config.merge.timeout_s
            failure = self.run_plan("replay_tables", file, plan.plan, run, limit_s, context)
            result = replaying.take_result(run, plan)
        if result is None:
            raise_without_result(plan.plan, failure)
        for table in result.tables:
            if table.error is None:
                self.log.info("%s as of %s: %s rows at %s", table.table, table.position, table.rows, table.path)
        failed = [f"{table.table}: {table.error.message}" for table in result.tables if table.error is not None]
        if failed:
            raise ReplayFailed(pipeline=self.config.pipeline, tables="\n".join(failed))
        return {table.table: {"path": table.path, "position": table.position} for table in result.tables}

    def _from_staging(self, run: Run, request: ReplayRequest, context: Context) -> dict[str, Any]:
        from tidemark.capture.merge_planning import PlanScope, ingest, leased_plan
        from tidemark.maintenance import replay_runs as replaying

        begun = replaying.begin_replay(run, request, wait_s=slot_wait_s(self.config))
        ingest(run)
        failure = None
        with leased_plan(run, PlanScope(tables=frozenset(begun)), wait_s=MERGE_WAIT_S) as plan:
            if plan is not None:
                failure = self.merge(run, plan, context)
                ingested = ingest(run)
        if plan is not None and plan.plan not in ingested.plans and failure is not None:
            raise failure
        left = replaying.unplaced(run, begun)
        if left:
            lines = "\n".join(f"{table}: {reason}" for table, reason in left.items())
            raise ReplayFailed(pipeline=self.config.pipeline, tables=lines)
        self.log.info("Built from staging, and in their places: %s", ", ".join(begun) or "none; another run did it")
        return {table: {} for table in begun}
