"""A merge plan -> what spark-submit needs to run it: application, Python, the library, Delta's jars.

On a local master the application runs in this machine's Python, with `include/` on its path. On a cluster the library
travels as a zip file (`--py-files`), and Python and jars are the cluster's business: `spark.pyspark.python`,
`spark.jars.packages` or a Spark that has Delta, set in the pipeline file's `spark.conf`.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import tidemark
from tidemark.formats.plan import MergePlan
from tidemark.lake_access import LakeAccess

JARS_VARIABLE = "TIDEMARK_SPARK_JARS"  # a folder of jars, or a comma-separated list of them
APPLICATIONS_VARIABLE = "TIDEMARK_SPARK_APPS"  # the folder spark_apps, where it is neither of the two places below

SESSION_TOKEN = "AWS_SESSION_TOKEN"

LOG_VARIABLE = "LOG4J_CONFIGURATION_FILE"  # Log4j's own
JVM_VARIABLE = "SPARK_SUBMIT_OPTS"  # spark-submit's own

# A driver that lives for seconds: the JVM's second compiler costs more than it gains, and the cache for the code of the
# first one alone is too small by default (full, it stops compiling).
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
SHORT_PLAN_ROWS = 100_000

_LIBRARY = Path(tidemark.__file__).resolve().parent


def application(name: str) -> str:
    """The file of a Spark application: where the variable says, in the installed library, or in this checkout."""
    set_path = os.environ.get(APPLICATIONS_VARIABLE)
    installed = _LIBRARY / "spark_apps"
    folder = Path(set_path) if set_path else installed if installed.is_dir() else _LIBRARY.parents[1] / "spark_apps"
    return str(folder / f"{name}.py")


def is_local(master: str) -> bool:
    return master.partition("[")[0] == "local"


def drives_here(master: str, deploy_mode: str | None) -> bool:
    """Whether the driver is a child of the task, and the hook hands variables to it rather than to the cluster."""
    return is_local(master) or (master.startswith("spark://") and deploy_mode != "cluster")


def jars(lake: str) -> str | None:
    """What `--jars` gets: Delta's jars, where they are known to this machine; for a lake on S3 Hadoop's beside them,
    and always our log store, which nothing else brings."""
    set_path = os.environ.get(JARS_VARIABLE, "")
    on_s3 = urlsplit(lake).scheme == "s3a"
    folder = Path(set_path)
    listed = [set_path] if set_path else []
    if set_path and folder.is_dir():
        listed = [str(jar) for jar in sorted([*folder.glob("*.jar"), *(folder.glob("s3a/*.jar") if on_s3 else ())])]
    if on_s3:
        listed.append(str(Path(application("merge_batch")).parent / "log_store" / "tidemark-log-store.jar"))
    return ",".join(listed) or None


def lake_secrets(access: LakeAccess) -> dict[str, str]:
    """What lets a driver that is a child of this process into the lake; a token of the machine's own does not go with
    the key of another."""
    secrets = access.driver_environment()
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
    return {LOG_VARIABLE: str(Path(application("merge_batch")).with_name("log4j2.properties"))}


def short_lived(plan: MergePlan) -> dict[str, str]:
    """The flags of a driver that has little to do. What spark-defaults.conf or the pipeline file says comes behind
    them, and of two flags the JVM takes the last."""
    if sum(table.rows_read for table in plan.tables) > SHORT_PLAN_ROWS:
        return {}
    return {JVM_VARIABLE: " ".join(filter(None, [SHORT_LIVED, os.environ.get(JVM_VARIABLE)]))}


def local_environment() -> dict[str, str]:
    """Variables for spark-submit on a local master: the driver runs in this process's Python, with its Spark."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_LIBRARY.parent), os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def library_zip(folder: str) -> str:
    """Pack the library's Python files into `folder` and return the path of the zip file."""
    packed = Path(folder) / "tidemark.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(_LIBRARY.rglob("*.py")):
            archive.write(module, module.relative_to(_LIBRARY.parent))
    return str(packed)
