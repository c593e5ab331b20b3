"""The SQL by which docker-compose.yaml makes its roles, on an embedded server: with them a capture can do its work, and
nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import yaml

from sandbox.checkout import this_checkout
from sandbox.demo import shop
from sandbox.services.postgres import PostgresServer, running
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config.file_reader import load
from tidemark.run import Run

ROOT = this_checkout().root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running(tmp_path_factory.mktemp("containers"), 18) as server:
        yield server


def run_as_the_image_does(server: PostgresServer, content: str, folder: Path) -> None:
    file = folder / "roles.sql"
    file.write_text(content)
    environment = {**os.environ, "POSTGRES_PASSWORD": server.password}
    command = [server.binary("psql"), "-v", "ON_ERROR_STOP=1", "-X", "-q", "-f", file, server.conninfo_for_programs()]
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_capture_works_with_the_rights_that_it_has(server: PostgresServer, tmp_path: Path) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    run_as_the_image_does(server, compose["configs"]["source"]["content"], tmp_path)
    # The other server, in the containers; a role of both is made once here.
    ledger = compose["configs"]["ledger"]["content"].replace("CREATE ROLE tidemark LOGIN PASSWORD :'secret';", "")
    run_as_the_image_does(server, ledger, tmp_path)
    owner = server.conninfo("shop", "shop_owner")
    shop.create_tables(owner)
    shop.create_publication(owner)
    config = load(ROOT / "include" / "sandbox" / "demo" / "in_containers" / "shop.yaml")
    config = replace(config, lake=str(tmp_path / "lake"), lake_connection=None)
    as_tidemark = server.conninfo("shop", "tidemark")
    report = preflight(Run(config, as_tidemark, server.conninfo("tidemark", "tidemark"), "run", "preflight"))
    assert not report.errors + report.table_errors, str(report)
    with psycopg.connect(as_tidemark) as connection:
        assert connection.execute("SELECT count(*) FROM shop.orders").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM shop.orders")


def test_the_shop_is_at_work_while_it_sells(server: PostgresServer) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE selling")
    source = server.conninfo("selling")
    shop.create_tables(source)
    assert not shop.is_at_work(source)
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("INSERT INTO shop.orders VALUES (1, 1, 'placed', now(), 1)")
        assert shop.is_at_work(source)
        connection.execute("UPDATE shop.orders SET placed_at = now() - interval '1 hour'")
        assert not shop.is_at_work(source)
