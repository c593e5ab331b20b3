"""Reads this machine's Spark: its folder, its version, and the settings in its spark-defaults.conf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

DEFAULTS: Final = "spark-defaults.conf"

# A name, and behind blanks or one of "=:" the value; a comment begins with another sign than a name.
_PROPERTY: Final = re.compile(r"(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)")


def spark_home(environment: Mapping[str, str]) -> Path:
    """Spark's folder as spark-submit finds it: the variable, else pyspark's."""
    if folder := environment.get("SPARK_HOME"):
        return Path(folder)
    pyspark = find_spec("pyspark")
    return Path(pyspark.origin).parent if pyspark is not None and pyspark.origin else Path("/nonexistent")


def spark_version(environment: Mapping[str, str]) -> str | None:
    """The version of the Spark in this machine's folder, None if there is none."""
    cores = sorted((spark_home(environment) / "jars").glob("spark-core_*-*.jar"))
    return cores[-1].stem.rpartition("-")[2] if cores else None


def settings_folder(environment: Mapping[str, str]) -> Path:
    """The folder of Spark's settings, as spark-submit finds it."""
    folder = environment.get("SPARK_CONF_DIR")
    return Path(folder) if folder else spark_home(environment) / "conf"


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """What spark-defaults.conf of this machine says, as spark-submit reads it (Java's properties); nothing where there
    is none."""
    try:
        lines = (settings_folder(environment) / DEFAULTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (_PROPERTY.fullmatch(line.strip()) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair is not None}
