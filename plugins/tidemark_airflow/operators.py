"""The tasks of a pipeline, each a call of one function of the library with connections resolved.

    preflight ─► changes_waiting ─► drain ─► merge ─► confirm

A task passes nothing to the next one: what is staged, planned, applied and confirmed is read from the ledger each time (R3-R5),
so any task can be retried, cleared, or marked by hand. What goes to XCom is for people.
"""

from __future__ import annotations

import tempfile
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tidemark.config import PipelineConfig
from tidemark.errors import SparkApplicationFailed
from tidemark_airflow import submission
from tidemark_airflow.assets import emit, pipeline_alias
from tidemark_airflow.connections import conninfo, salt, spark_master
from tidemark_airflow.notifiers import announce


def run_id(context: Context) -> str:
    """Names the DAG run in the ledger; a pipeline's DAGs share one ledger, so the DAG is part of it."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


def holder(context: Context) -> str:
    """Names the task instance in the ledger, without its try: a later try takes over the leases of an earlier one at once."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
