"""The grants of docs/operations.md, as they stand there, are enough to preflight, drain and confirm; fewer are not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sandbox.services.postgres import PostgresServer
from tests.conftest import drop_database
from tests.support import servers
from tests.support.pipeline import Pipeline, pipeline_config
from tidemark.config import TableRule

ROLES = ("tidemark", "tidemark_ledger", "shop_owner")
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
BASE, PUBLICATION, MANAGED, MESSAGES, LEDGER, _ = re.findall(
    r"```sql\n(.*?)```", DOCUMENT.partition("## Least privilege")[2], re.DOTALL
)


def run(conninfo: str, script: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(statement.encode())
            # What an administrator types as `\\password`: the server's own, which the connection strings have.
            for role in re.findall(r"CREATE ROLE (\w+) LOGIN", statement):
                connection.execute(f"ALTER ROLE {role} PASSWORD '{connection.info.password}'".encode())


OWNER_OF_THE_PUBLICATION = "SELECT pubowner::regrole::text FROM pg_publication WHERE pubname = 'tidemark_shop'"


def facts(source: Source, query: str) -> tuple[Any, ...]:
    with psycopg.connect(source.admin) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row


class Source(Pipeline):
    """A pipeline that is at the source, and in the ledger, what the grants allow."""

    def __init__(self, server: PostgresServer, lake: Path) -> None:
        self.admin = server.conninfo("shop")
        config = pipeline_config(
            "privilege",
            lake,
            (TableRule("shop.*"),),
            {"lock_timeout_s": 1},
            publication="tidemark_shop",
            manage_publication=False,
        )
        super().__init__(
            config,
            source=make_conninfo(self.admin, user="tidemark"),
            ledger=make_conninfo(server.conninfo("tidemark"), user="tidemark_ledger"),
        )

    def run(self) -> int:
        """One run as far as the source has a part in it; how many changes it staged."""
        self.preflight().raise_for_errors()
        run(self.admin, "INSERT INTO shop.orders VALUES (1, 'a'), (2, 'b')")
        staged = self.drain()
        self.confirm()
        return staged.rows


@pytest.fixture(params=servers.ANY)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    server: PostgresServer = request.getfixturevalue(servers.NAMES[request.param])
    run(server.conninfo(), "CREATE DATABASE shop; CREATE DATABASE tidemark; CREATE ROLE shop_owner; CREATE ROLE spare")
    run(
        server.conninfo("shop"),
        "GRANT CREATE ON DATABASE shop TO shop_owner; CREATE SCHEMA shop AUTHORIZATION shop_owner; SET ROLE shop_owner;"
        "CREATE TABLE shop.orders (id int PRIMARY KEY, note text)",
    )
    run(server.conninfo("tidemark"), LEDGER)
    yield Source(server, tmp_path / "lake")
    for database in ("shop", "tidemark"):
        run(server.conninfo(database), f"DROP OWNED BY {', '.join(ROLES)} CASCADE")
        drop_database(server, server.conninfo(database))
    run(server.conninfo(), f"DROP ROLE {', '.join(ROLES)}, spare")


def test_the_least_role_reads_a_publication_that_the_owner_made(source: Source) -> None:
    run(source.admin, BASE)
    run(source.admin, PUBLICATION)
    assert source.run() == 2


def test_logical_messages_may_be_taken_from_everybody_else(source: Source) -> None:
    run(source.admin, BASE)
    run(source.admin, PUBLICATION)
    with psycopg.connect(source.admin) as admin:
        before_17 = admin.info.server_version < 170000
    run(source.admin, MESSAGES.replace(", boolean)", ")") if before_17 else MESSAGES)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(source.admin, "SET ROLE spare; SELECT pg_logical_emit_message(true, 'x', 'x')")
    assert source.run() == 2


def test_the_statement_that_preflight_prints_is_all_the_owner_runs(source: Source) -> None:
    run(source.admin, BASE)
    (missing,) = source.preflight().errors
    run(source.admin, f"SET ROLE shop_owner; {missing.remedy.partition(': ')[2]}")
    assert source.run() == 2


def test_with_two_more_grants_preflight_manages_the_publication(source: Source) -> None:
    run(source.admin, BASE)
    source.config = replace(source.config, manage_publication=True)
    report = source.preflight()
    assert [f.check for f in report.errors] == ["rights", "tables"]
    assert "may not create a publication in database shop" in str(report.errors[0])
    assert "does not own shop.orders" in str(report.table_errors[0])
    run(source.admin, MANAGED)
    assert source.run() == 2
    # As their owner, and with none of the owner's rights but for that.
    assert facts(source, OWNER_OF_THE_PUBLICATION) == ("shop_owner",)
    assert facts(source, "SELECT has_table_privilege('tidemark', 'shop.orders', 'INSERT')") == (False,)
    run(source.admin, "SET ROLE shop_owner; CREATE TABLE shop.later (id int PRIMARY KEY)")
    assert "Added shop.later" in str(source.preflight())
    source.config = replace(source.config, tables=(TableRule("shop.orders"),))
    assert "Took shop.later out" in str(source.preflight())


def test_one_role_may_publish_the_tables_of_several_owners(source: Source) -> None:
    run(source.admin, BASE)
    source.config = replace(source.config, manage_publication=True)
    run(
        source.admin,
        "CREATE TABLE shop.parts (id int PRIMARY KEY); ALTER TABLE shop.parts OWNER TO spare;"
        "GRANT SELECT ON shop.parts TO tidemark; CREATE ROLE publisher NOLOGIN; GRANT shop_owner, spare TO publisher;"
        "GRANT CREATE ON DATABASE shop TO publisher, shop_owner;"
        "GRANT publisher TO tidemark WITH INHERIT FALSE, SET TRUE",
    )
    try:
        assert source.run() == 2
        assert facts(source, OWNER_OF_THE_PUBLICATION) == ("publisher",)
        run(source.admin, "CREATE TABLE shop.more (id int PRIMARY KEY); ALTER TABLE shop.more OWNER TO spare")
        run(source.admin, "GRANT SELECT ON shop.more TO tidemark")
        assert "Added shop.more" in str(source.preflight())
    finally:
        run(source.admin, "DROP OWNED BY publisher, spare CASCADE; DROP ROLE publisher")


def test_a_role_that_inherits_its_owners_rights_uses_them_as_before(source: Source) -> None:
    run(source.admin, BASE)
    source.config = replace(source.config, manage_publication=True)
    run(source.admin, "GRANT CREATE ON DATABASE shop TO tidemark; GRANT shop_owner TO tidemark")
    assert source.run() == 2
    assert facts(source, OWNER_OF_THE_PUBLICATION) == ("tidemark",)


def test_a_table_created_later_joins_by_itself(source: Source) -> None:
    run(source.admin, BASE)
    run(source.admin, MANAGED)
    source.config = replace(source.config, manage_publication=True)
    source.preflight().raise_for_errors()
    run(source.admin, "SET ROLE shop_owner; CREATE TABLE shop.lines (id int PRIMARY KEY)")
    report = source.preflight()
    report.raise_for_errors()
    assert "Added shop.lines" in str(report)


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        ("ALTER ROLE tidemark NOREPLICATION", "role"),
        ("REVOKE SELECT ON shop.orders FROM tidemark", "rights"),
        ("REVOKE USAGE ON SCHEMA shop FROM tidemark", "rights"),
        ("REVOKE CONNECT ON DATABASE shop FROM tidemark, PUBLIC", "source"),
    ],
)
def test_each_right_is_needed_and_its_lack_is_said(source: Source, statement: str, check: str) -> None:
    run(source.admin, BASE)
    run(source.admin, PUBLICATION)
    run(source.admin, statement)
    report = source.preflight()
    error = (*report.table_errors, *report.errors)[0]
    assert error.check == check
    if check != "source":
        run(source.admin, error.remedy.partition(" (on Amazon")[0])
        assert source.run() == 2


def test_a_ledger_role_without_its_grant_is_refused(source: Source) -> None:
    run(source.admin, BASE)
    run(source.admin, PUBLICATION)
    run(make_conninfo(source.ledger, user="postgres"), "REVOKE CREATE ON DATABASE tidemark FROM tidemark_ledger")
    (error,) = source.preflight().errors
    assert (error.check, "permission denied" in error.message) == ("ledger", True)
    assert "GRANT CREATE ON DATABASE tidemark TO tidemark_ledger" in error.remedy
