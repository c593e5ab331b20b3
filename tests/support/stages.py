"""The stages of a DAG run as functions, and one of them as a process: `python -m tests.support.stages <stage> <input>`.

Airflow's operators do the same and no more (plugins/tidemark_airflow); what they add (XCom, assets, the Spark hook) carries
nothing that correctness needs.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidemark.config import PipelineConfig


@dataclass(frozen=True, slots=True)
class StageInput:
    """Everything a task gets; `run_id` also makes the holder's name, so that the same run's retry is the same holder."""

    config: PipelineConfig
    source: str
    ledger: str
    run_id: str
    salt: bytes

    def holder(self, task: str) -> str:
        return f"{self.config.pipeline}_capture/{self.run_id}/{task}/-1"
