"""Applies one merge plan: `merge_batch.py --manifest URI-of-plan.json` -> history, current, and result.json beside it.

The application uses neither Airflow nor ledger nor source (R10). The plan has the batches to apply, the positions in
Delta show those that are applied already, and the result has the positions that were reached. The exit code is 0 even
if a table failed: the result has its error. Another exit code means that the driver itself failed, without a result.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

try:
    import tidemark  # noqa: F401
except ImportError:  # run from a checkout; on a cluster the package comes with --py-files
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "include"))


from tidemark.target.application import run_application

if TYPE_CHECKING:
    from tidemark.formats.merge_result import PlanResult

# What `run` imports: it comes in while the session starts.
NEEDS: Final = "tidemark.target.plans.plan_execution"


def run(spark: SparkSession, uri: str) -> PlanResult:
    """Apply the plan at `uri` and leave the result beside it."""
    from tidemark.target.plans.plan_execution import apply_and_write_result

    return apply_and_write_result(spark, uri)


if __name__ == "__main__":
    sys.exit(run_application("tidemark_merge", "Apply one merge plan of Tidemark.", run, needs=NEEDS))
