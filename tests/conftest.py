"""Real PostgreSQL servers and one Spark for the tests: one per session, a fresh database per test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from sandbox.services.postgres import PostgresServer, running
from tests.support import servers, thorough
from tidemark import failpoints
from tidemark.config import TableRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.azure_server import Azure
    from tests.support.capture import Environment
    from tests.support.google_server import Google
    from tests.support.pipeline import Pipeline
    from tests.support.remedies import Told
    from tests.support.s3_proxy import Proxy
    from tests.support.s3_server import S3Server

_numbers = itertools.count(1)

# What such a server writes by itself, a page as a whole after a checkpoint or what a vacuum cleans, looks like work to
# a capture that shall be idle.
QUIET = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}
PREPARES = {"max_prepared_transactions": "5"}


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The PostgreSQL 18 server of this session. Tests that stop or reconfigure a server start one of their own."""
    with running(tmp_path_factory.mktemp("postgres18"), 18, **QUIET, **PREPARES) as server:
        yield server


@pytest.fixture(scope="session")
def postgres16(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running(tmp_path_factory.mktemp("postgres16"), 16, **QUIET, **PREPARES) as server:
        yield server


@pytest.fixture(scope="session")
def postgres17(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """For thorough tests alone: it is not in requirements.txt."""
    with running(tmp_path_factory.mktemp("postgres17"), 17, **QUIET, **PREPARES) as server:
        yield server


def pytest_configure() -> None:
    """No test leaves an error to Spark unseen, in whatever process it merges; see `fall_backs`."""
    os.environ[failpoints.FALL_BACKS_FAIL] = "1"


@pytest.fixture(autouse=True)
def fall_backs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is marked `falls_back` may merge a table by Spark after the driver failed with an error."""
    if request.node.get_closest_marker("falls_back"):
        monkeypatch.delenv(failpoints.FALL_BACKS_FAIL)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is thorough
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    servers.share_out(items)
    thorough.share_out(items)


def on_s3() -> bool:
    """Whether the lakes of this session's tests are to be buckets, as `make faults` has them in its second half."""
    return os.environ.get("TIDEMARK_TEST_LAKE") == "s3"


def on_google() -> bool:
    """Whether they are to be buckets of Google's protocol."""
    return os.environ.get("TIDEMARK_TEST_LAKE") == "google"


def on_azure() -> bool:
    """Whether they are to be containers of Azure's emulator."""
    return os.environ.get("TIDEMARK_TEST_LAKE") == "azure"


def create_database(server: PostgresServer, prefix: str, like: str = "") -> str:
    """Create a database with a name of its own and return its connection string. It is empty, or a copy of the one to
    which `like` connects."""
    name = f"{prefix}_{next(_numbers)}"
    template = psycopg.conninfo.conninfo_to_dict(like).get("dbname", "template1")
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(str(template))
            )
        )
    return server.conninfo(name)


def drop_database(server: PostgresServer, conninfo: str) -> None:
    """Drop a database together with its replication slots and whatever is still connected to it; two environments
    may share a ledger, so it may be gone already."""
    name = psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"]
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for slot, pid in connection.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (name,)
        ).fetchall():
            if pid is not None:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            with suppress(psycopg.errors.UndefinedObject):  # a temporary one goes with its session
                connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(str(name))))


@pytest.fixture
def new_database(postgres: PostgresServer) -> Iterator[Callable[..., str]]:
    """A function from a name's prefix to the connection string of a fresh database, dropped after the test."""
    conninfos: list[str] = []

    def make(prefix: str, like: str = "") -> str:
        conninfo = create_database(postgres, prefix, like)
        conninfos.append(conninfo)
        return conninfo

    yield make
    for conninfo in conninfos:
        drop_database(postgres, conninfo)


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Iterator[Told]:
    """What a test is told that walks remedies (`tests.support.remedies`)."""
    from tests.support.remedies import Told

    told = Told()
    yield told
    assert told.leaves == {name for mark in request.node.iter_markers("walks") for name in mark.args}


@pytest.fixture
def source(new_database: Callable[..., str]) -> str:
    """Connection string of an empty source database."""
    return new_database("source")


@pytest.fixture
def empty_ledger_database(new_database: Callable[..., str]) -> str:
    """Connection string of an empty database for the ledger, without the schema."""
    return new_database("ledger")


@pytest.fixture(scope="session")
def migrated_ledger(postgres: PostgresServer) -> str:
    """A ledger's schema; to make it anew for every test would be half of what most of them take."""
    from tidemark.ledger import migrations

    database = create_database(postgres, "migrated")
    migrations.migrate(database)
    return database


