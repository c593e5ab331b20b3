"""The record of a run (`tidemark.run`) as a test needs it."""

from __future__ import annotations

from typing import Any

from tidemark.config import PipelineConfig
from tidemark.run import Run


def a_run(
    config: PipelineConfig,
    *,
    source: str = "",
    ledger: str = "",
    run_id: str = "run",
    holder: str = "task",
    **fields: Any,
) -> Run:
    """A task of a run; what it has no need of may be left out. `fields` are the record's other fields."""
    return Run(config, source, ledger, run_id, holder, **fields)
