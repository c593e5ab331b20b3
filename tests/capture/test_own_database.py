"""docs/own-database.md and docs/uninstall.md, followed literally: SQL, pipeline file, commands, a capture, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sandbox.services.postgres import PostgresServer
from tests.capture.test_least_privilege import run
from tests.conftest import drop_database
from tests.support.pipeline import Pipeline
from tests.unit.test_architecture import REPOSITORY
from tidemark.__main__ import main
from tidemark.config.airflow_connections import Connection, look_up
from tidemark.config.file_reader import load

PAGE = (REPOSITORY / "docs" / "own-database.md").read_text()
WAL_LEVEL, LEDGER = re.findall(r"^```sql\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
ROLES_BY_VERSION = dict(
    re.findall(r'^=== "PostgreSQL (.*?)"\n\n    ```sql\n(.*?)    ```', PAGE, re.DOTALL | re.MULTILINE)
)
WITHOUT_PIPELINE, WITHOUT_ROLE = re.findall(
    r"```sql\n(.*?)```", (REPOSITORY / "docs" / "uninstall.md").read_text(), re.DOTALL
)
(PIPELINE_FILE,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
ROLES = ("tidemark", "tidemark_ledger", "shop_owner")


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server with somebody's database, and nothing that the page says."""
    run(postgres.conninfo(), "CREATE DATABASE shop; CREATE ROLE shop_owner")
    run(
        postgres.conninfo("shop"),
        "CREATE SCHEMA shop AUTHORIZATION shop_owner; SET ROLE shop_owner;"
        "CREATE TABLE shop.orders (id int PRIMARY KEY, note text); INSERT INTO shop.orders VALUES (1, 'from before')",
    )
    yield postgres
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        there = [
            name for (name,) in connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s)", ([*ROLES],))
        ]
    run(postgres.conninfo("shop"), f"DROP OWNED BY {', '.join(there)} CASCADE")
    for database in ("shop", "tidemark"):
        drop_database(postgres, postgres.conninfo(database))
    run(postgres.conninfo(), f"DROP ROLE {', '.join(there)}")


@pytest.mark.parametrize("versions", ["16 and later", "15"])
def test_the_page_leads_to_a_capture(
    server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], versions: str
) -> None:
    """The grants of 15 are enough on any server; the oldest of the tests is 16."""
    admin = server.conninfo("shop")
    run(server.conninfo(), WAL_LEVEL)
    run(admin, ROLES_BY_VERSION[versions])
    run(server.conninfo(), LEDGER)
    file = tmp_path / "shop.yaml"
    file.write_text(PIPELINE_FILE.replace("/data/lake", str(tmp_path / "lake")))

    source = make_conninfo(admin, user="tidemark")
    ledger = make_conninfo(server.conninfo("tidemark"), user="tidemark_ledger")
    environment = {
        "AIRFLOW_CONN_SHOP_SOURCE": _as_json(source),
        "AIRFLOW_CONN_TIDEMARK_LEDGER": _as_json(ledger),
        "AIRFLOW_CONN_SPARK_DEFAULT": re.findall(r'`(\{"conn_type": "spark".*?)`', PAGE)[0],
    }

    def connections(wanted: str) -> Connection:
        return look_up(wanted, environment=environment, ask_airflow=lambda _: None)

    assert main(["preflight", str(file)], look_up=connections) == 0, capsys.readouterr().out
    assert 'Created slot "tidemark_shop"' in capsys.readouterr().out

    pipeline = Pipeline(load(file), source=source, ledger=ledger)
    run(admin, "SET ROLE shop_owner; INSERT INTO shop.orders VALUES (2, 'while it runs')")
    pipeline.preflight().raise_for_errors()
    assert pipeline.drain().rows == 1
    pipeline.confirm()
    # The row from before, which the page says a backfill brings: nobody has to do anything against it.
    assert main(["status", str(file)], look_up=connections) == 3
    assert "backfill" in capsys.readouterr().out

    run(admin, WITHOUT_PIPELINE)
    run(admin, WITHOUT_ROLE)
    with psycopg.connect(admin) as connection:
        assert connection.execute("SELECT FROM pg_publication").fetchone() is None
        assert connection.execute("SELECT FROM pg_roles WHERE rolname = 'tidemark'").fetchone() is None
        assert (
            connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'tidemark_shop'").fetchone()
            is None
        )


def _as_json(conninfo: str) -> str:
    parameters = conninfo_to_dict(conninfo)
    said = {
        "login": parameters["user"],
        "host": parameters["host"],
        "port": int(str(parameters["port"])),
        "schema": parameters["dbname"],
    }
    return json.dumps({"conn_type": "postgres", "password": parameters["password"], **said})
