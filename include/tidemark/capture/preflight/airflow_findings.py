"""Compares the installed Airflow with what Tidemark needs, and names the features that an older Airflow lacks.

Reads the metadata of installed distributions alone, so it also works where Airflow itself cannot be imported, and gives
nothing where no Airflow is installed. How the plugin copes with each version is in `tidemark_airflow.version_compat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tidemark.errors import Move
from tidemark.findings import Finding

OLDEST: Final = (3, 1)
# The version that brought a feature -> what is absent before it.
BROUGHT: Final[dict[tuple[int, int], tuple[str, ...]]] = {
    (3, 2): (
        "`airflow backfill create` is not refused for Tidemark's DAGs: its runs wait for the ledger's leases and do "
        "what a manual run does",
    ),
    (3, 3): (
        "a run that another DAG triggers counts as triggered by hand, so it merges tables that wait by choice too",
        "a backfill that the capture starts has no note with its reasons; the log of `confirm` has them",
    ),
}
OTHER_DISTRIBUTION: Final = "tidemark"


def installed_airflow() -> str | None:
    for distribution in ("apache-airflow-core", "apache-airflow"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def absent_features(airflow: str) -> list[str]:
    """What this version of Airflow lacks, a phrase each."""
    installed = _numbers(airflow)
    return [feature for brought, features in BROUGHT.items() if installed < brought for feature in features]


def airflow_findings(airflow: str | None, *, has_other_distribution: bool) -> Iterator[Finding]:
    """`airflow` is None where none is installed."""
    if has_other_distribution:
        yield Finding.error(
            "installation",
            "the distribution tidemark, another project's, is installed beside tidemark-cdc: both own the folder "
            "tidemark of site-packages, so one has overwritten files of the other",
            "Run `pip uninstall tidemark tidemark-cdc`, then `pip install tidemark-cdc`",
            Move.FIX_CONFIG,
        )
    if airflow is None:
        return
    if _numbers(airflow) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Finding.error(
            "airflow",
            f"this is Airflow {airflow}; Tidemark runs on {oldest} and later",
            f"Upgrade Airflow to {oldest} or later",
            Move.FIX_CONFIG,
        )
        return
    if absent := absent_features(airflow):
        yield Finding.note("airflow", f"Airflow {airflow} lacks what a later version has: {'; '.join(absent)}")


def this_installation() -> list[Finding]:
    """The findings of the process's own environment."""
    try:
        version(OTHER_DISTRIBUTION)
        has_other = True
    except PackageNotFoundError:
        has_other = False
    return list(airflow_findings(installed_airflow(), has_other_distribution=has_other))


def _numbers(version: str) -> tuple[int, ...]:
    """Of `3.2.0b1` 3 and 2."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