@pytest.fixture
def ledger_database(new_database: Callable[..., str], migrated_ledger: str) -> str:
    """Connection string of a ledger of which nothing is written yet."""
    return new_database("ledger", like=migrated_ledger)


@pytest.fixture
def new_pipeline(
    request: pytest.FixtureRequest, ledger_database: str, tmp_path: Path
) -> Iterator[Callable[..., Pipeline]]:
    """A function from bounds to a pipeline that captures schema public of `source`, or of the database that it is
    given; nothing is done for it yet."""
    from tests.support.pipeline import Pipeline, pipeline_config

    pipelines: list[Pipeline] = []

    def make(source: str | None = None, **bounds: int) -> Pipeline:
        bounds.setdefault("drain_stall_s", 20)
        config = pipeline_config(f"captured_{next(_numbers)}", tmp_path / "lake", bounds=bounds)
        if on_s3():
            from tests.support.s3_server import in_new_bucket

            config = in_new_bucket(config, request.getfixturevalue("s3_server"))
        if on_google():
            google: Google = request.getfixturevalue("google")
            config = google.in_new_bucket(config)
        if on_azure():
            azure: Azure = request.getfixturevalue("azure")
            config = azure.in_new_container(config)
        pipelines.append(Pipeline(config, source or request.getfixturevalue("source"), ledger_database))
        return pipelines[-1]

    yield make
    for pipeline in pipelines:
        pipeline.close()


@pytest.fixture
def pipeline(new_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline whose drain is called by the test; `begin()` opens it after the test has made its tables."""
    return new_pipeline()


@pytest.fixture
def captured(new_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline whose tables are backfilled; `capture()` opens it after the test has made them."""
    return new_pipeline(lock_timeout_s=2, join_wait_s=5)


@pytest.fixture(params=servers.ANY)
def captured_on_each(request: pytest.FixtureRequest, new_pipeline: Callable[..., Pipeline]) -> Iterator[Pipeline]:
    """`captured`, with the source on each server of the tests."""
    server: PostgresServer = request.getfixturevalue(servers.NAMES[request.param])
    source = create_database(server, "source")
    yield new_pipeline(source, lock_timeout_s=2, join_wait_s=5)
    drop_database(server, source)


# Azure's emulator comes from npm, which nothing else here needs: these are tests where TIDEMARK_AZURITE names it.
ON_AZURE = ("faults/test_lake_on_azure.py", "object_store/test_azure.py", "target/test_azure_commits.py")
collect_ignore = [] if "TIDEMARK_AZURITE" in os.environ else [*ON_AZURE]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one local Spark of this session, with Delta."""
    from tests.support import local_spark

    session = local_spark.start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server."""
    from tests.support.s3_server import running as s3_running

    with s3_running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def google(s3_server: S3Server) -> Iterator[Google]:
    """Google's protocol in front of it."""
    from tests.support.google_server import in_front_of

    with in_front_of(s3_server) as google:
        yield google


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    """Azure's emulator, with an account as a lake needs it."""
    from tests.support import azure_server

    with azure_server.running(tmp_path_factory.mktemp("azure"), has_namespace=True) as azure:
        yield azure


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """A proxy in front of it that counts requests, and breaks those that a test names."""
    from tests.support.s3_proxy import in_front_of

    with in_front_of(s3_server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def new_environment(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Environment]]:
    """A function from name, table rules and bounds to a pipeline with databases and a lake of its own."""
    from tests.support.capture import Environment
    from tests.support.pipeline import pipeline_config

    environments: list[tuple[Environment, PostgresServer]] = []

    def spark() -> SparkSession:
        session: SparkSession = request.getfixturevalue("spark")
        return session

    def make(
        name: str,
        tables: tuple[TableRule, ...],
        bounds: dict[str, int] | None = None,
        server: PostgresServer = postgres,
    ) -> Environment:
        folder = tmp_path_factory.mktemp("pipeline")
        config = pipeline_config(name, folder / "lake", tables, bounds)
        source, ledger = create_database(server, "source"), create_database(postgres, "ledger")
        environment = Environment(config, source, ledger, folder, spark)
        if on_s3():
            from tests.support.s3_server import put_lake

            put_lake(environment, request.getfixturevalue("s3_server"))
        if on_google():
            google: Google = request.getfixturevalue("google")
            google.put_lake(environment)
        if on_azure():
            azure: Azure = request.getfixturevalue("azure")
            azure.put_lake(environment)
        environments.append((environment, server))
        return environment

    yield make
    for environment, server in environments:
        environment.close()
        if server is postgres:
            drop_database(server, environment.source)
        drop_database(postgres, environment.ledger)
