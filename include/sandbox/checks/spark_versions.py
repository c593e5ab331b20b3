"""Plays merges on each supported pair of Spark and Delta, for `make versions`.

Each pair lies in .tidemark/versions/spark-<spark>-delta-<delta>: PySpark and Delta's Python, which stand before those
of .venv on Python's path, and the pair's jars. A Delta that is not the known one is written by its public API, with the
same tests.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.checkout import Checkout
from sandbox.checks.suites import scratch
from sandbox.setup.uv_settings import uv_environment
from sandbox.steps import Steps, run, waited_for
from tidemark.spark_submit.delta_version import minor
from tidemark.spark_submit.jar_download import fetch
from tidemark.spark_submit.jar_versions import DELTA, Jar, JarSet, delta_jars


@dataclass(frozen=True, slots=True)
class SparkRow:
    """A line of the matrix: versions of PySpark and Delta."""

    spark: str
    delta: str

    @property
    def name(self) -> str:
        return f"spark-{self.spark}-delta-{self.delta}"

    @property
    def written_by(self) -> str:
        return "known classes" if self.delta == DELTA else "public API"


MATRIX: Final = (
    SparkRow("4.0.5", DELTA),
    SparkRow("4.1.4", DELTA),
    SparkRow("4.2.1", DELTA),  # all other tests run on 4.2.0
    SparkRow("4.0.5", "4.0.0"),
    SparkRow("4.1.1", "4.2.0"),  # later patches lack a class of Spark that this Delta calls
)

# Of a Delta that is not the known one: artifact -> SHA-256.
_OTHERS: Final = {
    "4.0.0": {
        "delta-spark_2.13": "538511702aae0ef6973a6a70af3d4543c9009f8edbed786a00737e2d3cd7f04e",
        "delta-storage": "9bdb9fb450f1e119eba53feb427f331b0d09072d26485b8273883ad72c9a2e1d",
    },
    "4.2.0": {
        "delta-spark_4.1_2.13": "8480050a55c7e50427f3bec3af9243f98fc7cbfa453a2ef55e6ea8d0b7b121ff",
        "delta-storage": "2d84df76551f2b3cd27b120abec67ccbba324cea6ec45eb659edcc54234f99f3",
        "delta-kernel-api": "7c5e742192794b069ac64fb40ab0933e1a70d27f1f32805bdd8c06af1d4df012",
        "delta-kernel-defaults": "ce6cfcde63a1642fc71b836b90a4056b9b8c90d22fb66e8d103bf33f750419c7",
        "delta-kernel-unitycatalog": "8bbdfe74de90dea403e8c749da045a62f96810378f362ab99e7e030f75963b49",
    },
}

# Captures and backfills that the judge of scenarios compares row by row, two drivers at once, and a driver that dies.
SCENARIOS: Final = (
    *("insert_update_delete", "key_changes", "truncate_among_other_changes", "no_key_under_full_identity"),
    *("column_added", "column_added_with_default", "column_renamed", "column_type_widened", "types_of_every_kind"),
    *("toast_kept_when_another_column_changes", "killed_at_every_step"),
)
TESTS: Final = (
    "tests/scenarios/test_scenarios.py",
    "tests/scenarios/backfill/test_parts_and_tables.py",
    "tests/target/test_rivals.py",
    "tests/target/test_verified_chunks.py",
)
# Tests that assert what only the ways through Delta's own classes do.
NOT_PUBLIC: Final = ("never_stops", "one_row_is_enough", "proven_by_their_row_groups", "reported_of_plain_changes")
HEAD: Final = "| Spark | Delta | written by | day | result |"


def play(checkout: Checkout, steps: Steps, row: SparkRow, folder: Path) -> int:
    """pytest's exit code."""
    packages, jars = _make(checkout, steps, row, folder)
    env = {
        **checkout.environment(os.environ),
        "PYTHONPATH": os.pathsep.join([str(packages), str(checkout.root / "include")]),
        "SPARK_HOME": str(packages / "pyspark"),
        "TIDEMARK_SPARK_JARS": str(jars),
    }
    chosen = [f"{TESTS[0]}::test_scenario[{name}]" for name in SCENARIOS]
    left_out = ("driver", *(NOT_PUBLIC if row.delta != DELTA else ()))
    selected = " and ".join(f"not {name}" for name in left_out)
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={scratch(checkout) / row.name}", "-k", selected]
    print(f"— Spark {row.spark}, Delta {row.delta}: {' '.join(TESTS)}", flush=True)
    command = [str(checkout.python), "-m", "pytest", *chosen, *TESTS[1:], *options]
    return waited_for(command, cwd=checkout.root, env=env)


def _make(checkout: Checkout, steps: Steps, row: SparkRow, folder: Path) -> tuple[Path, Path]:
    """The folders of packages and jars."""
    packages, jars = folder / "packages", folder / "jars"
    cache = os.environ.get("UV_CACHE_DIR") or str(checkout.made / "cache" / "uv")
    env = {**uv_environment(checkout.python), "UV_CACHE_DIR": cache}
    with steps.step(f"PySpark {row.spark}, Delta {row.delta}"):
        # Delta's Python names bounds of PySpark that are narrower than what its jar works with.
        wanted = [f"pyspark=={row.spark}", f"delta-spark=={row.delta}"]
        uv = [checkout.venv / "bin" / "uv", "pip", "install", "--python", checkout.python, "--no-deps"]
        run([*uv, "--target", packages, *wanted], checkout.logs / f"versions-{row.name}.log", env=env)
        fetch(_jars(row), jars, checkout.environment(os.environ))
    return packages, jars


def _jars(row: SparkRow) -> JarSet:
    known = delta_jars(minor(row.spark))
    if row.delta == DELTA:
        return known
    jars = tuple(Jar(name, digest, version=row.delta) for name, digest in _OTHERS[row.delta].items())
    return JarSet("Delta Lake", jars, tuple(jar.coordinates for jar in jars), known.excludes)
