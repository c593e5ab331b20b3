"""Defines the task of `<pipeline>_replay`, which rebuilds Delta tables from their history, or from staging."""

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
    """Does one of the form's three steps for its tables.

    - `rebuild` computes `current` again from `history`, under the tables' leases.
    - `as_of` writes new tables as of a moment.
    - `staged` replays staging: a drain gives each table a successor, and a merge builds it from the staged batches.

    A second try of the task does the same again, but it continues a replay that was begun.
    """

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.maintenance import replay_runs

        request = replay_form.request(self.config, context["params"], context["dag_run"].conf or {})
        if request.step == "staged":
            return self._from_staging(run_of(self.config, context, salted=True), request, context)
        run = run_of(self.config, context)
        with replay_runs.leased_replay(run, request, wait_s=MERGE_WAIT_S) as plan:
            file, limit_s = replay_file(plan.pipeline, plan.plan), self.config.merge.timeout_s
            failure = self.run_plan("replay_tables", file, plan.plan, run, limit_s, context)
            result = replay_runs.take_result(run, plan)
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
        from tidemark.maintenance import replay_runs

        begun = replay_runs.begin_replay(run, request, wait_s=slot_wait_s(self.config))
        ingest(run)
        failure = None
        with leased_plan(run, PlanScope(tables=frozenset(begun)), wait_s=MERGE_WAIT_S) as plan:
            if plan is not None:
                failure = self.merge(run, plan, context)
                ingested = ingest(run)
        if plan is not None and plan.plan not in ingested.plans and failure is not None:
            raise failure
        left = replay_runs.unplaced(run, begun)
        if left:
            lines = "\n".join(f"{table}: {reason}" for table, reason in left.items())
            raise ReplayFailed(pipeline=self.config.pipeline, tables=lines)
        self.log.info(
            "Built from staging, in place of the live tables: %s", ", ".join(begun) or "none; another run did it"
        )
        return {table: {} for table in begun}
