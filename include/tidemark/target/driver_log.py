"""Chooses which messages of a driver's JVM reach Airflow's log, and formats Java exceptions without their messages.

Spark and Delta quote rows when a task fails (`[CAST_INVALID_INPUT] The value '…' of the type …`, `CHECK constraint …
violated by row with values: - email : …`), from a dozen loggers. At level INFO they also log the literals of every
plan. So all loggers of the JVM are silenced except `KEPT_LOGGERS`: those of cluster, network and storage.
`spark.log.level` in the pipeline file's `spark.conf` restores Spark's own messages, values included.

Executors write their own logs on the cluster. Source: Spark, "Configuring Logging"; Log4j 2, "Configurator".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from py4j.java_gateway import JavaPackage
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

CHOSEN_LEVEL: Final = "spark.log.level"

# An operator needs the warnings of these loggers, and they quote no row.
KEPT_LOGGERS: Final = (
    "org.apache.spark.SparkConf",
    "org.apache.spark.SparkContext",
    "org.apache.spark.HeartbeatReceiver",
    "org.apache.spark.deploy",
    "org.apache.spark.memory",
    "org.apache.spark.network",
    # "Initial job has not accepted any resources", lost executors; not TaskSetManager, which quotes what tasks raise.
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.scheduler.cluster",
    "org.apache.hadoop",
    "software.amazon.awssdk",
)
# Through these loggers PySpark repeats the message of an exception that has a query's context.
_PYSPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_FRAMES: Final = 6


def silence_loggers(spark: SparkSession) -> None:
    """Silence all loggers of this driver's JVM except `KEPT_LOGGERS`, and PySpark's own loggers too."""
    for name in _PYSPARK_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    if spark.sparkContext.getConf().get(CHOSEN_LEVEL) is not None:
        return
    jvm: Any = spark.sparkContext._jvm
    configurator = getattr(jvm, "org.apache.logging.log4j.core.config.Configurator")
    if isinstance(configurator, JavaPackage):  # slf4j uses another implementation: only the common level can be set
        spark.sparkContext.setLogLevel("OFF")
        return
    levels = getattr(jvm, "org.apache.logging.log4j.Level")
    configurator.setAllLevels("", levels.OFF)
    for name in KEPT_LOGGERS:
        configurator.setLevel(name, levels.WARN)


def java_frames(causes: Iterator[Any]) -> str:
    """The class and the innermost stack frames of each Java exception, outermost first, one per line."""
    lines = []
    for cause in causes:
        lines.append(f"  {cause.getClass().getName()}")
        lines += [f"    at {frame.toString()}" for frame in list(cause.getStackTrace())[:_FRAMES]]
    return "\n".join(lines)
