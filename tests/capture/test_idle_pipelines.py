"""Several pipelines at rest on one server: what one of them writes must not be work for another.

An hour of their schedules, five minutes at a time, with nobody writing but they themselves, in a ledger on the same
server, and PostgreSQL. What each of them may do in that hour is its heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.conftest import create_database, drop_database
from tests.support.pipeline import Pipeline, pipeline_config
from tidemark.capture.waiting import Waiting, changes_waiting
from tidemark.ledger.migrations import migrate

EVERY = timedelta(minutes=5)
RUNS_OF_AN_HOUR = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """It writes whole pages after a checkpoint, as servers do: a few rows of the ledger are then a hundred times their
    size."""
    folder = tmp_path_factory.mktemp("idle")
    with running(
        folder, 18, fsync="off", autovacuum="off", max_replication_slots="20", max_wal_senders="20"
    ) as started:
        yield started


@dataclass
class Idle(Pipeline):
    """One pipeline on the shared server; `ran` is why each of its runs had something to drain."""

    ran: list[str] = field(default_factory=list)

    def look(self, now: datetime) -> Waiting:
        return changes_waiting(self.config, source=self.source, ledger=self.ledger, now=lambda: now)

    def run(self, now: datetime) -> None:
        """What a run of the capture DAG does of an idle pipeline."""
        self.sound(only_new_notes=True)
        look = self.look(now)
        if look.waiting:
            self.ran.append(look.reason)
            drained = self.drain(now=lambda: now)
            assert drained.reached_target
            assert drained.rows == 0
        self.confirm()


class Shared:
    """The server with its pipelines and their clock."""

    def __init__(self, server: PostgresServer, folder: Path, count: int) -> None:
        self.server = server
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.ledger = create_database(server, "ledger")
        migrate(self.ledger)
        self.pipelines = [self._pipeline(f"idle_{number}", folder) for number in range(count)]

    def _pipeline(self, name: str, folder: Path) -> Idle:
        source = create_database(self.server, "source")
        pipeline = Idle(pipeline_config(name, folder / name), source, self.ledger)
        pipeline.sql("CREATE TABLE item (id int PRIMARY KEY, note text)")
        return pipeline

    def all_run(self) -> None:
        """Each of them once, and what a server writes by itself in five minutes."""
        for pipeline in self.pipelines:
            pipeline.run(self.now)
        with psycopg.connect(self.server.conninfo(), autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            connection.execute("SELECT pg_log_standby_snapshot()")
        self.now += EVERY

    def an_hour(self) -> list[list[str]]:
        """Per pipeline why it ran."""
        for pipeline in self.pipelines:
            pipeline.ran.clear()
        for _ in range(RUNS_OF_AN_HOUR):
            self.all_run()
        return [pipeline.ran for pipeline in self.pipelines]

    def drop(self) -> None:
        for database in (self.ledger, *(pipeline.source for pipeline in self.pipelines)):
            drop_database(self.server, database)


@pytest.fixture(params=[2, pytest.param(10, marks=pytest.mark.thorough)], ids=["two", "ten"])
def shared(server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shared]:
    pipelines = Shared(server, tmp_path, request.param)
    try:
        for _ in range(2):  # the first runs, which have everything to do
            pipelines.all_run()
        yield pipelines
    finally:
        pipelines.drop()


def heartbeats_alone(ran: list[list[str]]) -> None:
    for reasons in ran:
        assert reasons == ["the last heartbeat is older than 15 min"] * len(reasons)
        assert 3 <= len(reasons) <= 4


def test_an_idle_hour_is_heartbeats_alone(shared: Shared) -> None:
    heartbeats_alone(shared.an_hour())


@pytest.mark.thorough
def test_a_transaction_that_stays_open_does_not_make_them_wake_each_other(shared: Shared) -> None:
    """Nobody's decoding can begin above it, so there is ever more WAL between there and the end."""
    source = shared.pipelines[0].source
    with psycopg.connect(source) as forgotten:
        forgotten.execute("CREATE TABLE elsewhere (n int, note text)")
        with psycopg.connect(create_database(shared.server, "busy"), autocommit=True) as busy:
            busy.execute("CREATE TABLE loaded AS SELECT n, repeat('x', 100) FROM generate_series(1, 200000) AS n")
        shared.all_run()
        heartbeats_alone(shared.an_hour())
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("INSERT INTO item VALUES (1)")
        answer = shared.pipelines[0].look(shared.now)
        assert answer.waiting
        assert "the publication's tables changed in it" in answer.reason
