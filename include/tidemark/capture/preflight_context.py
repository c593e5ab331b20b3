"""Holds the shared state of the steps of one preflight: sessions, the server's facts, and the findings so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.capture.table_ids import TableIds
from tidemark.config import PipelineConfig
from tidemark.findings import Finding
from tidemark.ledger.connection import Ledger
from tidemark.source.catalogue.inspection import ServerFacts

STATEMENT_TIMEOUT_S: Final = 30
# The least lock timeout, for tables that come after the shared time was used up. A free lock takes less.
SHORTEST_LOCK_TIMEOUT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PreflightContext:
    """The sessions and facts of one preflight.

    A finding is added as soon as it is made, so an error later on does not lose it. `adopt_slot` is true if a person
    confirmed that slot and publication of the file are this pipeline's. `table_ids` maps a relation to the id of its
    table.
    """

    config: PipelineConfig
    source: psycopg.Connection[Any]
    ledger: Ledger
    facts: ServerFacts
    adopt_slot: bool
    findings: list[Finding]
    table_ids: TableIds

    def note(self, check: str, message: str) -> None:
        self.findings.append(Finding.note(check, message))
