"""Keep Delta tables small: `compact_tables.py --manifest URI-of-plan.json` -> fewer files, and result.json beside
the plan.

Like the application that merges it knows neither Airflow nor ledger nor source (R10), and it ends with 0 also where
something was left undone for a table: that is in the result.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession

try:
    import tidemark  # noqa: F401
except ImportError:  # run from a checkout; on a cluster the package comes with --py-files
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "include"))


from tidemark import failpoints
from tidemark.errors import TidemarkError
from tidemark.formats.upkeep import UpkeepPlan, UpkeepResult
from tidemark.target.failures import condition_of, told
from tidemark.target.session import read_text, start, write_text
from tidemark.target.upkeep import keep_up

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compact and clean the Delta tables of a plan of Tidemark.")
    parser.add_argument("--manifest", required=True, help="URI of plan.json")
    uri: str = parser.parse_args(arguments).manifest
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)

    try:
        spark = start("tidemark_maintenance")
        try:
            run(spark, uri)
        finally:
            spark.stop()
    except TidemarkError as failed:
        log.error("%s", failed)
        return 1
    except Exception as failed:  # what it says may quote a value
        log.error("The driver failed with %s, raised at:\n%s", condition_of(failed), told(failed))
        return 1
    return 0


def run(spark: SparkSession, uri: str) -> UpkeepResult:
    """Follow the plan at `uri` and leave the result beside it."""
    result = keep_up(spark, UpkeepPlan.from_json(read_text(spark, uri)))
    failpoints.reach("maintain.before_result")
    write_text(spark, f"{uri.rpartition('/')[0]}/result.json", result.to_json())
    return result


if __name__ == "__main__":
    sys.exit(main())
