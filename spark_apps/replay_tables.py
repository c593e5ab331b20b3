"""Rebuilds Delta tables from `history`: `replay_tables.py --manifest URI-of-plan.json` -> current, or tables
as of a moment, and result.json beside the plan.

Like the application that merges, it uses neither Airflow nor ledger nor source (R10). Its exit code is 0 even if a
table failed: the result has its error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

try:
    import tidemark  # noqa: F401
except ImportError:  # run from a checkout; on a cluster the package comes with --py-files
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "include"))


from tidemark.target.application import run_application
from tidemark.target.plans.plan_files import read_plan, write_result

# What `run` imports: it comes in while the session starts.
NEEDS: Final = "tidemark.target.table_replay"


def run(spark: SparkSession, uri: str) -> None:
    """Follow the plan at `uri` and leave the result beside it."""
    from tidemark.formats.replay_plan import ReplayPlan
    from tidemark.target.table_replay import replay

    result = replay(spark, ReplayPlan.from_json(read_plan(spark, uri), uri))
    write_result(spark, uri, result.to_json())


if __name__ == "__main__":
    sys.exit(
        run_application("tidemark_replay", "Make Delta tables of Tidemark anew from their history.", run, needs=NEEDS)
    )
