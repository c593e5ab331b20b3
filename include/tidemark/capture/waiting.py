"""Source and ledger -> whether a run has anything to do (mechanics, "changes_waiting")."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.config import PipelineConfig


@dataclass(frozen=True, slots=True)
class Waiting:
    """`reason` is a sentence for the log, in both cases."""

    waiting: bool
    reason: str


def changes_waiting(config: PipelineConfig, *, source: str, ledger: str) -> Waiting:
    """Look once; never waits."""
    ...
