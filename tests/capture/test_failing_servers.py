"""Each fsync and each write of WAL fails once at the server of the ledger, or of the source, while a drain runs: the
server restarts itself, the task ends with an error that its retry mends, and every row is staged once."""

from __future__ import annotations

import errno
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tests.conftest import create_database
from tests.support import system_faults
from tests.support.pipeline import Pipeline, pipeline_config
from tests.support.system_faults import Call
from tidemark.config import TableRule
from tidemark.errors import Move, TidemarkError
from tidemark.ledger import migrations
from tidemark.postgres.postgres_session import outages

NUMBERS = (1, 2, 3, 5, 8, 13, 21)


def answers(conninfo: str) -> bool:
    try:
        with psycopg.connect(conninfo, connect_timeout=5) as connection:
            return connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone() is not None
    except psycopg.OperationalError:
        return False


@pytest.mark.thorough
@pytest.mark.parametrize("calls", [Call.SYNC, Call.WRITE], ids=lambda calls: calls.name)
@pytest.mark.parametrize("broken", ["ledger", "source"])
def test_a_server_whose_disk_fails_within_a_drain_loses_and_doubles_nothing(
    broken: str, calls: Call, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        faults = stack.enter_context(system_faults.for_any_user())
        databases = {}
        for name in ("ledger", "source"):
            environment = faults.environment if name == broken else {}
            server = PostgresServer(tmp_path / name, settings={"autovacuum": "off"}, environment=environment)
            stack.callback(server.remove)
            databases[name] = create_database(server.start(), name)
            if name == broken:
                wal = server.data / "pg_wal"
        migrations.migrate(databases["ledger"])
        config = pipeline_config("failing", tmp_path / "lake", (TableRule("public.*"),))
        pipeline = Pipeline(config, databases["source"], databases["ledger"])
        stack.callback(pipeline.close)
        pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)")
        pipeline.begin()
        errors: Counter[str] = Counter()
        for number in NUMBERS:
            pipeline.execute(f"INSERT INTO orders VALUES ({number}, 'a')")
            with faults.failing(calls, wal, number, errno.EIO):
                try:
                    with outages():
                        pipeline.drain(f"run-{number}")
                except TidemarkError as error:
                    if error.move is not Move.RETRY:
                        raise
                    errors[type(error).__name__] += 1
            if faults.failed:
                wait_for("the server is back", lambda: answers(databases[broken]), 60)
                pipeline.close()
                wait_for("the retry ends well", lambda number=number: drains(pipeline, f"run-{number}"), 60)
        print(f"{calls!r} of the {broken} failed: {dict(errors)}")
        assert errors
        assert sorted(row["id"] for row in pipeline.staged("public.orders")) == list(NUMBERS)


def drains(pipeline: Pipeline, run_id: str) -> bool:
    """As a task's retry; a server that just restarted may refuse the first ones."""
    try:
        with outages():
            pipeline.drain(run_id)
    except TidemarkError as error:
        if error.move is not Move.RETRY:
            raise
        return False
    return True
