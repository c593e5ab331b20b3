"""Builds the SparkSession of an application from its settings, and one session below it per table.

Delta takes `txnAppId` and `txnVersion` from the session's configuration (R5), and tables are merged at the same time.
So each table has its own session. `newSession()` forgets settings made at run time, so every session is configured
here. The settings' reasons stand beside them. Sources: Spark, "Configuration"; Delta, "Delta table properties",
"Idempotent writes".
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.errors import DeltaMissing, LogStoreMissing, LogStoreUnfenced, SparkUnsupported
from tidemark.spark_submit.delta_version import delta_version, refusal
from tidemark.storage import commit_safety
from tidemark.storage.lake_access import AZURE_SECRET
from tidemark.target.delta import hadoop_files, internals
from tidemark.target.delta.jvm import java_class
from tidemark.target.delta.socket_acknowledgements import acknowledge_at_once
from tidemark.target.driver_log import let_speak

log = logging.getLogger(__name__)

# Taken when the application starts; whatever spark-submit or the pipeline file sets explicitly wins.
APPLICATION_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Tables are merged at the same time; without it a large one's tasks stand in line before all others.
    "spark.scheduler.mode": "FAIR",
    # Of two drivers that commit one version on S3 exactly one wins (spark_apps/log_store); Delta's own log store there
    # knows of one driver only.
    commit_safety.OF_S3: commit_safety.OWN,
    # And in a folder; there Delta's own starts ten processes for a commit besides, and as many for its checksum.
    commit_safety.OF_FILES: commit_safety.OWN_OF_FILES,
    # A staged file is read from its beginning to its end, and nobody looks for folders before a file is written.
    "spark.hadoop.fs.s3a.create.performance": "true",
    # Hadoop's client for Azure collects figures by a thread that keeps the JVM of an application that has ended.
    "spark.hadoop.fs.azure.metrics.collection.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # For an error's message PySpark notes where in Python each Column was made: a dozen calls to the JVM and a failed
    # import for each, a third of the CPU that Python takes in a small merge. No message of ours quotes it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

# Set on every table's session, unless the application was started with a value of its own.
TABLE_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # Dates and times are PostgreSQL's: proleptic Gregorian calendar, microseconds, files that any reader takes.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # As the drain and the driver write theirs. By Snappy, uuids as text take twice the bytes, and half as much CPU
    # again to read; writing them is no faster. Higher levels make them no smaller.
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    # A cast that loses something is an error, never a NULL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # Spark takes a side of a join for small by the bytes of its files, and how much of them the columns in use may be:
    # the keys of five million rows were guessed at some megabytes, and no driver of a gigabyte could hold them. What is
    # known to be small says so itself, with `broadcast`.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # What Spark infers from a condition grows by powers with its length, and is of no use here: no filter of ours can
    # be told from another. Our conditions are short, but those that Delta makes of them are not ours.
    "spark.sql.constraintPropagation.enabled": "false",
    # A table's log is small: 50 tasks to read it would be most of a small merge.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # The version is used up by the commit it was set for; a later one without its own must not inherit it.
    "spark.databricks.delta.write.txnVersion.autoReset.enabled": "true",
}

# Set besides where the lake has a log store of ours: a version's checksum file is put under its own name, where Spark's
# manager would write it aside and rename it, and so, on S3, copy it; it comes with the log store.
LOG_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": "tidemark.delta.WholeFileManager",
}

_CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

# Set besides where a table and its changes are small: compiling and re-planning would be most of the work
# (a quarter of the CPU of merging five small tables).
FEW_ROWS_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}

# Set besides where tables are written by `public_path`: a Delta before 4.4 could commit a vector that it never wrote.
PUBLIC_PATH_SETTINGS: Final[Mapping[str, str]] = {
    f"spark.databricks.delta.{command}.deletionVectors.persistent": "false" for command in ("merge", "update", "delete")
}

DEFAULT_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def start(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The application's session. What spark-submit was given wins over the defaults here, `settings` over both.

    Raises DeltaMissing if Spark has no Delta Lake, SparkUnsupported if the two cannot work.
    """
    # Executors and driver run the same interpreter; without this Spark takes whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = _submitted()
    builder = SparkSession.builder
    if "spark.app.name" not in submitted:  # a cluster's page says which pipeline's it is
        builder = builder.appName(name)
    for key, value in {**APPLICATION_SETTINGS, **(settings or {})}.items():
        if key not in submitted or key in (settings or {}):
            builder = builder.config(key, value)
    acknowledge_at_once()
    session = builder.getOrCreate()
    let_speak(session)
    _require_delta(session)
    lacks = internals.misfit(session)
    if lacks is not None:
        log.warning(
            "Delta is another one than Tidemark is made for (%s): its public path is taken, which is slower", lacks
        )
    _hand_on_lake_secret(session)
    return session


