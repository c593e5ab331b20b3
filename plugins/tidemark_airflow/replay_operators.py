"""The task of `<pipeline>_replay`, which makes Delta tables anew from their history."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from tidemark.errors import ReplayFailed, SparkApplicationFailed
from tidemark.formats.layout import replay_file
from tidemark_airflow import replay_form
from tidemark_airflow.failures import guarded
from tidemark_airflow.figures import timed
from tidemark_airflow.operators import MERGE_WAIT_S, ApplicationOperator, run_of


class ReplayOperator(ApplicationOperator):
    """Rebuilds `current` of the form's tables under their leases, or makes them as of a moment. Run again it does the
    same again."""

    @guarded
    @timed
    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.maintenance import replaying

        run = run_of(self.config, context)
        request = replay_form.request(self.config, context["params"], context["dag_run"].conf or {})
        with replaying.leased_replay(run, request, wait_s=MERGE_WAIT_S) as plan:
            manifest = f"{plan.lake}/{replay_file(plan.pipeline, plan.plan)}"
            access, limit_s = run.config.lake_access, self.config.merge.timeout_s
            failure = self.run_application("replay_tables", manifest, plan.plan, access, limit_s, context)
            result = replaying.take_result(run, plan)
        if result is None:
            raise failure or SparkApplicationFailed(plan=plan.plan, detail="it left no result")
        for table in result.tables:
            if table.error is None:
                self.log.info("%s as of %s: %s rows at %s", table.table, table.position, table.rows, table.path)
        failed = [f"{table.table}: {table.error.message}" for table in result.tables if table.error is not None]
        if failed:
            raise ReplayFailed(pipeline=self.config.pipeline, tables="\n".join(failed))
        return {table.table: {"path": table.path, "position": table.position} for table in result.tables}
