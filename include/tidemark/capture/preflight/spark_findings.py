"""Finds problems of the Spark connection, of spark-submit and of its jars that would prevent a merge.

    master       deploy mode   the driver is
    local[…]     client        a child of the task, and does all the work
    spark://…    client        a child of the task; Python applications have no other mode there
    yarn, k8s    client        a child of the task
    yarn, k8s    cluster       in the cluster, in a Python of its own

Nothing here runs Spark: a Master that is down must not keep the source from being drained (R3), so that is only a
warning. Whether all of Spark's machines reach the lake is not known before a merge. Executors that do not reach it
cannot read staged files, and the merge fails with that error.
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidemark.config import PipelineConfig
from tidemark.errors import Move
from tidemark.findings import Finding
from tidemark.spark_submit.delta_version import delta_version, refusal
from tidemark.spark_submit.jar_versions import DELTA
from tidemark.spark_submit.spark_connection import CATALOGUE, SparkConnection
from tidemark.spark_submit.spark_defaults import spark_defaults, spark_home, spark_version
from tidemark.spark_submit.spark_jars import EVERYWHERE, JARS_VARIABLE, LOG_STORE

_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|yarn|k8s://.+|spark://[^\[\]/]+:\d+(,[^\[\]/]+:\d+)*")
_MODES: Final = (None, "client", "cluster")
ANSWERS_WITHIN_S: Final = 5.0


def spark_findings(
    config: PipelineConfig, spark: SparkConnection | None, environment: Mapping[str, str], jars: str | None = None
) -> Iterator[Finding]:
    """Findings on the connection, then on the programs and jars of this machine, then on the way to the cluster.
    `jars` are the jars of `--jars`, None if they were not determined."""
    if spark is None:
        return
    wrong = next(_wrong_connections(config, spark, environment), None)
    if wrong is not None:
        yield wrong  # the other checks need a correct connection
        return
    yield from _wrong_programs(spark, environment)
    if jars is not None:
        yield from _missing_jars(config, jars, environment)
    if spark.drives_here:
        yield from _versions(jars or "", environment)
    yield from _catalogues(config, environment)
    if not spark.drives_here:
        yield from _pythons(config, spark)
    if not spark.is_local:
        yield from _ways_to_the_cluster(config, spark, environment)


# --- the connection ---------------------------------------------------------------------------------------------------


def _wrong_connections(
    config: PipelineConfig, spark: SparkConnection, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Errors of the connection. Airflow resolves a missing or malformed connection to "yarn" without an error."""
    connection, master = config.spark_connection, spark.master
    json = (
        f'Write connection {connection} as JSON, for example {{"conn_type": "spark", "host": "local[*]", '
        '"extra": {"deploy-mode": "client"}}'
    )
    client = f'Set "deploy-mode" in the extra of connection {connection} to "client"'
    if spark.refused:
        remedy = f"Correct connection {connection}, or install the program that it names: docs/clusters.md"
        yield _error(f"Airflow's Spark hook refuses connection {connection}: {spark.refused}", remedy)
    elif master == "yarn" and not (environment.get("HADOOP_CONF_DIR") or environment.get("YARN_CONF_DIR")):
        yield _error(
            f"Connection {connection} resolves to --master yarn, as a missing or unreadable connection does, and "
            "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set",
            json,
        )
    elif _MASTER.fullmatch(master) is None:
        yield _error(f"Connection {connection} resolves to --master {master}, which Spark does not know", json)
    elif spark.deploy_mode not in _MODES:
        yield _error(
            f"Connection {connection} has deploy mode {spark.deploy_mode!r}, which Spark does not know", client
        )
    elif spark.is_local and not spark.drives_here:
        yield _error(f"Connection {connection} has deploy mode cluster, and --master {master} has no cluster", client)
    elif master.startswith("spark://") and not spark.drives_here:
        yield _error(
            f"Connection {connection} has deploy mode cluster, and a standalone cluster ({master}) runs the drivers of "
            "Python applications in client mode alone",
            client,
        )
    elif config.lake_access.is_of_this_machine and not spark.drives_here:
        yield _error(
            f"Connection {config.lake_connection} of the lake has a key, and the driver runs in the cluster of "
            f"{master}: it could get the key only on a command line, which others can read",
            "Give Spark's service account the rights on the bucket, and name a connection without any key; "
            f"or use the deploy mode client in connection {connection}",
        )


# --- programs and jars of this machine --------------------------------------------------------------------------------


