"""Reads Delta's version, and which Spark it is made for, from the name of its jar, and refuses pairs that cannot work.

    delta-spark_4.1_2.13-4.4.0.jar   Delta 4.4.0 for Spark 4.1
    delta-spark_2.13-4.0.0.jar       Delta 4.0.0; the name does not say for which Spark

Standard library only: preflight, `tidemark doctor` and the driver ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidemark.spark_submit.jar_versions import DELTA, SPARKS

OLDEST_SPARK: Final = (4, 0)
OLDEST_DELTA: Final = (4, 0)

_JAR: Final = re.compile(r"delta-spark_(?:(\d+\.\d+)_)?2\.13-(\d+\.\d+[^/]*?)\.jar")


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """`spark` is the minor version of Spark that the jar is made for; None if its name does not contain it."""

    version: str
    spark: str | None

    @property
    def is_known(self) -> bool:
        """Whether Tidemark is made for this version. With any other version tables are written by Delta's public
        API."""
        return self.version == DELTA


def delta_version(jars: Iterable[str]) -> DeltaVersion | None:
    """The version of the first Delta jar among these paths or URIs."""
    found = (_JAR.search(jar) for jar in jars)
    return next((DeltaVersion(jar[2], jar[1]) for jar in found if jar is not None), None)


def refusal(spark: str, delta: DeltaVersion | None) -> str | None:
    """The reason why this Spark, with this Delta if it is known, cannot work; None if it can. Spark versions newer
    than the tested ones are not refused."""
    known = (
        f"Tidemark works with Spark {', '.join(SPARKS)} and the Delta {DELTA} of each, or their own Delta from 4.0 on"
    )
    if _numbers(spark) < OLDEST_SPARK:
        return f"Spark {spark} is too old: {known}"
    if delta is None:
        return None
    if _numbers(delta.version) < OLDEST_DELTA:
        return f"Delta {delta.version} with Spark {spark} is too old: {known}"
    if delta.spark is not None and _numbers(delta.spark) != _numbers(spark):
        return f"Delta {delta.version} is made for Spark {delta.spark}, and this is Spark {spark}: {known}"
    return None


def minor(version: str) -> str:
    """The minor version: 4.1 of 4.1.4."""
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
