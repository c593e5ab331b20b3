"""A small report that runs whenever the shop's orders are newer in Delta: table's asset -> one line in the log.

An asset event says that a table moved, not what is in it: the report would read the `current` table. The events of a
run may arrive late or out of order, so the newest `end_lsn` counts.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset, task

ORDERS = Asset("tidemark://shop/shop/orders")

with DAG(
    dag_id="example_orders_report",
    description="Runs when the shop's orders moved",
    schedule=[ORDERS],
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "example"],
):

    @task
    def report(triggering_asset_events=None) -> None:  # type: ignore[no-untyped-def]
        """Log what the events say."""
        for event in triggering_asset_events[ORDERS]:
            extra = event.extra
            print(f"orders moved to {extra.get('end_lsn')}: {extra.get('rows')}, {extra.get('lag_s')} s behind")

    report()