def _hand_on_lake_secret(session: SparkSession) -> None:
    """A setting may name the variable that has the lake's secret, since it stands in a command line. Executors have no
    such variable, and get the value, as Spark itself hands AWS's variables on. Where it is not set, as by hand from a
    run's log, Hadoop's client says which key it lacks."""
    if AZURE_SECRET not in os.environ:
        return
    named = f"${{env.{AZURE_SECRET}}}"
    for name, value in session.sparkContext.getConf().getAll():
        if value == named and name.startswith("spark.hadoop."):
            of_hadoop = session.sparkContext._jsc.hadoopConfiguration()
            of_hadoop.set(name.removeprefix("spark.hadoop."), os.environ[AZURE_SECRET])


def _require_delta(session: SparkSession) -> None:
    """Without its jars Spark only warns of the extension, and every table would fail with an error of Python's; with
    those of another Spark, with one of Java's. Raises DeltaMissing, SparkUnsupported."""
    table = java_class(session, "io.delta.tables.DeltaTable")
    if isinstance(table, JavaPackage):
        raise DeltaMissing(version=session.version)
    loaded = java_class(session, "py4j.reflection.ReflectionUtil").classForName("io.delta.tables.DeltaTable")
    source = loaded.getProtectionDomain().getCodeSource()
    jar = "" if source is None or source.getLocation() is None else str(source.getLocation())
    reason = refusal(session.version, delta_version([jar]))
    if reason is not None:
        raise SparkUnsupported(reason=reason)


def require_fence(session: SparkSession, lake: str) -> None:
    """The last look at the driver's own settings: what spark-submit was given wins over Tidemark's, and a machine's
    spark-defaults.conf may say what Delta's documentation says of one driver. Raises LogStoreUnfenced, and where the
    log store is ours and its jar, or that of this release, was not given, LogStoreMissing."""
    settings = _given(session.sparkContext)
    setting = commit_safety.unfenced_setting(settings, urlsplit(lake).scheme)
    if setting is not None:
        raise LogStoreUnfenced(setting=setting, value=settings[setting])
    own = commit_safety.own_log_store(settings, lake)
    if own is not None and isinstance(java_class(session, own), JavaPackage):
        raise LogStoreMissing(name=own)


def table_session(spark: SparkSession, pool: str, lake: str) -> SparkSession:
    """A session for one table of the lake, to be called on the thread that works on it: it becomes that thread's active
    session.

    `pool` names the FAIR pool of the thread's jobs.
    """
    session = spark.newSession()
    # 200 partitions are Spark's guess for a cluster; adaptive execution joins them, but planning them costs.
    partitions = {DEFAULT_SHUFFLE_PARTITIONS: str(max(2, 2 * spark.sparkContext.defaultParallelism))}
    is_ours = commit_safety.own_log_store(_given(spark.sparkContext), lake) and _has_checkpoint_manager(spark)
    _set_unless_given(session, {**TABLE_SETTINGS, **partitions, **(LOG_SETTINGS if is_ours else {})})
    if internals.misfit(session) is not None:
        _set_unless_given(session, PUBLIC_PATH_SETTINGS)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    activate(session)
    return session


