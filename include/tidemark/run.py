"""Defines the record `Run` of a task's pipeline, connections, holder and clock, which every stage takes.

It does not change during the run. Sessions, leases and the generation are opened by each stage. Airflow's tasks build
it from their connections and context, the command line from the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidemark.config import PipelineConfig


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Run:
    """One task of a run of one pipeline. A process that is given work gets it pickled.

    `source` and `ledger` are libpq connection strings; they and the masks' `salt` are secrets, which no text of the
    record shows. `run_id` names the run in the ledger, `holder` the task: another try of the task has the same one and
    takes over its leases at once. `clock` counts seconds from anywhere, `now` is the time of day, in UTC.
    """

    config: PipelineConfig
    source: str = field(repr=False)
    ledger: str = field(repr=False)
    run_id: str
    holder: str
    salt: bytes | None = field(default=None, repr=False)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now

    @property
    def pipeline(self) -> str:
        return self.config.pipeline
