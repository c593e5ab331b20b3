"""Delta Lake's five jars -> .tidemark/jars, and what Hadoop needs for S3 -> .tidemark/jars/s3a: from what the machine
already has or through Spark's own Ivy.

What pyspark has itself is left out, and for S3 the bundle of the whole AWS SDK (670 MB) with it: S3A needs three of its
modules (13 MB). Ivy's ordinary settings count: those of spark-defaults.conf, DEFAULT_ARTIFACT_REPOSITORY, a local Maven
repository. Whatever the origin, the hash decides. Only `fetch` needs pyspark.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION = "4.4.0"
_GROUP = "io.delta"


@dataclass(frozen=True, slots=True)
class Jar:
    artifact: str
    sha256: str
    group: str = _GROUP
    version: str = VERSION
    folder: str = ""

    @property
    def file(self) -> str:
        """Its name below .tidemark/jars."""
        return f"{self.folder}{self.name}"

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


JARS = (
    Jar("delta-spark_4.2_2.13", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    Jar("delta-storage", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    Jar("delta-kernel-api", "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    Jar("delta-kernel-defaults", "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
    Jar("delta-kernel-unitycatalog", "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"),
)

_DELTA_EXCLUDES: Final = ("org.*:*", "com.*:*", "net.*:*", "jakarta.*:*", "commons*:*", "io.unitycatalog:*")

# What Ivy is asked for to have all jars of s3a_jars.txt, and what it leaves out besides.
_S3A_ROOTS: Final = tuple(f"software.amazon.awssdk:{module}" for module in ("s3", "s3-transfer-manager", "sts"))
_S3A_EXCLUDES: Final = (
    "software.amazon.awssdk:bundle",
    "software.amazon.awssdk:netty-nio-client",
    "org.apache.hadoop:hadoop-common",
    "org.apache.hadoop:hadoop-client*",
    *(f"{group}:*" for group in ("io.netty", "org.slf4j", "commons-codec", "commons-logging")),
    "org.apache.httpcomponents:*",
)

_YARN_EXCLUDES: Final = ("org.slf4j:*", *(f"org.apache.hadoop:hadoop-client-{part}" for part in ("api", "runtime")))


def s3a_jars() -> tuple[Jar, ...]:
    """hadoop-aws and the modules of the AWS SDK, as s3a_jars.txt lists them: coordinates and SHA-256."""
    return _listed("s3a_jars.txt", "s3a/")


def yarn_jars() -> tuple[Jar, ...]:
    """Hadoop's MiniYARNCluster, and what of other projects it wants: for the tests of clusters alone."""
    return _listed("yarn_jars.txt", "yarn/")


# Hadoop's connector for Google Cloud Storage, with what it needs inside of it.
GOOGLE_JARS: Final = (
    Jar(
        "hadoop-gcp",
        "25686b2e711f5d8a5b08bef3489e62ccd046310dd4adf65b9ea216d9f53ddc3f",
        "org.apache.hadoop",
        "3.5.0",
        "gcs/",
    ),
)

# Hadoop's client for Azure, and what of other projects it wants: its timers, and TLS of the machine's OpenSSL, which it
# looks for first.
AZURE_JARS: Final = (
    Jar(
        "hadoop-azure",
        "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
        "org.apache.hadoop",
        "3.5.0",
        "abfs/",
    ),
    Jar(
        "HdrHistogram",
        "9b47fbae444feaac4b7e04f0ea294569e4bc282bc69d8c2ce2ac3f23577281e2",
        "org.hdrhistogram",
        "2.1.12",
        "abfs/",
    ),
    Jar(
        "wildfly-openssl",
        "71fb7932f99a727edb23c5a2cb8c6855ac7196fad41aa0669b3998e277165154",
        "org.wildfly.openssl",
        "2.2.5.Final",
        "abfs/",
    ),
)
_AZURE_EXCLUDES: Final = (
    "org.apache.hadoop:hadoop-common",
    "org.apache.hadoop:hadoop-client*",
    "com.*:*",
    "org.apache.httpcomponents:*",
    "org.apache.hadoop.thirdparty:*",
)


