"""Slot, ledger and staging -> the generation that a drain may go on with (mechanics, "Generations"; R4, R8)."""

from __future__ import annotations

from typing import Any

import psycopg

from tidemark.config import PipelineConfig
from tidemark.ledger.generations import Generation
from tidemark.ledger.leases import Lease
from tidemark.staging.store import Store


def settle(
    config: PipelineConfig,
    source: psycopg.Connection[Any],
    ledger: psycopg.Connection[Any],
    store: Store,
    lease: Lease,
) -> Generation:
    """The open generation, after every question about the slot is answered; call it under the lease `slot`, before the stream
    is opened. Raises one of the slot's errors, or `ChangesGone`/`SourceReplaced` once per gap: what is then open is right."""
    ...


def still_continues(source: psycopg.Connection[Any], generation: Generation) -> None:
    """Judge the slot again once the stream is open and the slot thereby ours: between `settle` and START_REPLICATION it could
    still be advanced or re-created, and START_REPLICATION forwards silently. Raises `GenerationStale` (RETRY)."""
    ...
