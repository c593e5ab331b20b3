"""A source, a ledger, a lake and a pipeline: the one harness of all tests that need them. No Spark.

Place         source, ledger and lake, what a pipeline file would say of them, and what can be seen of all that
 ├─ Pipeline  the tasks of both DAGs one by one, as far as they need no Spark
 └─ capture.Environment  whole runs, with merges and with tasks that are killed
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from sandbox.services.postgres import wait_for
from tests.support import own_slot
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.exported_snapshot import read_exported
from tidemark.backfill.planning import plan
from tidemark.backfill.range_reading import ReadResult, read_chunks
from tidemark.capture.confirm import ConfirmResult, confirm
from tidemark.capture.continuity.generation import settle
from tidemark.capture.continuity.recovery import list_staging
from tidemark.capture.drain import DrainResult, drain
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import Bounds, PipelineConfig, TableRule
from tidemark.findings import Report
from tidemark.formats.manifest import BatchManifest
from tidemark.ledger import leases
from tidemark.ledger.captured import tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill, Range
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.staged import batches, generations
from tidemark.ledger.staged.batches import Batch
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session
from tidemark.run import Run
from tidemark.source.wal import slot as slots
from tidemark.staging.batch_writer import read_table
from tidemark.storage.store import Store

SALT = b"the salt of the tests"


def pipeline_config(
    name: str,
    lake: Path | str,
    tables: tuple[TableRule, ...] = (TableRule("public.*"),),
    bounds: dict[str, int] | None = None,
    **options: Any,
) -> PipelineConfig:
    """What a pipeline file would say, with bounds that let a test fail soon rather than wait; `options` are other
    entries of the file."""
    config = PipelineConfig(
        pipeline=name,
        source_connection="source",
        slot=f"tidemark_{name.lower()}",
        publication=f"tidemark_{name.lower()}",
        manage_publication=True,
        tables=tables,
        lake=str(lake),
        ledger_connection="ledger",
        mask_salt_connection="salt",
        bounds=Bounds(**{"drain_stall_s": 30, "file_settle_s": 0, **(bounds or {})}),
    )
    return replace(config, **options)


@dataclass
class Place:
    """`sessions` are the source's sessions by name; each is autocommit, so a BEGIN is what opens a transaction."""

    config: PipelineConfig
    source: str
    ledger: str
    sessions: dict[str, psycopg.Connection[Any]] = field(default_factory=dict, kw_only=True)

    # --- the source ---------------------------------------------------------------------------------------------------

    def session(self, name: str, search_path: str | None = None) -> psycopg.Connection[Any]:
        """The session of that name, opened at its first use, and again where it was lost."""
        connection = self.sessions.get(name)
        if connection is None or connection.closed:
            connection = self.sessions[name] = psycopg.connect(self.source, autocommit=True)
            if search_path is not None:
                connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(search_path)))
        return connection

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self.session("main")

    @connection.setter
    def connection(self, connection: psycopg.Connection[Any]) -> None:
        self.sessions["main"] = connection

    def execute(self, *statements: str, session: str = "main", search_path: str | None = None) -> None:
        """Run SQL in a session that stays; each statement is one message, so a DO block may commit."""
        for statement in statements:
            self.session(session, search_path).execute(statement.encode())

    def query(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode()).fetchall()

    def one(self, query: str) -> Any:
        ((value, *_), *_) = self.query(query)
        return value

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in a session of their own; the last one's rows."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        for connection in self.sessions.values():
            connection.close()
        self.sessions.clear()

    # --- what the file says -------------------------------------------------------------------------------------------

    def with_bounds(self, **bounds: int) -> None:
        self.config = replace(self.config, bounds=self.config.bounds.model_copy(update=bounds))

    def with_tables(self, *rules: TableRule | str) -> None:
        entries = tuple(rule if isinstance(rule, TableRule) else TableRule(rule, line=3) for rule in rules)
        self.config = replace(self.config, tables=entries)

    # --- publication and slot, by hand --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create publication, then slot, as the first preflight does."""
        self.connection.execute(
            sql.SQL("CREATE PUBLICATION {} FOR ALL TABLES WITH (publish_via_partition_root)").format(
                sql.Identifier(self.config.publication)
            )
        )
        self.create_slot()

    def create_slot(self, options: str = "") -> None:
        own_slot.note(self.config, self.source, self.ledger)
        self.sql(f"SELECT pg_create_logical_replication_slot('{self.config.slot}', 'pgoutput'{options})")

    def drop_slot(self, name: str | None = None) -> None:
        """The pipeline's, if no other one is named; of none there is, nothing."""
        slot = name or self.config.slot
        wait_for(f"slot {slot} is free", lambda: self._drops(slot))

    def _drops(self, slot: str) -> bool:
        """Whether the slot is gone now. The server's process for a drain that just ended may still begin to use it."""
        self._await_free(slot)
        try:
            self.sql(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        except psycopg.errors.ObjectInUse:
            return False
        return True

    def _await_free(self, slot: str) -> None:
        """The server's process may still have one that a drain left a moment ago."""
        reads = f"SELECT FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
        wait_for("nobody reads the slot", lambda: not self.sql(reads))

    def flush_lsn(self) -> Lsn:
        return Lsn.parse(self.sql("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def advance(self, to: Lsn | None = None) -> None:
        """Move the slot, to the end of the WAL if nothing else is said."""
        self._await_free(self.config.slot)
        self.sql(f"SELECT pg_replication_slot_advance('{self.config.slot}', '{to or self.flush_lsn()}')")

    def confirmed_lsn(self) -> Lsn | None:
        with psycopg.connect(self.source, autocommit=True) as connection:
            slot = slots.read_slot(connection, self.config.slot)
            return None if slot is None else slot.confirmed_lsn

    def settle(self, *, accepts: bool = False) -> Generation:
        """What the first task that judges the slot goes on with."""
        with (
            leases.hold(self.ledger, self.config.pipeline, leases.SLOT, "drain", wait_s=10) as lease,
            postgres_session.connect(self.source, application_name=self.config.application_name) as source,
            self.ledger_connection() as ledger,
        ):
            folders = list_staging(ledger, self.store)
            return settle(self.config, source, ledger, folders, lease, accepts=accepts)

    def task(self, name: str = "task", run_id: str = "run", **about: Any) -> Run:
        """A task of a run, as the DAGs would have it; the same run's retry is the same holder."""
        fields = {"holder": f"{self.config.pipeline}/{run_id}/{name}", "salt": SALT, **about}
        return Run(self.config, self.source, self.ledger, run_id, **fields)

    # --- what ledger and staging have ---------------------------------------------------------------------------------

    def ledger_connection(self) -> AbstractContextManager[Ledger]:
        return open_ledger(self.ledger, self.config.pipeline)

    def ledger_query(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.ledger_connection() as ledger:
            cursor = ledger.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    @property
    def store(self) -> Store:
        return Store(self.config.lake, self.config.lake_access)

    def generation(self) -> Generation | None:
        with self.ledger_connection() as ledger:
            return generations.current(ledger)

    def staged_lsn(self) -> Lsn:
        with self.ledger_connection() as ledger:
            return generations.required(ledger).staged_lsn

    def table_rows(self) -> dict[str, TableRow]:
        with self.ledger_connection() as ledger:
            return {row.table: row for row in tables.all_of(ledger)}

    def table_row(self, table: str) -> TableRow:
        return self.table_rows()[table]

    def registered(self, generation: int = 1) -> list[Batch]:
        with self.ledger_connection() as ledger:
            return batches.after(ledger, generation, Lsn(0))

    def manifest(self, batch: Batch) -> BatchManifest:
        return BatchManifest.from_json(self.store.read(batch.manifest).decode())

    def manifests(self) -> list[BatchManifest]:
        return [self.manifest(batch) for batch in self.registered()]

    def staged(self, table: str) -> list[dict[str, Any]]:
        """Every staged row of a table, in the order of batches and files, checksums verified."""
        pieces: list[pa.Table] = []
        for manifest in self.manifests():
            pieces += [read_table(self.store, f) for t in manifest.tables if t.table == table for f in t.files]
        return [row for piece in pieces for row in piece.to_pylist()]

    def transactions(self) -> list[dict[str, Any]]:
        files = [m.transactions for m in self.manifests() if m.transactions is not None]
        return [row for file in files for row in read_table(self.store, file).to_pylist()]

    def ranges(self, backfill: Backfill) -> list[Range]:
        with self.ledger_connection() as ledger:
            return chunks.ranges_of(ledger, backfill.backfill)

    def chunks(self, backfill: Backfill) -> list[ReadChunk]:
        with self.ledger_connection() as ledger:
            return chunks.of_backfill(ledger, backfill.backfill)

    def again(self, backfill: Backfill) -> Backfill:
        """The backfill as the ledger has it now."""
        with self.ledger_connection() as ledger:
            row = backfills.one(ledger, backfill.backfill)
        assert row is not None
        return row

    def rows(self, backfill: Backfill) -> list[dict[str, Any]]:
        """What the recorded chunks hold, checksums verified, in the order of ranges and chunks."""
        in_order = sorted(self.chunks(backfill), key=lambda c: (c.range, int(c.chunk.split("-")[1])))
        return [row for chunk in in_order for f in chunk.files for row in read_table(self.store, f).to_pylist()]


@dataclass
class Pipeline(Place):
    """Each task is one of a new run unless it is told the run's id; those of a backfill belong to the run that planned
    last. Options go to the library's function as they are."""

    runs: Iterator[int] = field(default_factory=lambda: itertools.count(1), kw_only=True)
    run_id: str = field(default="none yet", kw_only=True)
    reader_wait_s: float = field(default=0, kw_only=True)

    def preflight(self, source: str | None = None, holder: str = "preflight", **options: Any) -> Report:
        return preflight(replace(self.task(holder=holder), source=source or self.source), **options)

    def sound(self, **options: Any) -> Report:
        """A preflight that must find no error, as the first run's is."""
        report = self.preflight(**options)
        assert not report.errors, str(report)
        return report

    def capture(self) -> None:
        self.sound()

    def drain(self, run_id: str | None = None, **options: Any) -> DrainResult:
        run = self.task("drain", run_id or f"run-{next(self.runs)}", **_of_the_run(options))
        return drain(run, **options)

    def confirm(self, **options: Any) -> ConfirmResult:
        return confirm(self.task("confirm"), **options)

    def plan(self, run_id: str | None = None, **request: Any) -> list[Backfill]:
        self.run_id = run_id or f"backfill-{next(self.runs)}"
        run = self.task("plan", self.run_id, **_of_the_run(request))
        return plan(run, request=BackfillRequest(**request), reader_wait_s=self.reader_wait_s)

    def read(self, reader: int = 1, **options: Any) -> ReadResult:
        return read_chunks(self.task(f"read_chunks/{reader}", self.run_id, **_of_the_run(options)), **options)

    def read_exported(self, **options: Any) -> ReadResult:
        return read_exported(self.task("read", self.run_id), **options)


def _of_the_run(options: dict[str, Any]) -> dict[str, Any]:
    """What of the options is the run's own, taken out of them."""
    return {name: options.pop(name) for name in ("holder", "salt", "clock", "now") if name in options}
