"""Applies merge plans as they are ordered, in one warm session: `follow_plans.py --manifest URI-of-the-beat`.

It does for each plan what merge_batch.py does for one. It logs one line per plan, and of a table only errors: a line
per table and plan would be a gigabyte a day in the task's log. Plans are applied beside each other: the operator orders
one while a slow table keeps another one busy.

When no plan came for `REST_S`, the JVM collects all garbage and returns the memory of its last burst to the machine.

The exit code is 0 after the last order. It is 1 if the operator is gone, or if the driver itself failed; then the plan
that it was applying has no result.
"""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from pyspark.sql import SparkSession

try:
    import tidemark  # noqa: F401
except ImportError:  # run from a checkout; on a cluster the package comes with --py-files
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "include"))


from tidemark.target.application import run_application
from tidemark.wording import counted

log = logging.getLogger(__name__)

NEEDS = "tidemark.target.plans.plan_execution"

REST_S = 30.0


def run(spark: SparkSession, uri: str) -> None:
    """Apply every plan that is ordered in the folder of the beat at `uri`."""
    from tidemark.target.delta.jvm import java_class
    from tidemark.target.plans.ordered_plans import ordered_plans
    from tidemark.target.plans.plan_execution import apply_and_write_result

    def apply(plan: str) -> None:
        began = time.monotonic()
        result = apply_and_write_result(spark, plan)
        failed = sum(table.error is not None for table in result.tables)
        said = f", {failed} with an error" if failed else ""
        log.info("%s: %s%s, %.1f s", result.plan, counted(len(result.tables), "table"), said, time.monotonic() - began)

    running: set[Future[None]] = set()
    collect_at: float | None = None

    def pause(seconds: float) -> None:
        """Until a plan is applied, or the time is over. Raises what ended one."""
        nonlocal collect_at
        if not running:
            if collect_at is not None and time.monotonic() >= collect_at:
                collect_at = None
                java_class(spark, "java.lang.System").gc()
            time.sleep(seconds)
            return
        for ended in wait(running, seconds, FIRST_COMPLETED).done:
            running.remove(ended)
            ended.result()
        collect_at = time.monotonic() + REST_S

    with ThreadPoolExecutor(thread_name_prefix="plan") as pool:
        for plan in ordered_plans(spark, uri, sleep=pause):
            running.add(pool.submit(apply, plan))
        for last in running:
            last.result()


if __name__ == "__main__":
    logging.getLogger("tidemark.target").setLevel(logging.WARNING)
    sys.exit(run_application("tidemark_merge", "Apply merge plans of Tidemark as they come.", run, needs=NEEDS))
