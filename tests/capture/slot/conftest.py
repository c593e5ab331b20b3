"""A source with one table, a publication and a slot, an empty ledger and a lake; the drain is played by `stage`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support import own_slot
from tests.support.manifests import manifest_of, path_of
from tidemark import postgres_session as source_connection
from tidemark.capture.generation import settle
from tidemark.config import Bounds, PipelineConfig, TableRule
from tidemark.formats.manifest import BatchManifest, SourceIdentity
from tidemark.ledger import batches, generations, leases, positions
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.generations import Generation
from tidemark.ledger.leases import SLOT
from tidemark.ledger.migrations import migrate
from tidemark.lsn import Lsn
from tidemark.source.slot import read_server, read_slot
from tidemark.staging.store import Store

TABLE = "public.item"


@dataclass
class Capture:
    """`stage` registers, or only leaves in the lake, one batch from what is staged up to the source's WAL end."""

    source: str
    ledger: str
    config: PipelineConfig

    @property
    def store(self) -> Store:
        return Store(self.config.lake)

    def at_source(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with source_connection.connect(self.source, application_name="a_test") as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def in_ledger(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with open_ledger(self.ledger, self.config.pipeline) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def create_slot(self, options: str = "") -> None:
        own_slot.note(self.config, self.source, self.ledger)
        self.at_source(f"SELECT pg_create_logical_replication_slot('{self.config.slot}', 'pgoutput'{options})")

    def drop_slot(self) -> None:
        self.at_source("SELECT pg_drop_replication_slot(%s)", self.config.slot)

    def write(self) -> None:
        self.at_source("INSERT INTO public.item (note) VALUES ('a row')")

    def flush_lsn(self) -> Lsn:
        return Lsn.parse(self.at_source("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def advance(self, to: Lsn | None = None) -> None:
        self.at_source(
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", self.config.slot, str(to or self.flush_lsn())
        )

    def confirmed(self) -> Lsn:
        with source_connection.connect(self.source, application_name="a_test") as connection:
            slot = read_slot(connection, self.config.slot)
        assert slot is not None
        assert slot.confirmed_lsn is not None
        return slot.confirmed_lsn

    def settle(self) -> Generation:
        with (
            leases.hold(self.ledger, self.config.pipeline, SLOT, "drain/1") as lease,
            source_connection.connect(self.source, application_name=self.config.application_name) as source,
            open_ledger(self.ledger, self.config.pipeline) as book,
        ):
            return settle(self.config, source, book, self.store, lease)

    def generation(self) -> Generation:
        with open_ledger(self.ledger, self.config.pipeline) as book:
            return generations.required(book)

    def stage(
        self,
        *tables: str,
        register: bool = True,
        start: Lsn | None = None,
        end: Lsn | None = None,
        heartbeat: bool = True,
    ) -> BatchManifest:
        """One batch; a write at the source comes first, so that the range is not empty."""
        if end is None:
            self.write()
        generation = self.generation()
        with source_connection.connect(self.source, application_name="a_test") as connection:
            server = read_server(connection)
        manifest = manifest_of(
            start or generation.staged_lsn,
            end or server.flush_lsn,
            *tables,
            pipeline=self.config.pipeline,
            generation=generation.number,
            attempt=str(uuid4()),
            source=SourceIdentity(server.system_identifier, server.timeline, self.config.slot, server.version),
            heartbeat=heartbeat,
        )
        for table in manifest.tables:
            for file in table.files:
                self.store.write_atomic(file.path, b"x" * file.bytes)
        self.store.write_atomic(path_of(manifest), manifest.to_json().encode())
        if register:
            self.register(manifest)
        return manifest

    def register(self, manifest: BatchManifest) -> None:
        with (
            leases.hold(self.ledger, self.config.pipeline, SLOT, "drain/1") as lease,
            open_ledger(self.ledger, self.config.pipeline) as book,
        ):
            batches.register(book, lease, manifest, path_of(manifest))

    def apply(self, table: str, to: Lsn) -> None:
        generation = self.generation().number
        with open_ledger(self.ledger, self.config.pipeline) as book:
            positions.rise(book, generation, {table: (to, to)})


@pytest.fixture
def capture(source: str, new_database: Callable[[str], str], tmp_path: Path) -> Capture:
    return capture_of(source, new_database("ledger"), tmp_path / "lake")


def capture_of(source: str, ledger: str, lake: Path) -> Capture:
    """Publication, slot and migrated ledger; no generation is open yet."""
    migrate(ledger)
    database = psycopg.conninfo.conninfo_to_dict(source)["dbname"]
    config = PipelineConfig(
        pipeline="shop",
        source_connection="source",
        slot=f"slot_{database}",
        publication="Item's",
        manage_publication=False,
        tables=(TableRule("public.*"),),
        lake=str(lake),
        ledger_connection="ledger",
        bounds=Bounds(lock_timeout_s=2, file_settle_s=0),
    )
    made = Capture(source, ledger, config)
    made.at_source("CREATE TABLE public.item (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
    made.at_source("""CREATE PUBLICATION "Item's" FOR TABLE public.item""")
    made.create_slot()
    return made
