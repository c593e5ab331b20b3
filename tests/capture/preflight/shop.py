"""A pipeline that nothing was done for yet: a shop at a real server, and what its preflight says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.support.runs import a_run
from tidemark import postgres_session
from tidemark.capture import generation as generation_module
from tidemark.capture.preflight import preflight
from tidemark.config import PipelineConfig, TableRule
from tidemark.findings import Report
from tidemark.ledger import generations, leases
from tidemark.ledger import tables as ledger_tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.tables import TableRow
from tidemark.staging.store import Store


@dataclass
class Shop:
    """A pipeline with a source and a ledger of its own. `settings` are added to the source's connection string."""

    server: PostgresServer
    source: str
    ledger: str
    config: PipelineConfig
    connections: list[psycopg.Connection[Any]] = field(default_factory=list)

    def sql(self, *statements: str) -> list[Any]:
        """Run statements as superuser; the last one's rows."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            for statement in statements:
                done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def open(self) -> psycopg.Connection[Any]:
        """A session that stays, for transactions that are in the way."""
        self.connections.append(psycopg.connect(self.source))
        return self.connections[-1]

    def preflight(self, source: str | None = None, holder: str = "preflight", **options: Any) -> Report:
        run = a_run(self.config, source=source or self.source, ledger=self.ledger, holder=holder)
        return preflight(run, **options)

    def sound(self, **options: Any) -> Report:
        """A preflight that must find no error."""
        report = self.preflight(**options)
        assert not report.errors, str(report)
        return report

    def with_tables(self, *rules: TableRule | str) -> None:
        entries = tuple(rule if isinstance(rule, TableRule) else TableRule(rule, line=3) for rule in rules)
        self.config = replace(self.config, tables=entries)

    def with_bounds(self, **bounds: int) -> None:
        self.config = replace(self.config, bounds=replace(self.config.bounds, **bounds))

    def published(self) -> set[str]:
        rows = self.sql(f"SELECT tablename FROM pg_publication_tables WHERE pubname = '{self.config.publication}'")
        return {name for (name,) in rows}

    def rows(self) -> dict[str, TableRow]:
        with open_ledger(self.ledger, self.config.pipeline) as ledger:
            return {row.table: row for row in ledger_tables.all_of(ledger)}

    def generation(self) -> generations.Generation | None:
        with open_ledger(self.ledger, self.config.pipeline) as ledger:
            return generations.current(ledger)

    def settled(self) -> generations.Generation:
        """What the first task that judges the slot goes on with."""
        with (
            leases.hold(self.ledger, self.config.pipeline, leases.SLOT, "drain", wait_s=10) as lease,
            postgres_session.connect(self.source, application_name="drain") as source,
            open_ledger(self.ledger, self.config.pipeline) as ledger,
        ):
            return generation_module.settle(self.config, source, ledger, Store(self.config.lake), lease)

    def slots(self) -> list[str]:
        return [
            name
            for (name,) in self.sql(
                f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = '{self.config.slot}'"
            )
        ]


since_18 = pytest.mark.parametrize("databases", [18], indirect=True)


def said(report: Report, check: str, severity: str = "error") -> str:
    """What the findings of one check say, remedies included."""
    return "\n".join(str(f) for f in report.findings if f.check == check and f.severity == severity)
