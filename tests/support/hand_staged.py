"""A pipeline whose drain is played by hand: what it would have staged is written, and registered, as a test says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg

from tests.support.manifests import manifest_of, path_of
from tests.support.pipeline import Place, pipeline_config
from tidemark.formats.manifest import BatchManifest, SourceIdentity
from tidemark.ledger import leases
from tidemark.ledger.leases import SLOT
from tidemark.ledger.migrations import migrate
from tidemark.ledger.staged import batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.source.wal.slot import read_server
from tidemark.source.wal.wal_messages import emit_heartbeat

TABLE = "public.item"


@dataclass
class HandStaged(Place):
    """`stage` registers, or only leaves in the lake, one batch from what is staged up to the source's WAL end."""

    def open_generation(self) -> Generation:
        generation = self.generation()
        assert generation is not None
        return generation

    def write(self) -> None:
        self.sql("INSERT INTO public.item (note) VALUES ('a row')")

    def stage(
        self,
        *tables: str,
        register: bool = True,
        start: Lsn | None = None,
        end: Lsn | None = None,
        heartbeat: bool = True,
    ) -> BatchManifest:
        """One batch; a write at the source comes first, so that the range is not empty."""
        generation, attempt = self.open_generation(), str(uuid4())
        if end is None:
            self.write()
        with psycopg.connect(self.source, autocommit=True) as connection:
            if heartbeat and end is None:
                emit_heartbeat(connection, self.config, generation.number, attempt)
            server = read_server(connection)
        manifest = manifest_of(
            start or generation.staged_lsn,
            end or server.flush_lsn,
            *tables,
            pipeline=self.config.pipeline,
            generation=generation.number,
            attempt=attempt,
            source=SourceIdentity(server.system_identifier, server.timeline, self.config.slot, server.version),
            heartbeat=heartbeat and end is None,
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
            self.ledger_connection() as book,
        ):
            batches.register(book, lease, manifest, path_of(manifest))

    def apply(self, table: str, to: Lsn) -> None:
        generation = self.open_generation().number
        with self.ledger_connection() as book:
            positions.rise(book, generation, {table: (to, to)})


def hand_staged(source: str, ledger: str, lake: Path) -> HandStaged:
    """One table, its publication, a slot and a migrated ledger; no generation is open yet."""
    migrate(ledger)
    database = psycopg.conninfo.conninfo_to_dict(source)["dbname"]
    config = pipeline_config(
        "shop",
        lake,
        bounds={"lock_timeout_s": 2},
        slot=f"slot_{database}",
        publication="Item's",
        manage_publication=False,
    )
    pipeline = HandStaged(config, source, ledger)
    pipeline.sql(
        "CREATE TABLE public.item (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)",
        """CREATE PUBLICATION "Item's" FOR TABLE public.item""",
    )
    pipeline.create_slot()
    return pipeline
