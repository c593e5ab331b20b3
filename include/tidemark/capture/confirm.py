"""Ledger -> the slot's confirmed position (R3; mechanics, "Confirm")."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.config import PipelineConfig
from tidemark.lsn import Lsn


@dataclass(frozen=True, slots=True)
class ConfirmResult:
    """The slot's confirmed LSN before and after, what is staged, and which merging tables keep it from getting there."""

    before: Lsn
    after: Lsn
    staged: Lsn
    held_back_by: tuple[str, ...]


def confirm(config: PipelineConfig, *, source: str, ledger: str, holder: str) -> ConfirmResult:
    """Confirm what the ledger says is applied everywhere. Takes the lease `slot`."""
    ...


def confirm_up_to_staged(config: PipelineConfig, *, source: str, ledger: str, lease: object) -> ConfirmResult:
    """The valve (R3): confirm what is staged, applied or not; the drain calls it under its own lease `slot`."""
    ...
