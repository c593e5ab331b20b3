"""Delta Lake's five jars -> .tidemark/jars, from what the machine already has or through Spark's own Ivy.

Delta's other dependencies are part of pyspark, so Ivy is told to leave them out. Ivy's ordinary settings count: those
of spark-defaults.conf, DEFAULT_ARTIFACT_REPOSITORY, a local Maven repository. Whatever the origin, the hash decides.
Only `fetch` needs pyspark.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION = "4.4.0"
_GROUP = "io.delta"


@dataclass(frozen=True, slots=True)
class Jar:
    artifact: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{VERSION}.jar"


JARS = (
    Jar("delta-spark_4.2_2.13", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    Jar("delta-storage", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    Jar("delta-kernel-api", "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    Jar("delta-kernel-defaults", "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
    Jar("delta-kernel-unitycatalog", "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"),
)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""


def _kept_by_the_machine(jar: Jar, home: Path) -> Iterator[Path]:
    """Where Ivy (of Spark 4 and before) and Maven keep the jar once anything has asked for it."""
    for ivy in sorted(home.glob(".ivy2*")):
        yield ivy / "jars" / f"{_GROUP}_{jar.file}"
        yield ivy / "cache" / _GROUP / jar.artifact / "jars" / jar.file
    yield home / ".m2" / "repository" / Path(*_GROUP.split(".")) / jar.artifact / VERSION / jar.file


def fetch(into: Path, ivy: Path, home: Path) -> None:
    """Bring all jars into a folder; Ivy is asked only for what is missing, and works in a folder of its own."""
    into.mkdir(parents=True, exist_ok=True)
    for jar in JARS:
        for kept in _kept_by_the_machine(jar, home):
            if sha256(kept) == jar.sha256:
                shutil.copyfile(kept, into / jar.file)
    missing = [jar for jar in JARS if sha256(into / jar.file) != jar.sha256]
    if not missing:
        return
    _resolve(missing, ivy)
    for jar in missing:
        shutil.copyfile(ivy / "jars" / f"{_GROUP}_{jar.file}", into / jar.file)


def _resolve(jars: list[Jar], ivy: Path) -> None:
    """spark-submit resolves `spark.jars.packages` before it starts; no Spark session is needed for it."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False)
    conf.set("spark.master", "local[1]")
    conf.set("spark.jars.packages", ",".join(f"{_GROUP}:{jar.artifact}:{VERSION}" for jar in jars))
    conf.set("spark.jars.excludes", "org.*:*,com.*:*,net.*:*,jakarta.*:*,commons*:*,io.unitycatalog:*")
    conf.set("spark.jars.ivy", str(ivy))
    launch_gateway(conf).shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    made = Path(__file__).resolve().parents[3] / ".tidemark"
    fetch(made / "jars", made / "ivy", Path(os.environ.get("HOME", "/nonexistent")))
    shutil.rmtree(made / "ivy", ignore_errors=True)
    sys.exit(0)
