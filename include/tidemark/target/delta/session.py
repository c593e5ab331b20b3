"""Builds the SparkSession of an application from its settings, and one session below it per table.

Delta reads `txnAppId` and `txnVersion` from the session's configuration (R5), and tables are merged at the same time.
So each table has its own session, configured here: a new session of Spark does not copy settings made at run time. A
comment next to each setting gives its reason. Sources: Spark, "Configuration"; Delta, "Delta table properties",
"Idempotent writes".
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from py4j.java_gateway import JavaPackage, java_import
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.errors import DeltaMissing, LogStoreMissing, LogStoreUnfenced, SparkUnsupported
from tidemark.spark_submit.delta_version import delta_version, refusal
from tidemark.storage import log_store_settings
from tidemark.storage.lake_access import AZURE_SECRET
from tidemark.target.delta import internals
from tidemark.target.delta.jvm import java_class, keep_hadoop_configuration
from tidemark.target.delta.socket_acknowledgements import acknowledge_at_once
from tidemark.target.driver_log import silence_loggers

log = logging.getLogger(__name__)

# Set when the application starts. A value from spark-submit or the pipeline file has precedence.
APPLICATION_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Tables are merged at the same time. Without it the tasks of a large table would all run before those of the
    # others.
    "spark.scheduler.mode": "FAIR",
    # If two drivers commit the same version on S3, exactly one succeeds (spark_apps/log_store). Delta's own log store
    # for S3 is only safe with a single driver.
    log_store_settings.OF_S3: log_store_settings.OWN,
    # The same for a local folder. Delta's own log store also starts ten processes for each commit, and ten for its
    # checksum file.
    log_store_settings.OF_FILES: log_store_settings.OWN_OF_FILES,
    # S3A does not check for folders before it writes a file.
    "spark.hadoop.fs.s3a.create.performance": "true",
    # The metrics thread of Hadoop's client for Azure would keep the JVM alive after the application has ended.
    "spark.hadoop.fs.azure.metrics.collection.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # PySpark records for error messages where in Python each Column was created: a dozen calls to the JVM and a failed
    # import per Column, a third of Python's CPU time in a small merge. Tidemark's messages do not use it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

# Set on every table's session, unless the application was started with another value.
TABLE_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # Dates and times are like PostgreSQL's: proleptic Gregorian calendar, microseconds, in files that any reader
    # accepts.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # As the drain and the driver write theirs. By Snappy, uuids as text take twice the bytes, and half as much CPU
    # again to read; writing them is no faster. Higher levels make them no smaller.
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    # A cast that loses information is an error, never a NULL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # Spark estimates the size of a side of a join by its files' bytes and by the columns in use. It estimated the keys
    # of five million rows at some megabytes, and no driver with a gigabyte could hold them. Frames that are known to be
    # small are marked with `broadcast`.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # The constraints that Spark infers from a condition grow exponentially with its length, and no filter here can be
    # inferred from another. Tidemark's conditions are short, but Delta builds longer ones from them.
    "spark.sql.constraintPropagation.enabled": "false",
    # A table's log is small. The default of 50 tasks to read it would take most of a small merge's time.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # `txnVersion` is removed by the commit that it was set for. A later commit without its own must not inherit it.
    "spark.databricks.delta.write.txnVersion.autoReset.enabled": "true",
}

# Set additionally if the lake uses Tidemark's log store, whose jar has the class. It writes a version's checksum file
# under its final name. Spark's own manager would write a temporary file and rename it, which copies it on S3.
LOG_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": "tidemark.delta.WholeFileManager",
}

_CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

# Set additionally for a small table with few changes. Compiling and re-planning would take most of the time: a quarter
# of the CPU time of merging five small tables.
FEW_ROWS_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}

# Set additionally on `public_path`: a Delta before 4.4 could commit a deletion vector without having written it.
PUBLIC_PATH_SETTINGS: Final[Mapping[str, str]] = {
    f"spark.databricks.delta.{command}.deletionVectors.persistent": "false" for command in ("merge", "update", "delete")
}

# PySpark uses these classes by their short names, for each Column and each list of Columns. Without an import the JVM
# searches all jars for the name, package by package.
_NAMED_BY_PYSPARK: Final = ("org.apache.spark.api.python.PythonUtils", "org.apache.spark.sql.api.python.PythonSQLUtils")

DEFAULT_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def start(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start the application's session. `settings` override options of spark-submit, and these override the defaults.

    Raises DeltaMissing if Spark has no Delta Lake, SparkUnsupported if the two versions cannot work together.
    """
    # Executors and driver run the same interpreter. Without this Spark uses the first `python3` on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = _submitted_keys()
    builder = SparkSession.builder
    if "spark.app.name" not in submitted:  # spark-submit names the pipeline, so that the cluster's page shows it
        builder = builder.appName(name)
    for key, value in {**APPLICATION_SETTINGS, **(settings or {})}.items():
        if key not in submitted or key in (settings or {}):
            builder = builder.config(key, value)
    acknowledge_at_once()
    session = builder.getOrCreate()
    for class_name in _NAMED_BY_PYSPARK:
        java_import(session.sparkContext._jvm, class_name)
    silence_loggers(session)
    _require_delta(session)
    lacks = internals.misfit(session)
    if lacks is not None:
        log.warning(
            "Delta is another one than Tidemark is made for (%s): its public path is taken, which is slower", lacks
        )
    _pass_on_lake_secret(session)
    return session


