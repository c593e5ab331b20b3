"""Compares the installed Airflow with what Tidemark needs, and names the features that an older Airflow lacks.

It reads only the metadata of installed distributions, so it also works if Airflow itself cannot be imported. Without an
installed Airflow there are no findings. `tidemark_airflow.version_compat` adapts the plugin to each version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tidemark.errors import Move
from tidemark.findings import Finding

OLDEST: Final = (3, 1)
# The version that brought features -> the features, which earlier versions lack.
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


def installed(distribution: str) -> str | None:
    """The distribution's version in this environment; None without it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def installed_airflow() -> str | None:
    return installed("apache-airflow-core") or installed("apache-airflow")


def absent_features(airflow: str) -> list[str]:
    """The features that this version of Airflow lacks, a phrase each."""
    installed = _numbers(airflow)
    return [feature for brought, features in BROUGHT.items() if installed < brought for feature in features]


def airflow_findings(airflow: str | None) -> Iterator[Finding]:
    """The findings for a version of Airflow. `airflow` is None if none is installed."""
    if airflow is None:
        return
    if _numbers(airflow) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Finding.error(
            "airflow",
            f"This is Airflow {airflow}; Tidemark runs on {oldest} and later",
            f"Upgrade Airflow to {oldest} or later",
            Move.FIX_CONFIG,
        )
        return
    if absent := absent_features(airflow):
        yield Finding.note("airflow", f"Airflow {airflow} lacks what a later version has: {'; '.join(absent)}")


def this_installation() -> list[Finding]:
    """The findings for the process's own environment."""
    return list(airflow_findings(installed_airflow()))


def _numbers(version: str) -> tuple[int, ...]:
    """The major and minor version: 3 and 2 of `3.2.0b1`."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
