"""dbt after the tables that its models read: runs once all of them have moved -> `dbt build` of what depends on them.

The project is the folder DBT_PROJECT; its sources are the Delta tables below `<lake>/shop/current`.
"""

from __future__ import annotations

import os

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset

TABLES = ("orders", "order_lines", "customers")

with DAG(
    dag_id="example_dbt_after_tables",
    description="Builds dbt's models of the shop when all of their sources moved",
    schedule=[Asset(f"tidemark://shop/shop/{table}") for table in TABLES],
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "example"],
):
    BashOperator(
        task_id="dbt_build",
        bash_command="dbt build --select source:shop+",
        cwd=os.environ.get("DBT_PROJECT", "/opt/dbt/shop"),
        append_env=True,
    )