def _pass_on_lake_secret(session: SparkSession) -> None:
    """Replace the name of the variable with the lake's secret by the secret, in Hadoop's configuration of this session.

    The setting only names the variable, since settings appear in a command line. Executors do not have the variable, so
    they get the value, as Spark itself passes AWS's variables on. Without the variable (somebody repeats the command of
    a run's log by hand), Hadoop's client raises an error that names the missing key.
    """
    if AZURE_SECRET not in os.environ:
        return
    reference = f"${{env.{AZURE_SECRET}}}"
    for name, value in session.sparkContext.getConf().getAll():
        if value == reference and name.startswith("spark.hadoop."):
            hadoop_settings = session.sparkContext._jsc.hadoopConfiguration()
            hadoop_settings.set(name.removeprefix("spark.hadoop."), os.environ[AZURE_SECRET])


def _require_delta(session: SparkSession) -> None:
    """Check that Delta's jars are present and fit this Spark. Raises DeltaMissing, SparkUnsupported.

    Without the jars Spark only logs a warning, and every table would fail with an error of Python. With the jars for
    another Spark, every table would fail with an error of Java.
    """
    table = java_class(session, "io.delta.tables.DeltaTable")
    if isinstance(table, JavaPackage):
        raise DeltaMissing(version=session.version)
    delta_class = java_class(session, "py4j.reflection.ReflectionUtil").classForName("io.delta.tables.DeltaTable")
    source = delta_class.getProtectionDomain().getCodeSource()
    jar = "" if source is None or source.getLocation() is None else str(source.getLocation())
    reason = refusal(session.version, delta_version([jar]))
    if reason is not None:
        raise SparkUnsupported(reason=reason)


def require_fence(session: SparkSession, lake: str) -> None:
    """Check that the driver's settings keep commits safe when two drivers commit at the same time.

    Options of spark-submit have precedence over Tidemark's, and a machine's spark-defaults.conf may configure a log
    store that is only safe with one driver. Raises LogStoreUnfenced for such a setting. Raises LogStoreMissing if
    Tidemark's log store is configured, but the jar of this release is missing.
    """
    settings = _start_settings(session.sparkContext)
    setting = log_store_settings.unfenced_setting(settings, urlsplit(lake).scheme)
    if setting is not None:
        raise LogStoreUnfenced(setting=setting, value=settings[setting])
    own = log_store_settings.own_log_store(settings, lake)
    if own is not None and isinstance(java_class(session, own), JavaPackage):
        raise LogStoreMissing(name=own)


def table_session(spark: SparkSession, pool: str, lake: str) -> SparkSession:
    """Create a session for one table of the lake. Call it on the thread that uses it, whose active session it becomes.

    `pool` names the FAIR pool of the thread's jobs.
    """
    has_own_log_store = log_store_settings.own_log_store(
        _start_settings(spark.sparkContext), lake
    ) and _has_checkpoint_manager(spark)
    settings = {**_table_settings(spark), **(LOG_SETTINGS if has_own_log_store else {})}
    if internals.misfit(spark) is not None:
        settings |= PUBLIC_PATH_SETTINGS
    template = _template(spark, tuple(settings.items()))
    session = SparkSession(spark.sparkContext, template._jsparkSession.cloneSession())
    keep_hadoop_configuration(session)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    activate(session)
    return session


@lru_cache(maxsize=2)
def _template(spark: SparkSession, settings: tuple[tuple[str, str], ...]) -> SparkSession:
    """A session with these settings. A clone of it takes a quarter of the time of setting them one by one."""
    template = spark.newSession()
    _set_unless_given(template, dict(settings))
    return template


def _has_checkpoint_manager(spark: SparkSession) -> bool:
    """Whether Spark has the class that the log store's jar extends, in the package that it has from Spark 4.1 on."""
    return not isinstance(java_class(spark, _CHECKPOINT_MANAGER), JavaPackage)


def expect_any_rows(session: SparkSession) -> None:
    """Configure the session for a table of unknown size."""
    for key in FEW_ROWS_SETTINGS:
        session.conf.unset(key)
    _set_unless_given(session, _table_settings(session))


def _table_settings(spark: SparkSession) -> dict[str, str]:
    # 200 partitions are Spark's guess for a cluster; adaptive execution joins them, but planning them costs.
    return {**TABLE_SETTINGS, DEFAULT_SHUFFLE_PARTITIONS: str(max(2, 2 * spark.sparkContext.defaultParallelism))}


def expect_few_rows(session: SparkSession) -> None:
    """Configure the session for a small table with few changes."""
    _set_unless_given(session, FEW_ROWS_SETTINGS)


def _set_unless_given(session: SparkSession, settings: Mapping[str, str]) -> None:
    given = _start_settings(session.sparkContext)
    for key, value in settings.items():
        session.conf.set(key, given.get(key, value))


@lru_cache(maxsize=1)
def _start_settings(context: SparkContext) -> Mapping[str, str]:
    """The settings that the application was started with, which never change.

    They are cached: reading them takes one call to the JVM per setting, 16 ms in all, three times for each table.
    """
    return dict(context.getConf().getAll())


def activate(session: SparkSession) -> None:
    """Make the session the thread's active one in the JVM, where Delta's transactions read it."""
    java_class(session, "org.apache.spark.sql.SparkSession").setActiveSession(session._jsparkSession)


def _submitted_keys() -> set[str]:
    """The keys of settings that spark-submit put into the JVM's properties before Python started."""
    from pyspark import SparkConf

    if SparkContext._jvm is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return set()
    SparkContext._ensure_initialized()
    return {key for key, _ in SparkConf().getAll()}
