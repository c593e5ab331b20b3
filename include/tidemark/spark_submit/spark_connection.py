"""Describes a pipeline's Spark connection as spark-submit uses it: master, deploy mode and program.

Airflow's SparkSubmitHook resolves it (plugins). The command line does the same as the hook, and preflight checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROGRAMS = ("spark-submit", "spark2-submit", "spark3-submit")  # those that the hook allows

# Tidemark's own setting in `spark.conf`: the catalogue's schema in which merges register the Delta tables.
CATALOGUE: Final = "spark.tidemark.catalogue"


@dataclass(frozen=True, slots=True)
class SparkConnection:
    """`refused` is the reason why the hook refuses the connection, "" if it does not. If it does, ignore the other
    fields."""

    master: str
    deploy_mode: str | None = None
    program: str = PROGRAMS[0]
    refused: str = ""

    @property
    def is_local(self) -> bool:
        return self.master.partition("[")[0] == "local"

    @property
    def drives_here(self) -> bool:
        """Whether the driver is a child of the task, with its Python and its environment."""
        return self.deploy_mode != "cluster"

    @property
    def ships_settings(self) -> bool:
        """Whether executors get the files in this machine's folder of Spark settings."""
        return self.master.startswith(("k8s:", "yarn"))
