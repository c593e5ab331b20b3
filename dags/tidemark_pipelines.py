"""Every file of include/pipelines -> its Airflow DAGs."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark_airflow.dag_factory import pipeline_dags

PIPELINES = os.environ.get("TIDEMARK_PIPELINES") or Path(__file__).resolve().parents[1] / "include" / "pipelines"

for dag in pipeline_dags(PIPELINES):
    globals()[dag.dag_id] = dag