def _wrong_programs(spark: SparkConnection, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Errors if spark-submit or Java is missing. spark-submit starts Java on this machine in every mode."""
    path = environment.get("PATH", "")
    if spark.drives_here:  # then pyspark's own is found too
        path = f"{Path(sys.executable).parent}:{path}"
    if shutil.which(spark.program, path=path) is None:
        yield _error(
            f"{spark.program} is not on the PATH of this task", "Install Spark where Airflow's tasks run, or pyspark"
        )
    home = environment.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java, path=path) is None:
        missing = f"JAVA_HOME says {home}, and there is no bin/java in it" if home else "There is no java on the PATH"
        yield _error(missing, "Install Java 17 where Airflow's tasks run, and set JAVA_HOME to its folder")


# Settings besides `--jars` that give Spark more classes.
PACKAGES: Final = "spark.jars.packages"
_OTHER_WAYS: Final = ("spark.jars", PACKAGES, "spark.driver.extraClassPath")
# Scheme of a lake -> the argument of `tidemark jars` for its store.
_FETCHED_AS: Final[Mapping[str, str]] = {"s3a": " s3", "gs": " gcs", "abfss": " azure"}


# Scheme of a lake -> the store whose jar Spark needs too -> the beginnings of the jar's name. For gs:// there are two
# jars, Hadoop's own and Google's.
_OF_STORES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "s3a": {"S3": ("hadoop-aws",)},
    "gs": {"Google Cloud Storage": ("hadoop-gcp", "gcs-connector")},
    "abfss": {"Azure": ("hadoop-azure",)},
}


def _missing_jars(config: PipelineConfig, jars: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on missing jars. `jars` is comma-separated; patterns, and jars that lie elsewhere than on this
    machine, are not checked."""
    named = [jar for jar in jars.split(",") if jar]
    local = [jar.removeprefix(EVERYWHERE) for jar in named]
    listed = [Path(jar) for jar in local if not set(jar) & {":", "*"}]
    # If the driver's image has the applications, it has the log stores' jar too, and this machine may lack it.
    of_image = {jar.removeprefix(EVERYWHERE) for jar in named if jar.startswith(EVERYWHERE) and jar.endswith(LOG_STORE)}
    gone = [str(jar) for jar in listed if str(jar) not in of_image and not jar.is_file()]
    of_this_machine = spark_defaults(environment)
    remedy = "Name their folder in TIDEMARK_SPARK_JARS of Airflow's tasks: docs/clusters.md, Jars"
    if gone:
        yield _error(f"Spark would be given jars that are not there: {', '.join(gone)}", remedy)
        return
    chosen = {jar.strip() for jar in config.spark_conf.get("spark.jars", "").split(",")}
    if listed and not chosen <= {"", *named}:
        yield _warning(
            "spark.jars of spark.conf has no effect: TIDEMARK_SPARK_JARS gives spark-submit a --jars",
            "Name all jars in TIDEMARK_SPARK_JARS, and leave spark.jars out",
        )
    settings = {**of_this_machine, **config.spark_conf}
    if PACKAGES in settings:
        yield _warning(
            f"{PACKAGES} has every Spark application call Ivy; two that start at once with a new cache may corrupt it",
            f"Run `tidemark jars` where Airflow's tasks run, and leave {PACKAGES} out: docs/clusters.md, Jars",
        )
    if "://" in jars or any(way in settings for way in _OTHER_WAYS):
        return
    store = _FETCHED_AS.get(urlsplit(config.lake).scheme, "")
    remedy = (
        f"Run `tidemark jars{store}` where Airflow's tasks run, or name a folder that has them in TIDEMARK_SPARK_JARS: "
        "docs/clusters.md, Jars"
    )
    # A command line may have fewer variables than Airflow's tasks.
    unset = "" if environment.get(JARS_VARIABLE) else f". {JARS_VARIABLE} is not set here"
    needed = {"Delta Lake": ("delta-spark",), **_OF_STORES.get(urlsplit(config.lake).scheme, {})}
    there = {jar.name for jar in [*listed, *(spark_home(environment) / "jars").glob("*.jar")]}
    for what, prefixes in needed.items():
        if not any(name.startswith(prefixes) for name in there):
            jars_named = " or ".join(prefixes)
            yield _warning(
                f"Spark may lack the jars for {what}: no {jars_named} is among its own jars or those that it is given, "
                f"and neither spark.conf nor spark-defaults.conf names others{unset}",
                remedy,
            )


def _versions(jars: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on the versions of this machine's Spark and its Delta, from the names of jars. The driver checks
    them again."""
    spark = spark_version(environment)
    if spark is None:
        return
    own = sorted(jar.name for jar in (spark_home(environment) / "jars").glob("delta-spark*.jar"))
    delta = delta_version([*jars.split(","), *own])
    reason = refusal(spark, delta)
    if reason is not None:
        yield _error(reason, "Install the pyspark of one of these where Airflow's tasks run, and run `tidemark jars`")
    elif delta is not None and not delta.is_known:
        yield Finding.note(
            "spark",
            f"Delta {delta.version} is not the version that Tidemark is built for ({DELTA}): tables are written by its "
            "public API, which is slower",
            "Keep it, or run `tidemark jars` and give Spark that Delta: docs/versions.md",
        )


def _catalogues(config: PipelineConfig, environment: Mapping[str, str]) -> Iterator[Finding]:
    """A warning for a catalogue that is not configured: its schemas would be in the driver's memory, and end with
    it."""
    settings = {**spark_defaults(environment), **config.spark_conf}
    pattern = settings.get(CATALOGUE)
    if pattern is None or settings.get("spark.sql.catalogImplementation") == "hive":
        return
    if f"spark.sql.catalog.{pattern.partition('.')[0]}" not in settings:
        yield _warning(
            f"{CATALOGUE} is {pattern}, but that catalogue is not configured: its names would end with the driver",
            "Name a schema of a catalogue that spark.conf configures (spark.sql.catalog.<name>), or set "
            "spark.sql.catalogImplementation: hive",
        )


# Settings that choose the Python of a driver in a cluster.
_PYTHONS: Final = (
    "spark.pyspark.python",
    "spark.pyspark.driver.python",
    "spark.yarn.appMasterEnv.PYSPARK_PYTHON",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.container.image",
)


# --- the way to the cluster -------------------------------------------------------------------------------------------


def _ways_to_the_cluster(
    config: PipelineConfig, spark: SparkConnection, environment: Mapping[str, str]
) -> Iterator[Finding]:
    masters = _standalone_masters(spark.master)
    if masters and not any(_answers(*master) for master in masters):
        yield Finding.warning(
            "spark",
            f"{spark.master} does not answer: changes are staged, but merges fail",
            f"Start Spark's Master, or correct connection {config.spark_connection}",
            Move.RETRY,
        )
    elsewhere = not masters or not any(_is_here(host) for host, _ in masters)
    if elsewhere and spark.drives_here and (setting := _loopback(config, environment)):
        # The master does not name YARN's or Kubernetes' machines: this machine may be one of them.
        yield Finding(
            "error" if masters else "warning",
            "spark",
            f"{setting} is an address that only this machine reaches, and Spark runs on {spark.master}: executors "
            "elsewhere could not reach the driver, and the merge would wait for ever",
            "Leave it out, or name an address of this machine that the cluster's machines reach",
            Move.FIX_CONFIG,
        )
    if elsewhere and urlsplit(config.lake).scheme in ("", "file"):
        yield _warning(
            f"The lake {config.lake} is a local path, and Spark runs on {spark.master}: every machine of the cluster "
            "must see the same folder",
            "Use an object store, or a file system that all of them mount",
        )


def _pythons(config: PipelineConfig, spark: SparkConnection) -> Iterator[Finding]:
    """A warning for a driver in the cluster whose Python is not configured. It does not use this task's Python."""
    if not any(setting in config.spark_conf for setting in _PYTHONS):
        yield _warning(
            f"The driver runs in the cluster of {spark.master}, and spark.conf does not name its Python: the machine's "
            "own may be older than 3.11, or lack pyarrow",
            "Name an image, or an archive and its Python: docs/clusters.md",
        )


def _standalone_masters(master: str) -> list[tuple[str, int]]:
    """Host and port of each Master of a standalone cluster; none for other kinds of cluster."""
    if not master.startswith("spark://"):
        return []
    addresses = (address.rpartition(":") for address in master.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, _, port in addresses]


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=ANSWERS_WITHIN_S).close()
    except OSError:
        return False
    return True


def _is_here(host: str) -> bool:
    """Whether the host is this machine: only a machine's own address can be bound to."""
    try:
        ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _loopback(config: PipelineConfig, environment: Mapping[str, str]) -> str | None:
    """The setting that gives the driver an address that only this machine reaches, None without one. Of two, Spark
    uses the first."""
    name, address = "spark.driver.host", config.spark_conf.get("spark.driver.host")
    if address is None:
        name, address = "SPARK_LOCAL_IP", environment.get("SPARK_LOCAL_IP")
    if address and (address == "localhost" or address.startswith("127.")):
        return f"{name}={address}"
    return None


def _error(message: str, remedy: str) -> Finding:
    return Finding.error("spark", message, remedy, Move.FIX_CONFIG)


def _warning(message: str, remedy: str) -> Finding:
    return Finding.warning("spark", message, remedy, Move.FIX_CONFIG)
