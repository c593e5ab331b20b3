"""A pipeline that nothing was done for yet: a shop at a real server, and what its preflight says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.support.pipeline import Pipeline
from tidemark.findings import Report


@dataclass
class Shop(Pipeline):
    """A pipeline with a source and a ledger of its own. `settings` are added to the source's connection string."""

    server: PostgresServer = field(kw_only=True)

    def open(self) -> psycopg.Connection[Any]:
        """A session that stays, for transactions that are in the way."""
        connection = self.sessions[f"open {len(self.sessions)}"] = psycopg.connect(self.source)
        return connection

    def published(self) -> set[str]:
        rows = self.sql(f"SELECT tablename FROM pg_publication_tables WHERE pubname = '{self.config.publication}'")
        return {name for (name,) in rows}

    def slots(self) -> list[str]:
        rows = self.sql(f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = '{self.config.slot}'")
        return [name for (name,) in rows]


since_18 = pytest.mark.parametrize("databases", [18], indirect=True)


def said(report: Report, check: str, severity: str = "error") -> str:
    """What the findings of one check say, remedies included."""
    return "\n".join(str(f) for f in report.findings if f.check == check and f.severity == severity)
