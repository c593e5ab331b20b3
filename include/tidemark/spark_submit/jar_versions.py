"""Lists the jars that Spark needs besides its own, each with version and SHA-256: Delta's, and Hadoop's for each store.

Versions stand only here: `tidemark jars`, the set-up of a checkout and preflight read them. Standard library only.
pyspark's own jars are left out. For S3 so is the bundle of the whole AWS SDK (670 MB): S3A needs three of its modules
(13 MB).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DELTA: Final = "4.4.0"
HADOOP: Final = "3.5.0"


@dataclass(frozen=True, slots=True)
class Jar:
    """`folder` is the jar's folder below the folder of all jars, with a trailing slash."""

    artifact: str
    sha256: str
    group: str = "io.delta"
    version: str = DELTA
    folder: str = ""

    @property
    def file(self) -> str:
        return f"{self.folder}{self.name}"

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


@dataclass(frozen=True, slots=True)
class JarSet:
    """`roots` are the coordinates that Ivy resolves. Their other dependencies, beside `jars`, are in `excludes`."""

    what: str
    jars: tuple[Jar, ...]
    roots: tuple[str, ...]
    excludes: tuple[str, ...]


# By Spark's version: Delta's own jar is made for one Spark.
_OF_SPARK: Final[Mapping[str, Jar]] = {
    "4.0": Jar("delta-spark_4.0_2.13", "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104"),
    "4.1": Jar("delta-spark_4.1_2.13", "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10"),
    "4.2": Jar("delta-spark_4.2_2.13", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
}
_OF_EVERY_SPARK: Final = (
    Jar("delta-storage", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    Jar("delta-kernel-api", "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    Jar("delta-kernel-defaults", "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
    Jar("delta-kernel-unitycatalog", "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"),
)
SPARKS: Final = tuple(_OF_SPARK)
NEWEST_SPARK: Final = SPARKS[-1]


def delta_jars(spark: str = NEWEST_SPARK) -> JarSet:
    jars = (_OF_SPARK[spark], *_OF_EVERY_SPARK)
    excludes = ("org.*:*", "com.*:*", "net.*:*", "jakarta.*:*", "commons*:*", "io.unitycatalog:*")
    return JarSet("Delta Lake", jars, tuple(jar.coordinates for jar in jars), excludes)


def s3_jars() -> JarSet:
    """hadoop-aws and the modules of the AWS SDK, as s3a_jars.txt lists them."""
    jars = listed(Path(__file__).with_name("s3a_jars.txt"), "s3a/")
    wanted = ("hadoop-aws", "s3", "s3-transfer-manager", "sts")
    excludes = (
        *("software.amazon.awssdk:bundle", "software.amazon.awssdk:netty-nio-client"),
        *("org.apache.hadoop:hadoop-common", "org.apache.hadoop:hadoop-client*"),
        *("io.netty:*", "org.slf4j:*", "commons-codec:*", "commons-logging:*", "org.apache.httpcomponents:*"),
    )
    return JarSet("S3", jars, tuple(jar.coordinates for jar in jars if jar.artifact in wanted), excludes)


def google_jars() -> JarSet:
    """Hadoop's connector for Google Cloud Storage, which contains its dependencies."""
    digest = "25686b2e711f5d8a5b08bef3489e62ccd046310dd4adf65b9ea216d9f53ddc3f"
    jar = Jar("hadoop-gcp", digest, "org.apache.hadoop", HADOOP, "gcs/")
    return JarSet("Google Cloud Storage", (jar,), (jar.coordinates,), ("*:*",))


def azure_jars() -> JarSet:
    """Hadoop's client for Azure and its dependencies: timers, and TLS by the machine's OpenSSL, which it prefers."""
    digests = {
        f"org.apache.hadoop:hadoop-azure:{HADOOP}": "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
        "org.hdrhistogram:HdrHistogram:2.1.12": "9b47fbae444feaac4b7e04f0ea294569e4bc282bc69d8c2ce2ac3f23577281e2",
        "org.wildfly.openssl:wildfly-openssl:2.2.5.Final": (
            "71fb7932f99a727edb23c5a2cb8c6855ac7196fad41aa0669b3998e277165154"
        ),
    }
    jars = tuple(_jar(coordinates, digest, "abfs/") for coordinates, digest in digests.items())
    excludes = (
        *("org.apache.hadoop:hadoop-common", "org.apache.hadoop:hadoop-client*", "com.*:*"),
        *("org.apache.httpcomponents:*", "org.apache.hadoop.thirdparty:*"),
    )
    return JarSet("Azure", jars, tuple(digests), excludes)


# What `tidemark jars` calls a store.
OF_STORES: Final = {"s3": s3_jars, "gcs": google_jars, "azure": azure_jars}


def listed(file: Path, folder: str) -> tuple[Jar, ...]:
    """The jars of a file with one line per jar: coordinates, SHA-256."""
    lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return tuple(_jar(coordinates, digest, folder) for coordinates, digest in lines)


def _jar(coordinates: str, digest: str, folder: str) -> Jar:
    group, artifact, version = coordinates.split(":")
    return Jar(artifact, digest, group, version, folder)