def _has_checkpoint_manager(spark: SparkSession) -> bool:
    """Whether Spark has the class, in the package, that the log store's jar extends: from 4.1 on."""
    return not isinstance(java_class(spark, _CHECKPOINT_MANAGER), JavaPackage)


def expect_any_rows(session: SparkSession) -> None:
    """Plan what follows in this session as for a table of which nothing is known yet."""
    for key in FEW_ROWS_SETTINGS:
        session.conf.unset(key)
    # 200 partitions are Spark's guess for a cluster; adaptive execution joins them, but planning them costs.
    partitions = {DEFAULT_SHUFFLE_PARTITIONS: str(max(2, 2 * session.sparkContext.defaultParallelism))}
    _set_unless_given(session, {**TABLE_SETTINGS, **partitions})


def expect_few_rows(session: SparkSession) -> None:
    """Plan what follows in this session for a small table with few changes."""
    _set_unless_given(session, FEW_ROWS_SETTINGS)


def _set_unless_given(session: SparkSession, settings: Mapping[str, str]) -> None:
    given = _given(session.sparkContext)
    for key, value in settings.items():
        session.conf.set(key, given.get(key, value))


@lru_cache(maxsize=1)
def _given(context: SparkContext) -> Mapping[str, str]:
    """What the application was started with, which stays as it is. Spark copies all of it for whoever asks, a call to
    the JVM for every setting: 16 ms, three times for each table."""
    return dict(context.getConf().getAll())


def activate(session: SparkSession) -> None:
    """Delta's transactions look up the thread's active session on the JVM side."""
    java_class(session, "org.apache.spark.sql.SparkSession").setActiveSession(session._jsparkSession)


def _submitted() -> set[str]:
    """Keys that spark-submit put into the JVM's properties before Python started."""
    from pyspark import SparkConf

    if SparkContext._jvm is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return set()
    SparkContext._ensure_initialized()
    return {key for key, _ in SparkConf().getAll()}


def read_text(spark: SparkSession, uri: str) -> str:
    """A small file, through Hadoop's file systems: the driver needs no other client of the object store (R10)."""
    return hadoop_files.read_whole(spark, uri).decode()


def write_text(spark: SparkSession, uri: str, text: str) -> None:
    """A small file, seen whole or not at all: written aside and renamed. In an object store, most of which rename by
    copying, as the log store does it: unless there is one already, and what another driver said of the same plan is as
    true."""
    scheme = urlsplit(uri).scheme
    if scheme in commit_safety.FENCING:
        _put(spark, uri, text, commit_safety.log_store(dict(spark.sparkContext.getConf().getAll()), scheme))
        return
    path = java_class(spark, "org.apache.hadoop.fs.Path")
    final = path(uri)
    aside = path(final.getParent(), f".{final.getName()}.{os.getpid()}")
    files = final.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    stream = files.create(aside, True)
    try:
        stream.write(bytearray(text.encode()))
        if stream.hasCapability("hsync"):
            stream.hsync()
    finally:
        stream.close()
    files.delete(final, False)
    if not files.rename(aside, final):
        raise OSError(f"could not rename {aside} to {final}")


def _put(spark: SparkSession, uri: str, text: str, log_store: str) -> None:
    """By the log store, which puts a file only if it is absent."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    lines = java_class(spark, "java.util.ArrayList")()
    lines.add(text)
    store = java_class(spark, log_store)(configuration)
    try:
        store.write(path, lines.iterator(), False, configuration)
    except Py4JJavaError:
        if not _is_there(path, configuration):
            raise


def _is_there(path: Any, configuration: Any) -> bool:
    """False, too, if it cannot be asked: what a write said before says more."""
    with suppress(Py4JJavaError):
        return bool(path.getFileSystem(configuration).exists(path))
    return False
