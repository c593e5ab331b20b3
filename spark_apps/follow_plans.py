"""Apply merge plans as they come: `follow_plans.py --manifest URI-of-the-beat` -> of each what merge_batch.py makes of
one plan, by one session that stays warm.

It says of a plan how many tables it brought how far, and of a table only what is wrong with it: the lines of every
table and plan would be a gigabyte a day in the task's log. Plans are applied beside each other: the operator orders one
while a slow table keeps another one busy.

It ends with 0 at the last order. If the operator is gone, or the driver itself cannot work, it ends with 1, and nothing
is said of the plan that it was at.
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

NEEDS = "tidemark.target.merge"


def run(spark: SparkSession, uri: str) -> None:
    """Apply every plan that is ordered in the folder of the beat at `uri`."""
    from tidemark.target.merge import apply_and_write_result
    from tidemark.target.ordered_plans import ordered_plans

    def apply(plan: str) -> None:
        began = time.monotonic()
        result = apply_and_write_result(spark, plan)
        failed = sum(table.error is not None for table in result.tables)
        said = f", {failed} with an error" if failed else ""
        log.info("%s: %s%s, %.1f s", result.plan, counted(len(result.tables), "table"), said, time.monotonic() - began)

    running: set[Future[None]] = set()

    def pause(seconds: float) -> None:
        """Until a plan is applied, or the time is over. Raises what ended one."""
        if not running:
            time.sleep(seconds)
            return
        for ended in wait(running, seconds, FIRST_COMPLETED).done:
            running.remove(ended)
            ended.result()

    with ThreadPoolExecutor(thread_name_prefix="plan") as pool:
        for plan in ordered_plans(spark, uri, sleep=pause):
            running.add(pool.submit(apply, plan))
        for last in running:
            last.result()


if __name__ == "__main__":
    logging.getLogger("tidemark.target").setLevel(logging.WARNING)
    sys.exit(run_application("tidemark_merge", "Apply merge plans of Tidemark as they come.", run, needs=NEEDS))
