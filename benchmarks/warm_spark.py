"""A Spark session in the benchmark's own process, set up as the applications set theirs up, and plans applied in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.pipeline import SMALL, Refused, jars
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.target.delta.session import start
from tidemark.target.plans.plan_execution import apply_plan


@contextmanager
def warm_session() -> Iterator[SparkSession]:
    """On `local[*]`, with spark-submit's own memory for the driver."""
    settings = {
        "spark.master": "local[*]",
        "spark.jars": jars(),
        "spark.ui.showConsoleProgress": "false",
    }
    spark = start("benchmark", settings)
    spark.sparkContext.setLogLevel("ERROR")
    for name, value in SMALL.items():  # for what stands beside: a table's session is set up by itself
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        spark.stop()


def jvm_pid(spark: SparkSession) -> int:
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def applied(spark: SparkSession, plan: MergePlan) -> None:
    """The plan, with its result beside it, as the application leaves it."""
    result = apply_plan(spark, plan)
    if errors := [table.error for table in result.tables if table.error is not None]:
        raise Refused(str(errors[0]))
    written = Path(plan.lake, layout.result_file(plan.pipeline, plan.plan))
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(result.to_json())
