"""A quality check after each change of a table: the Delta table's rows -> a failed task that names the broken rules.

delta-rs reads the table, without Spark: install `tidemark-cdc[lake]`. TIDEMARK_EXAMPLE_LAKE names the lake's folder.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG, Asset, task

ORDERS = Asset("tidemark://shop/shop/orders")
# What has to be 0.
RULES = {
    "orders without a customer": "count(*) FILTER (WHERE customer_id IS NULL)",
    "orders placed in the future": "count(*) FILTER (WHERE placed_at > now())",
}

with DAG(
    dag_id="example_quality_check",
    description="Checks the shop's orders whenever they moved",
    schedule=[ORDERS],
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "example"],
):

    @task
    def check() -> None:
        """Fail with the rules that are broken, each with its number of rows."""
        from deltalake import DeltaTable, QueryBuilder

        lake = os.environ.get("TIDEMARK_EXAMPLE_LAKE", ".tidemark/lake")
        orders = DeltaTable(f"{lake}/shop/current/shop/orders")
        counted = ", ".join(f"{counts} AS rule_{number}" for number, counts in enumerate(RULES.values()))
        query = f"SELECT {counted} FROM orders"
        rows = QueryBuilder().register("orders", orders).execute(query).read_all()
        found = {rule: rows[f"rule_{number}"][0].as_py() for number, rule in enumerate(RULES)}
        if broken := [f"{rule}: {count}" for rule, count in found.items() if count]:
            raise ValueError("; ".join(broken))

    check()
