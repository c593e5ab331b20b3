"""Names the files that spark-submit is given: an application, and the jars of `--jars`.

The jars are those of a variable, else those that `tidemark jars` fetched for this Python environment and its Spark.

Airflow's tasks hand them to spark-submit; preflight, from a task or a command line, checks that they exist.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidemark.spark_submit.delta_version import minor
from tidemark.spark_submit.jar_versions import DELTA, SPARKS
from tidemark.spark_submit.spark_defaults import spark_defaults, spark_home, spark_version
from tidemark.storage import log_store_settings

# A folder of jars, or a comma-separated list of them; `local:/folder` is one that every machine of the cluster has.
JARS_VARIABLE: Final = "TIDEMARK_SPARK_JARS"
# The folder spark_apps, if it is neither of the two places below; `local:/folder` is one that the driver's image has,
# with the library beside it.
APPLICATIONS_VARIABLE: Final = "TIDEMARK_SPARK_APPS"
EVERYWHERE: Final = "local:"  # Spark's own scheme for it
# Scheme of a lake -> the folder beside Delta's jars with what Hadoop needs for it.
OF_STORES: Final[Mapping[str, str]] = {"s3a": "s3a", "gs": "gcs", "abfss": "abfs"}

LOG_STORE: Final = "tidemark-log-store.jar"

_LIBRARY: Final = Path(__file__).resolve().parents[1]


def application(name: str, environment: Mapping[str, str]) -> str:
    """The file of a Spark application: from the variable, from the installed library, or from this checkout."""
    set_path = environment.get(APPLICATIONS_VARIABLE)
    return f"{set_path.rstrip('/')}/{name}.py" if set_path else str(own_applications() / f"{name}.py")


def own_applications() -> Path:
    installed = _LIBRARY / "spark_apps"
    return installed if installed.is_dir() else _LIBRARY.parents[1] / "spark_apps"


def jars(lake: str, environment: Mapping[str, str], spark_conf: Mapping[str, str]) -> str | None:
    """The value of `--jars`: Delta's jars if this machine has them, Hadoop's jars for a lake in a bucket, and on S3
    and local files always Tidemark's log stores.

    `spark_conf` is the pipeline file's. Its spark.jars, or this machine's, would be replaced by `--jars`; they are
    included unless a variable names the jars.
    """
    set_path = environment.get(JARS_VARIABLE) or ""
    settings = {**spark_defaults(environment), **spark_conf}
    chosen = [] if set_path else [jar.strip() for jar in settings.get("spark.jars", "").split(",") if jar.strip()]
    if not set_path and not has_delta(settings, environment):
        set_path = str(found) if (found := fetched(environment)) is not None else ""
    scheme_of_lake = urlsplit(lake).scheme
    of_store = OF_STORES.get(scheme_of_lake)
    scheme = EVERYWHERE if set_path.startswith(EVERYWHERE) else ""
    folder = Path("/" + set_path.removeprefix(EVERYWHERE).lstrip("/") if scheme else set_path)
    listed = [set_path] if set_path else []
    if set_path and folder.is_dir():
        files = sorted([*folder.glob("*.jar"), *(folder.glob(f"{of_store}/*.jar") if of_store else ())])
        listed = [f"{scheme}{jar}" for jar in files]
    if scheme_of_lake in ("s3a", *log_store_settings.FILES):
        listed.append(str(Path(application("merge_batch", environment)).parent / "log_store" / LOG_STORE))
    return ",".join([*chosen, *listed]) if listed else None


def has_delta(settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether Spark has Delta by a setting or in its own folder. A second Delta on the path would conflict with it."""
    named = ",".join(settings.get(way, "") for way in ("spark.jars", "spark.jars.packages"))
    if "delta-spark" in named or settings.get("spark.driver.extraClassPath"):
        return True
    return any((spark_home(environment) / "jars").glob("delta-spark*.jar"))


def fetched(environment: Mapping[str, str]) -> Path | None:
    """The folder that `tidemark jars` filled for this Spark; None if it did not."""
    folder = fetched_folder(environment)
    return folder if folder is not None and any(folder.glob("delta-spark*.jar")) else None


def fetched_folder(environment: Mapping[str, str]) -> Path | None:
    """The default folder of the jars; None for a Spark without a Delta jar. It is part of the Python environment,
    so every user of that finds it, and an upgrade of Delta or Spark has a folder of its own."""
    spark = spark_version(environment)
    version = minor(spark) if spark else ""
    return Path(sys.prefix) / "share" / "tidemark" / f"delta-{DELTA}-spark-{version}" if version in SPARKS else None
