"""Sets which messages of a driver's JVM reach the log that Airflow keeps, and logs failures as places, never values.

Spark and Delta quote rows when a task fails (`[CAST_INVALID_INPUT] The value '…' of the type …`, `CHECK constraint …
violated by row with values: - email : …`), from a dozen loggers. At level INFO they also log the literals of every
plan. So the JVM's loggers are silent but for `SPEAKING`: cluster, network and storage. `places` formats an exception.
`spark.log.level` in the pipeline file's `spark.conf` restores Spark's own messages, values included.

Executors on a cluster write their own logs there. Source: Spark, "Configuring Logging"; Log4j 2, "Configurator".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from py4j.java_gateway import JavaPackage
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

CHOSEN_LEVEL: Final = "spark.log.level"

# Warnings of these say what an operator has to know, and are about no row.
SPEAKING: Final = (
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
# PySpark repeats the message of an exception that has a query's context, through loggers of its own.
_OF_PYSPARK: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_FRAMES: Final = 6


def let_speak(spark: SparkSession) -> None:
    """Silence this driver's JVM but for `SPEAKING`, and PySpark's own loggers."""
    for name in _OF_PYSPARK:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    if spark.sparkContext.getConf().get(CHOSEN_LEVEL) is not None:
        return
    jvm: Any = spark.sparkContext._jvm
    configurator = getattr(jvm, "org.apache.logging.log4j.core.config.Configurator")
    if isinstance(configurator, JavaPackage):  # another implementation behind slf4j: all or nothing
        spark.sparkContext.setLogLevel("OFF")
        return
    levels = getattr(jvm, "org.apache.logging.log4j.Level")
    configurator.setAllLevels("", levels.OFF)
    for name in SPEAKING:
        configurator.setLevel(name, levels.WARN)


def places(causes: Iterator[Any]) -> str:
    """The Java exceptions, outermost first: class and innermost frames of each, on lines of their own."""
    lines = []
    for cause in causes:
        lines.append(f"  {cause.getClass().getName()}")
        lines += [f"    at {frame.toString()}" for frame in list(cause.getStackTrace())[:_FRAMES]]
    return "\n".join(lines)
