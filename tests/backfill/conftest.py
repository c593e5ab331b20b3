"""A captured pipeline whose tables have rows from before: plan, read and look at what was read. No Spark."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.capture.conftest import Pipeline
from tests.conftest import create_database, drop_database
from tests.support.runs import a_run
from tidemark.backfill import keyless
from tidemark.backfill.planning import BackfillRequest, plan
from tidemark.backfill.ranges import ReadResult, read_chunks
from tidemark.capture.preflight import preflight
from tidemark.config import Bounds, PipelineConfig, TableRule
from tidemark.ledger import backfills, chunks, migrations
from tidemark.ledger.backfills import Backfill
from tidemark.ledger.chunks import Range, ReadChunk
from tidemark.ledger.connection import open_ledger
from tidemark.staging.writer import read_table

_numbers = itertools.count(1)


@dataclass
class Captured(Pipeline):
    """`capture()` is what the first capture run's preflight does. The others are tasks of the backfill DAG."""

    backfill_runs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    run_id: str = "none yet"
    reader_wait_s: float = 0

    def capture(self) -> None:
        report = preflight(a_run(self.config, source=self.source, ledger=self.ledger))
        assert not [f for f in report.findings if f.severity == "error"], report

    def plan(self, run_id: str | None = None, **request: Any) -> list[Backfill]:
        self.run_id = run_id or f"backfill-{next(self.backfill_runs)}"
        return plan(
            a_run(
                self.config,
                source=self.source,
                ledger=self.ledger,
                run_id=self.run_id,
                holder=f"backfill/{self.run_id}/plan",
            ),
            request=BackfillRequest(**request),
            reader_wait_s=self.reader_wait_s,
        )

    def read(self, reader: int = 1, holder: str | None = None, **options: Any) -> ReadResult:
        holder = holder or f"backfill/{self.run_id}/read_chunks/{reader}"
        run = a_run(
            self.config, source=self.source, ledger=self.ledger, run_id=self.run_id, holder=holder, salt=b"salt"
        )
        return read_chunks(run, **options)

    def ranges(self, backfill: Backfill) -> list[Range]:
        with open_ledger(self.ledger, self.config.pipeline) as connection:
            return chunks.ranges_of(connection, backfill.backfill)

    def chunks(self, backfill: Backfill) -> list[ReadChunk]:
        with open_ledger(self.ledger, self.config.pipeline) as connection:
            return chunks.of_backfill(connection, backfill.backfill)

    def again(self, backfill: Backfill) -> Backfill:
        with open_ledger(self.ledger, self.config.pipeline) as connection:
            found = backfills.one(connection, backfill.backfill)
        assert found is not None
        return found

    def rows(self, backfill: Backfill) -> list[dict[str, Any]]:
        """What the recorded chunks hold, checksums verified, in the order of ranges and chunks."""
        in_order = sorted(self.chunks(backfill), key=lambda c: (c.range, int(c.chunk.split("-")[1])))
        return [row for chunk in in_order for f in chunk.files for row in read_table(self.store, f).to_pylist()]

    def query(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode()).fetchall()


def a_pipeline(source: str, ledger: str, folder: Path, connection: psycopg.Connection[Any]) -> Captured:
    migrations.migrate(ledger)
    name = f"backfilled_{next(_numbers)}"
    config = PipelineConfig(
        pipeline=name,
        source_connection="source",
        slot=name,
        publication=name,
        manage_publication=True,
        tables=(TableRule("public.*"),),
        lake=str(folder / "lake"),
        ledger_connection="ledger",
        bounds=Bounds(drain_stall_s=20, file_settle_s=0, lock_timeout_s=2, join_wait_s=5),
    )
    return Captured(config, source, ledger, connection)


@pytest.fixture
def captured(source: str, ledger_database: str, tmp_path: Path) -> Iterator[Captured]:
    with psycopg.connect(source, autocommit=True) as connection:
        yield a_pipeline(source, ledger_database, tmp_path, connection)


@pytest.fixture
def all_sessions_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the two sessions that read a table without key, none goes on before each has its first stretch: else one may
    read all of it before the other is there."""
    first, seen, real = threading.Barrier(2, timeout=60), threading.local(), keyless.keyset.stretch_query

    def stretch_query(*given: Any) -> Any:
        if not hasattr(seen, "one"):
            seen.one = True
            first.wait()
        return real(*given)

    monkeypatch.setattr(keyless.keyset, "stretch_query", stretch_query)


@pytest.fixture(params=[16, 18])
def captured_on_each(
    request: pytest.FixtureRequest, postgres: PostgresServer, new_database: Callable[[str], str], tmp_path: Path
) -> Iterator[Captured]:
    """The same, with the source on the oldest server of the tests and on the newest."""
    server: PostgresServer = postgres if request.param == 18 else request.getfixturevalue("postgres16")
    source = create_database(server, "source")
    with psycopg.connect(source, autocommit=True) as connection:
        yield a_pipeline(source, new_database("ledger"), tmp_path, connection)
    drop_database(server, source)
