"""Holds what the steps of one preflight share: sessions, the server's facts, and the findings that they add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.capture.table_identities import TableIdentities
from tidemark.config import PipelineConfig
from tidemark.findings import Finding
from tidemark.ledger.connection import Ledger
from tidemark.source.catalogue.inspection import ServerFacts

STATEMENT_TIMEOUT_S: Final = 30
# For tables after the first that were locked; a lock that nobody holds takes less.
SHORTEST_LOCK_TIMEOUT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PreflightContext:
    """One preflight with source and ledger at hand. A finding is added where it is made, so that what was said before
    an error stays said. `adopt_slot`: a person says that slot and publication of the file are this pipeline's. `places`
    says as which table a relation is kept."""

    config: PipelineConfig
    source: psycopg.Connection[Any]
    ledger: Ledger
    facts: ServerFacts
    adopt_slot: bool
    findings: list[Finding]
    places: TableIdentities

    def note(self, check: str, message: str) -> None:
        self.findings.append(Finding.note(check, message))
