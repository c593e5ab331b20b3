"""Reads plan.json at a URI, and writes result.json beside it (R10).

The plan file also proves that the lake is there. If a volume is unmounted below a driver, or a name starts to point to
another store, every table and every staged file is missing, and new tables would start in the wrong place. That is no
error of a table (R6). So a result is written only if the plan file is still there. Without a result nothing counts, and
the next driver reads from the tables what was done.
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidemark.errors import PlanMissing
from tidemark.target.delta import hadoop_files
from tidemark.target.delta.session import read_text, write_text
from tidemark.target.merge_failures import is_gone


def read_plan(spark: SparkSession, uri: str) -> str:
    """The plan's JSON. Raises PlanMissing if it is not there."""
    try:
        return read_text(spark, uri)
    except (FileNotFoundError, Py4JJavaError) as failed:
        if is_gone(failed):
            raise PlanMissing(plan=uri) from None
        raise


def leave_result(spark: SparkSession, uri: str, result: str) -> None:
    """Write the result beside the plan at `uri`. Raises PlanMissing, and writes nothing, if the plan is gone."""
    if not hadoop_files.exists(spark, uri):
        raise PlanMissing(plan=uri)
    write_text(spark, f"{uri.rpartition('/')[0]}/result.json", result)
