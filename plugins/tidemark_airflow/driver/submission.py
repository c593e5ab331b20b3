"""Builds the spark-submit call of a merge plan: application, Python, the library, Delta's jars.

    deploy mode   the driver is            its Python, library, log, secrets
    client        a child of the task      this process's own, by the child's environment, whatever the master is
    cluster       somewhere in the cluster the cluster's Python (an image, an archive); the library as a zip file

Executors need neither Python nor the library: nothing that a merge does is a Python function. They need the jars, which
spark-submit brings to them in every run, unless TIDEMARK_SPARK_JARS says that they are there already (`local:`).
Spark: "Submitting Applications".
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import tidemark
from tidemark.spark_submit.spark_jars import APPLICATIONS_VARIABLE, EVERYWHERE, own_applications
from tidemark.storage.lake_access import LakeAccess

if TYPE_CHECKING:
    from tidemark.formats.merge_plan import MergePlan

SESSION_TOKEN = "AWS_SESSION_TOKEN"

LOG_VARIABLE = "LOG4J_CONFIGURATION_FILE"  # Log4j's own
JVM_VARIABLE = "SPARK_SUBMIT_OPTS"  # spark-submit's own

# Of a driver that works for seconds: the JVM's second compiler costs more than it gains, and the cache for the code of
# the first one alone is too small by default (full, it stops compiling). It takes some nine CPU seconds, and gains them
# back where Spark folds four million changes, or where much is copied and hashed: SHA-256 is ten times as slow without.
FIRST_COMPILER_ALONE = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
# Of a driver that works all day: it collects all garbage when it rests (spark_apps/follow_plans.py), and what the heap
# then has beyond a third goes back to the machine.
GIVING_MEMORY_BACK = "-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30"
SMALL_PLAN_CHANGES = 3_000_000
SMALL_PLAN_CHUNK_ROWS = 12_000_000  # most are copied as they are, or compared, without Spark
SMALL_PLAN_BYTES = 256 * 2**20

_LIBRARY = Path(tidemark.__file__).resolve().parent


def lake_secrets(access: LakeAccess, folder: Path) -> dict[str, str]:
    """What lets a driver that is a child of this process into the lake; a token of the machine's own does not go with
    the key of another. `folder` is this process's own, until the driver has ended."""
    secrets = access.driver_environment(folder)
    own = {SESSION_TOKEN: ""} if secrets and SESSION_TOKEN in os.environ else {}
    return {**own, **secrets}


def without_airflow() -> dict[str, str]:
    """Airflow's own variables, connections among them, blanked: a driver has no secret of source or ledger (R10)."""
    return {name: "" for name in os.environ if name.startswith("AIRFLOW_")}


def quiet_log(spark_conf: Mapping[str, str]) -> dict[str, str]:
    """Let the driver log what spark_apps/log4j2.properties says, unless somebody chose another configuration."""
    options = spark_conf.get("spark.driver.extraJavaOptions", "")
    if LOG_VARIABLE in os.environ or "log4j2.configurationFile" in options or "log4j.configurationFile" in options:
        return {}
    return {LOG_VARIABLE: str(own_applications() / "log4j2.properties")}


def chosen_jvm_flags(spark_conf: Mapping[str, str]) -> str:
    """What file and environment say to the JVM of a driver on this machine."""
    options = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
    return " ".join([os.environ.get(JVM_VARIABLE, ""), *(spark_conf.get(option, "") for option in options)])


def with_jvm_flags(flags: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that hands the driver's JVM these flags before those that it gets already, nothing for none."""
    if not flags:
        return {}
    others = environment.get(JVM_VARIABLE, os.environ.get(JVM_VARIABLE))
    return {JVM_VARIABLE: " ".join(filter(None, [flags, others]))}


def first_compiler_alone(plan: MergePlan) -> dict[str, str]:
    """The flags of a driver whose plan is too small for the second compiler to pay; none for any other. What
    spark-defaults.conf or the pipeline file says comes behind them, and of two flags the JVM takes the last."""
    changes = sum(table.changes_read for table in plan.tables)
    of_chunks = sum(table.rows_read for table in plan.tables) - changes
    size = sum(table.bytes_read for table in plan.tables)
    if changes > SMALL_PLAN_CHANGES or of_chunks > SMALL_PLAN_CHUNK_ROWS or size > SMALL_PLAN_BYTES:
        return {}
    return with_jvm_flags(FIRST_COMPILER_ALONE, {})


def giving_memory_back() -> dict[str, str]:
    """The flags of a driver that stays."""
    return with_jvm_flags(GIVING_MEMORY_BACK, {})


def driver_environment() -> dict[str, str]:
    """Variables for spark-submit where the driver is its child: it runs in this process's Python, with its Spark."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_LIBRARY.parent), os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def library_zip(folder: Path) -> str | None:
    """Pack the library's Python files into `folder` and return the path of the zip file; None if the driver's image
    has it. It is 0.3 MB, and packed for each run, so that task and driver never are of two versions."""
    if os.environ.get(APPLICATIONS_VARIABLE, "").startswith(EVERYWHERE):
        return None
    packed = folder / "tidemark.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(_LIBRARY.rglob("*.py")):
            archive.write(module, module.relative_to(_LIBRARY.parent))
    return str(packed)
