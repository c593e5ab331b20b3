"""Reads plan.json at a URI, and writes result.json beside it (R10).

The plan file also proves that the lake is reachable. A volume may be unmounted during a merge, or a name may start to
point to another store. Then every table and every staged file is missing, and new tables would start in the wrong
place. That is no error of a table (R6). So a result is written only if the plan file still exists. Without a result the
run counts as failed, and the next driver reads the positions from the tables.
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidemark.errors import PlanMissing
from tidemark.target.delta import hadoop_files
from tidemark.target.delta.session import read_text, write_text
from tidemark.target.merge_failures import is_missing_file


def read_plan(spark: SparkSession, uri: str) -> str:
    """The plan's JSON. Raises PlanMissing if there is no such file."""
    try:
        return read_text(spark, uri)
    except (FileNotFoundError, Py4JJavaError) as failed:
        if is_missing_file(failed):
            raise PlanMissing(plan=uri) from None
        raise


def write_result(spark: SparkSession, uri: str, result: str) -> None:
    """Write the result next to the plan at `uri`. Raises PlanMissing, and writes nothing, if the plan is missing."""
    if not hadoop_files.exists(spark, uri):
        raise PlanMissing(plan=uri)
    write_text(spark, f"{uri.rpartition('/')[0]}/result.json", result)
