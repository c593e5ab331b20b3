"""Reads plan.json at a URI, and writes result.json beside it (R10).

The plan file also proves that the lake is reachable. A volume may be unmounted during a merge, or a name may start to
point to another store. Then every table and every staged file is missing, and new tables would start in the wrong
place. That is no error of a table (R6). So a result is written only if the plan file still exists. Without a result the
run counts as failed, and the next driver reads the positions from the tables.
"""

from __future__ import annotations

import logging

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidemark.errors import PlanMissing
from tidemark.target.delta import hadoop_files
from tidemark.target.merge_failures import is_missing_file

log = logging.getLogger(__name__)


def read_plan(spark: SparkSession, uri: str) -> bytes:
    """The plan's JSON, not decoded: `from_json` names the file if it is no text. Raises PlanMissing if there is no such
    file."""
    try:
        return hadoop_files.read_whole(spark, uri)
    except (FileNotFoundError, Py4JJavaError) as failed:
        if is_missing_file(failed):
            raise PlanMissing(plan=uri) from None
        raise


def write_result(spark: SparkSession, uri: str, result: str) -> None:
    """Write the result next to the plan at `uri`. Raises PlanMissing, and writes nothing, if the plan is missing.

    Another driver of the same plan may have written one, which is as valid. Azure does not replace it.
    """
    if not hadoop_files.exists(spark, uri):
        raise PlanMissing(plan=uri)
    result_uri = f"{uri.rpartition('/')[0]}/result.json"
    try:
        hadoop_files.write_whole(spark, result_uri, result.encode())
    except FileExistsError:
        log.info("%s is there already", result_uri)
