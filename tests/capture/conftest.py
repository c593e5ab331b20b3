"""A pipeline as far as the drain goes: source with publication and slot, migrated ledger, empty lake; no Spark, no
preflight.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from tests.support import own_slot
from tests.support.runs import a_run
from tidemark.capture.drain import DrainResult, drain
from tidemark.config import Bounds, PipelineConfig, TableRule
from tidemark.formats.manifest import BatchManifest
from tidemark.ledger import batches, migrations, tables
from tidemark.ledger.batches import Batch
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.tables import TableRow
from tidemark.lsn import Lsn
from tidemark.staging.store import Store
from tidemark.staging.writer import read_table

_numbers = itertools.count(1)


@dataclass
class Pipeline:
    """`drain()` is what a run's drain task does; `execute` is the application at the source."""

    config: PipelineConfig
    source: str
    ledger: str
    connection: psycopg.Connection[Any]
    runs: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def one(self, query: str) -> Any:
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def begin(self) -> None:
        """Create publication, then slot, as the first preflight does."""
        self.connection.execute(
            sql.SQL("CREATE PUBLICATION {} FOR ALL TABLES WITH (publish_via_partition_root)").format(
                sql.Identifier(self.config.publication)
            )
        )
        self.create_slot()

    def create_slot(self) -> None:
        own_slot.note(self.config, self.source, self.ledger)
        self.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.config.slot,))

    def drain(self, run_id: str | None = None, **options: Any) -> DrainResult:
        run_id = run_id or f"run-{next(self.runs)}"
        about = {"holder": f"capture/{run_id}/drain", "salt": b"salt"}
        about |= {name: options.pop(name) for name in ("holder", "salt", "clock", "now") if name in options}
        return drain(a_run(self.config, source=self.source, ledger=self.ledger, run_id=run_id, **about), **options)

    def with_bounds(self, **bounds: int) -> None:
        self.config = dataclasses.replace(self.config, bounds=dataclasses.replace(self.config.bounds, **bounds))

    def with_tables(self, *rules: TableRule) -> None:
        self.config = dataclasses.replace(self.config, tables=rules)

    # --- what was staged -----------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return Store(self.config.lake)

    def ledger_query(self, query: str) -> list[tuple[Any, ...]]:
        with open_ledger(self.ledger, self.config.pipeline) as connection:
            return connection.execute(query.encode()).fetchall()

    def registered(self) -> list[Batch]:
        with open_ledger(self.ledger, self.config.pipeline) as connection:
            return batches.after(connection, 1, Lsn(0))

    def manifests(self) -> list[BatchManifest]:
        return [BatchManifest.from_json(self.store.read(b.manifest).decode()) for b in self.registered()]

    def staged(self, table: str) -> list[dict[str, Any]]:
        """Every staged row of a table, in the order of batches and files, checksums verified."""
        pieces: list[pa.Table] = []
        for manifest in self.manifests():
            pieces += [read_table(self.store, f) for t in manifest.tables if t.table == table for f in t.files]
        return [row for piece in pieces for row in piece.to_pylist()]

    def transactions(self) -> list[dict[str, Any]]:
        files = [m.transactions for m in self.manifests() if m.transactions is not None]
        return [row for file in files for row in read_table(self.store, file).to_pylist()]

    def table_row(self, table: str) -> TableRow:
        with open_ledger(self.ledger, self.config.pipeline) as connection:
            row = tables.one(connection, table)
        assert row is not None
        return row

    def confirmed_lsn(self) -> Lsn:
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = "
        text = self.one(f"{query}'{self.config.slot}'")
        return Lsn.parse(text)


@pytest.fixture
def pipeline(source: str, ledger_database: str, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline that captures schema public; `begin()` opens it after the test has made its tables."""
    migrations.migrate(ledger_database)
    name = f"orders_{next(_numbers)}"
    config = PipelineConfig(
        pipeline=name,
        source_connection="source",
        slot=name,
        publication=name,
        manage_publication=True,
        tables=(TableRule("public.*"),),
        lake=str(tmp_path / "lake"),
        ledger_connection="ledger",
        bounds=Bounds(drain_stall_s=20, file_settle_s=0),
    )
    with psycopg.connect(source, autocommit=True) as connection:
        yield Pipeline(config, source, ledger_database, connection)
