"""Compacts Delta tables as plans are ordered: `compact_tables.py --manifest URI-of-the-beat` -> fewer files, and
result.json beside each plan.

Like the application that merges, it uses neither Airflow nor ledger nor source (R10). Its exit code is 0 after the last
order, even if something was left undone for a table: the result says so.
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


from tidemark import failpoints
from tidemark.target.application import run_application
from tidemark.target.plans.plan_files import read_plan, write_result

# What `run` imports: it comes in while the session starts.
NEEDS: Final = "tidemark.target.table_compaction"


def run(spark: SparkSession, uri: str) -> None:
    """Do every plan that is ordered in the folder of the beat at `uri`."""
    from tidemark.target.plans.ordered_plans import ordered_plans

    for plan in ordered_plans(spark, uri):
        compact(spark, plan)


def compact(spark: SparkSession, uri: str) -> None:
    """Do the plan at `uri` and leave the result beside it."""
    from tidemark.formats.compaction_plan import CompactionPlan
    from tidemark.target.table_compaction import maintain_tables

    result = maintain_tables(spark, CompactionPlan.from_json(read_plan(spark, uri), uri))
    failpoints.reach("maintain.before_result")
    write_result(spark, uri, result.to_json())


if __name__ == "__main__":
    sys.exit(
        run_application(
            "tidemark_maintenance", "Compact and clean the Delta tables of a plan of Tidemark.", run, needs=NEEDS
        )
    )