def _listed(name: str, folder: str) -> tuple[Jar, ...]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    jars = []
    for line in lines:
        coordinates, digest = line.split()
        group, artifact, version = coordinates.split(":")
        jars.append(Jar(artifact, digest, group, version, folder))
    return tuple(jars)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""


def _kept_by_the_machine(jar: Jar, home: Path) -> Iterator[Path]:
    """Where Ivy (of Spark 4 and before) and Maven keep the jar once anything has asked for it."""
    for ivy in sorted(home.glob(".ivy2*")):
        yield ivy / "jars" / f"{jar.group}_{jar.name}"
        yield ivy / "cache" / jar.group / jar.artifact / "jars" / jar.name
    yield home / ".m2" / "repository" / Path(*jar.group.split(".")) / jar.artifact / jar.version / jar.name


def fetch(into: Path, ivy: Path, home: Path) -> None:
    """Bring all jars into a folder; Ivy is asked only for what is missing, and works in a folder of its own."""
    s3a = s3a_jars()
    _fetch(JARS, into, ivy, home, [jar.coordinates for jar in JARS], _DELTA_EXCLUDES)
    hadoop = [jar.coordinates for jar in s3a if jar.artifact == "hadoop-aws"]
    sdk = [jar.coordinates for jar in s3a if f"{jar.group}:{jar.artifact}" in _S3A_ROOTS]
    _fetch(s3a, into, ivy, home, hadoop + sdk, _S3A_EXCLUDES)


def fetch_yarn(into: Path, ivy: Path, home: Path) -> None:
    """The same for the tests of YARN: 60 MB, of which nothing else has any use."""
    jars = yarn_jars()
    _fetch(jars, into, ivy, home, [jar.coordinates for jar in jars], _YARN_EXCLUDES)


def fetch_google(into: Path, ivy: Path, home: Path) -> None:
    """The same for the tests of lakes on gs://: 35 MB."""
    _fetch(GOOGLE_JARS, into, ivy, home, [jar.coordinates for jar in GOOGLE_JARS], ["*:*"])


def fetch_azure(into: Path, ivy: Path, home: Path) -> None:
    """The same for the tests of lakes on abfss://: 1.4 MB."""
    _fetch(AZURE_JARS, into, ivy, home, [jar.coordinates for jar in AZURE_JARS], _AZURE_EXCLUDES)


def _fetch(
    jars: Sequence[Jar], into: Path, ivy: Path, home: Path, roots: Sequence[str], excludes: Sequence[str]
) -> None:
    for jar in jars:
        (into / jar.file).parent.mkdir(parents=True, exist_ok=True)
        for copy in _kept_by_the_machine(jar, home):
            if sha256(copy) == jar.sha256:
                shutil.copyfile(copy, into / jar.file)
    missing = [jar for jar in jars if sha256(into / jar.file) != jar.sha256]
    if not missing:
        return
    resolve(roots, excludes, ivy)
    for jar in missing:
        shutil.copyfile(ivy / "jars" / f"{jar.group}_{jar.name}", into / jar.file)


def resolve(packages: Sequence[str], excludes: Sequence[str], ivy: Path) -> None:
    """spark-submit resolves `spark.jars.packages` before it starts; no Spark session is needed for it."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False)
    conf.set("spark.master", "local[1]")
    conf.set("spark.jars.packages", ",".join(packages))
    conf.set("spark.jars.excludes", ",".join(excludes))
    conf.set("spark.jars.ivy", str(ivy))
    launch_gateway(conf).shutdown()


if __name__ == "__main__":
    made = Path(__file__).resolve().parents[3] / ".tidemark"
    sets = {"delta": fetch, "yarn": fetch_yarn, "google": fetch_google, "azure": fetch_azure}
    sets[(sys.argv[1:] or ["delta"])[0]](made / "jars", made / "ivy", Path(os.environ.get("HOME", "/nonexistent")))
    shutil.rmtree(made / "ivy", ignore_errors=True)
    sys.exit(0)
