"""Apply one merge plan: `merge_batch.py --manifest URI-of-plan.json` -> history and current moved on, result.json
beside the plan.

The application knows neither Airflow nor ledger nor source (R10): the plan says what to apply, the positions in Delta
say what is applied already, and the result says what was reached. It ends with 0 even if a table failed: that is
in the result. Any other end means that the driver itself could not work, and then nothing is said of any table.
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
NEEDS: Final = "tidemark.target.merge"


def run(spark: SparkSession, uri: str) -> PlanResult:
    """Apply the plan at `uri` and leave the result beside it."""
    from tidemark.target.merge import apply_and_write_result

    return apply_and_write_result(spark, uri)


if __name__ == "__main__":
    sys.exit(run_application("tidemark_merge", "Apply one merge plan of Tidemark.", run, needs=NEEDS))
