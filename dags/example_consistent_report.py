"""A report over several tables as of one position of the source: two Delta tables -> one line in the log.

A join of `current` tables may see an order without its lines, since each table has its own version. `Lake.together`
reads all of them as of the newest position that all have reached. TIDEMARK_EXAMPLE_LAKE names the lake's folder.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG, Asset, task

with DAG(
    dag_id="example_consistent_report",
    description="Compares orders with their lines, as of one position",
    schedule=[Asset("tidemark://shop/shop/orders"), Asset("tidemark://shop/shop/order_lines")],
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "example"],
):

    @task
    def report() -> None:
        """Log how many orders have lines. `together` never shows half a transaction."""
        from tidemark.lake import Lake

        lake = os.environ.get("TIDEMARK_EXAMPLE_LAKE", ".tidemark/lake")
        both = Lake(f"{lake}/shop").together("shop.orders", "shop.order_lines")
        orders = set(both["shop.orders"].current()["id"].to_pylist())
        lines = both["shop.order_lines"].current()["order_id"].to_pylist()
        without = orders - set(lines)
        print(f"As of {both.position}: {len(orders)} orders, {len(lines)} lines, {len(without)} orders without lines")

    report()
