"""One Spark for a whole test session: `local[2]` with Delta, its scratch files below a folder of the session.

The jars are those that `make setup` resolved (.tidemark/jars), or those of the folder that TIDEMARK_SPARK_JARS names.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from sandbox.setup.log_store import JAR
from tidemark.target.delta import session

REPOSITORY = Path(__file__).resolve().parents[2]


def jars() -> str:
    folder = Path(os.environ.get("TIDEMARK_SPARK_JARS") or REPOSITORY / ".tidemark" / "jars")
    paths = sorted(folder.glob("*.jar"))
    if not paths:
        raise RuntimeError(
            f"no jars of Delta Lake in {folder}; run `make setup`, or name their folder in TIDEMARK_SPARK_JARS"
        )
    return ",".join(str(jar) for jar in paths)


def s3a_jars() -> str:
    """What a class path needs for a lake on S3, besides the log store."""
    return _jars_of("s3a")


def google_jars() -> str:
    """The same for Google Cloud Storage: nothing before `make faults` has fetched it."""
    return _jars_of("gcs")


def azure_jars() -> str:
    """The same for Azure."""
    return _jars_of("abfs")


def _jars_of(store: str) -> str:
    folder = Path(jars().partition(",")[0]).parent / store
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))


def start(folder: Path) -> SparkSession:
    """Set up for many tiny tables: few partitions, interpreted plans, a JVM that compiles quickly.

    Without Hadoop's native library every data file costs a `chmod`; files without a `.crc` beside them leave it at one.
    """
    first = [str(_defaults_left_out(folder)), str(JAR)]
    spark = session.start(
        "tidemark tests",
        {
            "spark.master": "local[2]",
            # Not among spark.jars: the one executor would copy them, and each look for a class of Delta's would go
            # through all of Spark's jars first.
            "spark.driver.extraClassPath": os.pathsep.join(
                filter(None, [*first, *jars().split(","), s3a_jars(), google_jars(), azure_jars()])
            ),
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn600m "
            "-XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m -Djdk.lang.Process.launchMechanism=VFORK",
            # Each sort and each hash map takes a page at once, by default one of many megabytes.
            "spark.buffer.pageSize": "1m",
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.ui.retainedJobs": "1",
            "spark.ui.retainedStages": "1",
            "spark.ui.retainedTasks": "1",
            "spark.sql.ui.retainedExecutions": "1",
            "spark.sql.ui.explainMode": "simple",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _defaults_left_out(folder: Path) -> Path:
    """A folder of the class path that hides 900 of Hadoop's 1,400 settings, which are MapReduce's and YARN's.

    Spark sends all settings with each read of a file, and each task reads them: a tenth of the CPU of small merges.
    """
    hiding = folder / "defaults-left-out"
    hiding.mkdir(parents=True, exist_ok=True)
    for name in ("mapred-default.xml", "yarn-default.xml"):
        (hiding / name).write_text("<configuration/>\n", encoding="utf-8")
    return hiding


def gateway_of(spark: SparkSession) -> dict[str, str]:
    """Variables by which another Python process reaches this session's JVM (see `attach`)."""
    parameters = spark.sparkContext._gateway.gateway_parameters
    return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}


def attach() -> SparkSession:
    """A driver of its own on the JVM that `gateway_of` named: killing it kills no test, and starting it costs no JVM.

    What it had handed to the JVM before it died may still be done, which is harsher than a machine that is lost.
    """
    gateway = launch_gateway()
    context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(context)
    conf = SparkConf(_jvm=gateway.jvm, _jconf=java_context.getConf())
    return SparkSession(SparkContext(conf=conf, gateway=gateway, jsc=java_context))
