"""Two variables of this process -> the files that spark-submit is told of: an application, and the jars of `--jars`.

Airflow's tasks hand them to spark-submit; preflight, from a task or a command line, looks whether they are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidemark.spark_submit.spark_defaults import spark_defaults
from tidemark.storage import commit_safety

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
    """The file of a Spark application: where the variable says, in the installed library, or in this checkout."""
    set_path = environment.get(APPLICATIONS_VARIABLE)
    return f"{set_path.rstrip('/')}/{name}.py" if set_path else str(own_applications() / f"{name}.py")


def own_applications() -> Path:
    installed = _LIBRARY / "spark_apps"
    return installed if installed.is_dir() else _LIBRARY.parents[1] / "spark_apps"


def jars(lake: str, environment: Mapping[str, str], spark_conf: Mapping[str, str]) -> str | None:
    """What `--jars` gets: Delta's jars, if they are known to this machine; for a lake in a bucket Hadoop's beside them,
    and on S3 and for files always our log stores, which nothing else brings. `spark_conf` is what the pipeline file
    says: its spark.jars, or this machine's, which a `--jars` takes the place of, goes on where no variable names
    any."""
    set_path = environment.get(JARS_VARIABLE, "")
    scheme_of_lake = urlsplit(lake).scheme
    of_store = OF_STORES.get(scheme_of_lake)
    scheme = EVERYWHERE if set_path.startswith(EVERYWHERE) else ""
    folder = Path("/" + set_path.removeprefix(EVERYWHERE).lstrip("/") if scheme else set_path)
    listed = [set_path] if set_path else []
    if set_path and folder.is_dir():
        files = sorted([*folder.glob("*.jar"), *(folder.glob(f"{of_store}/*.jar") if of_store else ())])
        listed = [f"{scheme}{jar}" for jar in files]
    if scheme_of_lake in ("s3a", *commit_safety.FILES):
        if not set_path:
            chosen = {**spark_defaults(environment), **spark_conf}.get("spark.jars", "")
            listed = [jar.strip() for jar in chosen.split(",") if jar.strip()]
        listed.append(str(Path(application("merge_batch", environment)).parent / "log_store" / LOG_STORE))
    return ",".join(listed) or None
