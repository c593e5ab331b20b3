"""Runs a Spark application that takes plan after plan, by spark-submit on a thread beside the task that orders them."""

from __future__ import annotations

import threading
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from airflow.sdk import Context

from tidemark.errors import SparkApplicationFailed, TidemarkError
from tidemark_airflow.operators.capture_operators import ApplicationOperator

if TYPE_CHECKING:
    from tidemark.spark_submit.plan_orders import PlanOrders

# How long it may take to end; the first one of a machine leaves an archive of classes then.
ENDING_S = 120


class OrderedApplication:
    """The application `name` of `spark_apps`, which starts at once. `failure` is what ended it; None if it works, or
    ended with its last order."""

    def __init__(
        self, operator: ApplicationOperator, name: str, orders: PlanOrders, limit_s: float, context: Context
    ) -> None:
        self.failure: Exception | None = None
        self._operator = operator
        self._name = name
        self._orders = orders
        self._limit_s = limit_s
        # Airflow refuses an `execute` outside of the task's context.
        run = partial(copy_context().run, self._run, context)
        self._thread = threading.Thread(target=run, name=f"spark-submit of {name}", daemon=True)
        self._thread.start()

    def _run(self, context: Context) -> None:
        access = self._operator.config.lake_access
        try:
            self.failure = self._operator.run_application(
                self._name, self._orders.manifest, self._orders.attempt, access, self._limit_s, context
            )
        except TidemarkError as failed:
            self.failure = failed
        except Exception as failed:
            self.failure = SparkApplicationFailed(plan=self._orders.attempt, detail=type(failed).__name__)
        if self.failure is not None:
            self._operator.log.warning("The Spark application ended: %s", type(self.failure).__name__)

    def is_ready(self) -> bool:
        return self._orders.is_ready()

    def order(self, plan: str) -> None:
        self._orders.order(plan)

    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        """Have it end after the plans that it is applying. Kills it if that takes longer than `ENDING_S`."""
        with suppress(Exception):  # without the lake it ends by itself, or is ended
            self._orders.end()
        self._thread.join(ENDING_S)
        if self._thread.is_alive():
            self._operator.on_kill()
            self._thread.join(ENDING_S)
