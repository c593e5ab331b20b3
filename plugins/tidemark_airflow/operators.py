"""The tasks of a pipeline, each a call of one function of the library with its connections resolved.

    preflight ─► changes_waiting ─► drain ─► merge ─► confirm

A task hands nothing to the next one: what is staged, planned, applied and confirmed is read from the ledger each time
(R3-R5), so any task may be retried, cleared, or marked by hand. What goes to XCom is for people.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.config import PipelineConfig
from tidemark.errors import PipelineFileInvalid
from tidemark_airflow import submission
from tidemark_airflow.assets import pipeline_alias
from tidemark_airflow.connections import conninfo, salt, spark_master
from tidemark_airflow.notifiers import notify

if TYPE_CHECKING:
    from tidemark.target.plan import MergePlan


def run_id(context: Context) -> str:
    """Names the DAG run in the ledger; a pipeline's DAGs share one ledger, so the DAG is part of the name."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


def holder(context: Context) -> str:
    """Names the task instance in the ledger, not its try: a later try takes over an earlier one's leases at once."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"


class PreflightOperator(BaseOperator):
    """Looks at source, ledger, lake and Spark before anything is touched, and says everything that is wrong at once."""

    def __init__(self, *, config: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.preflight import preflight

        report = preflight(
            self.config,
            source=conninfo(self.config.source_connection),
            ledger=conninfo(self.config.ledger_connection),
            spark_master=spark_master(self.config.spark_connection),
            holder=holder(context),
        )
        self.log.info("%s", report)
        report.raise_for_errors()
        return {"warnings": sum(finding.severity == "warning" for finding in report.findings)}


class DrainOperator(BaseOperator):
    """Reads the slot into staging, batch by batch."""

    def __init__(self, *, config: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.drain import drain

        drained = drain(
            self.config,
            source=conninfo(self.config.source_connection),
            ledger=conninfo(self.config.ledger_connection),
            run_id=run_id(context),
            holder=holder(context),
            salt=salt(self.config.mask_salt_connection),
        )
        self.log.info(
            "Staged %d changes in %d batches, up to %s%s",
            drained.rows,
            len(drained.batches),
            drained.staged_lsn,
            "" if drained.reached_target else "; the next run goes on",
        )
        return {
            "batches": [[str(start), str(end)] for start, end in drained.batches],
            "rows": drained.rows,
            "staged_lsn": str(drained.staged_lsn),
            "reached_target": drained.reached_target,
        }


class MergeOperator(SparkSubmitOperator):
    """Brings what is staged and not applied into Delta, by one Spark application for all tables.

    Each try writes a plan of its own, so nothing is resumed: `durable` is off. Marking the task failed, or its time
    running out, kills spark-submit (`on_kill` of the hook); a driver that survives all the same loses by the fence (R5).
    """

    def __init__(self, *, config: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(
            conn_id=config.spark_connection,
            name=f"tidemark_{config.pipeline}",
            durable=False,
            outlets=[pipeline_alias(config.pipeline)],
            **kwargs,
        )
        self.config = config

    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.merging import ingest, make_plan

        ledger = conninfo(self.config.ledger_connection)
        ingested = [ingest(self.config, ledger=ledger)]
        plan = make_plan(self.config, ledger=ledger, holder=holder(context), run_id=run_id(context))
        if plan is not None:
            try:
                self.submit(plan, context)
            except AirflowException as failed:
                self.log.warning("The Spark application ended with an error: %s", failed)
            ingested.append(ingest(self.config, ledger=ledger))
        return {}

    def submit(self, plan: MergePlan, context: Context) -> None:
        """Run spark-submit to its end. Raises AirflowException where it exits with an error."""
        with tempfile.TemporaryDirectory(prefix="tidemark-") as scratch:
            self.application = submission.application("merge_batch")
            self.application_args = ["--manifest", submission.plan_uri(plan)]
            self.conf = dict(self.config.spark_conf)
            self.jars = submission.jars()
            if submission.is_local(spark_master(self.config.spark_connection)):
                self.env_vars = submission.local_environment()
            else:
                self.py_files = submission.library_zip(scratch)
            super().execute(context)


class ConfirmOperator(BaseOperator):
    """Moves the slot up to what is applied (R3), then announces the tables that were parked since the last run (R6)."""

    def __init__(self, *, config: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    def execute(self, context: Context) -> dict[str, Any]:
        from tidemark.capture.confirm import confirm
        from tidemark.capture.parked import announce_parked

        ledger = conninfo(self.config.ledger_connection)
        confirmed = confirm(
            self.config,
            source=conninfo(self.config.source_connection),
            ledger=ledger,
            holder=holder(context),
        )
        self.log.info("Confirmed %s, was %s, staged %s", confirmed.after, confirmed.before, confirmed.staged)
        messages = announce_parked(self.config, ledger=ledger, tell=lambda message: self._tell(message, context))
        if messages and self.config.notifier is None:
            raise AirflowFailException("\n".join(["The slot was confirmed; this run is red once because", *messages]))
        return {"before": str(confirmed.before), "after": str(confirmed.after), "staged": str(confirmed.staged)}

    def _tell(self, message: str, context: Context) -> None:
        self.log.error("%s", message)
        if self.config.notifier is not None:
            notify(self.config.notifier, message, context)


class BrokenPipelineFile(BaseOperator):
    """Stands in for the tasks of a pipeline whose file is broken, and fails with everything that is wrong with it."""

    def __init__(self, *, problems: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.problems = problems

    def execute(self, context: Context) -> None:
        raise PipelineFileInvalid(problems="\n".join(self.problems))
