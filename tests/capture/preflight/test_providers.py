"""What preflight says of a managed service, at servers that have its roles and settings; and the SQL of the recipes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sandbox.services.postgres import PostgresServer
from tests.conftest import drop_database
from tests.support.pipeline import pipeline_config
from tests.support.roles import login
from tests.support.runs import a_run
from tests.unit.source.test_inspection import CONFIG, SOUND
from tests.unit.test_architecture import REPOSITORY
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import TableRule
from tidemark.findings import Finding
from tidemark.source.catalogue import providers
from tidemark.source.catalogue.inspection import read_server_facts, server_findings
from tidemark.source.catalogue.providers import PROVIDERS, Provider, Service

# Page of docs/recipes -> what the service has before anybody does anything.
RECIPES = {
    "rds.md": ("rds_superuser", "rds_replication"),
    "aurora.md": ("rds_superuser", "rds_replication"),
    "cloud-sql.md": ("cloudsqlsuperuser",),
    "alloydb.md": ("alloydbsuperuser",),
    "azure.md": ("azure_pg_admin",),
    "neon.md": ("neon_superuser",),
    "supabase.md": ("supabase_admin",),
    "patroni.md": (),
}


@contextmanager
def roles(server: PostgresServer, *names: str) -> Iterator[None]:
    """Of the whole server, so they go with the block."""
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for name in names:
            connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        try:
            yield
        finally:
            for name in names:
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def findings(source: str, **settings: str) -> list[Finding]:
    """What preflight says of a server of which a session reads these settings."""
    with psycopg.connect(source, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name.replace("__", "."), value))
        facts = read_server_facts(connection)
    if level := settings.get("wal_level"):
        facts = replace(facts, wal_level=level)
    return list(server_findings(facts, CONFIG, slot=None))


def of(check: str, found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.message, finding.remedy) for finding in found if finding.check == check]


@pytest.mark.parametrize(
    "provider", [one for one in PROVIDERS if one is not providers.AURORA], ids=lambda one: one.name
)
def test_a_service_is_known_by_its_role(postgres: PostgresServer, source: str, provider: Provider) -> None:
    assert of("provider", findings(source)) == []
    with roles(postgres, provider.mark):
        said = of("provider", findings(source))
    assert said == [("note", f"The source is {provider.name}", f"Its settings: docs/recipes/{provider.page}")]
    assert (REPOSITORY / "docs" / "recipes" / provider.page).is_file()


def test_aurora_is_told_from_rds(postgres: PostgresServer, source: str) -> None:
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql RETURN '17.4.1'")
    with roles(postgres, "rds_superuser"):
        assert of("provider", findings(source))[0][1] == "The source is Amazon Aurora"


@pytest.mark.parametrize("provider", [one for one in PROVIDERS if one.switch], ids=lambda one: one.name)
def test_a_switch_that_is_on_and_not_in_force_waits_for_a_restart(provider: Provider) -> None:
    service = Service(provider, {provider.switch: "on"})
    facts = replace(SOUND, wal_level="replica", service=service)
    found = list(server_findings(facts, CONFIG, slot=None))
    assert [severity for severity, *_ in of("provider", found)] == ["note", "warning"]
    assert of("wal_level", found)[0][2] == provider.wal_level
    in_force = list(server_findings(replace(facts, wal_level="logical"), CONFIG, slot=None))
    assert [severity for severity, *_ in of("provider", in_force)] == ["note"]
    assert of("wal_level", in_force) == []


def test_the_switch_is_read_from_the_server(postgres: PostgresServer, source: str) -> None:
    with roles(postgres, "rds_superuser"), psycopg.connect(source, autocommit=True) as connection:
        connection.execute("SELECT set_config('rds.logical_replication', 'on', false)")
        assert providers.read_service(connection) == Service(providers.RDS, {"rds.logical_replication": "on"})


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda one: one.name)
def test_a_role_that_may_not_stream_is_told_the_services_own_statement(provider: Provider) -> None:
    facts = replace(SOUND, replication=False, service=Service(provider))
    (said,) = of("role", list(server_findings(facts, CONFIG, slot=None)))
    assert said[2] == provider.replication.format(role="tidemark")


@pytest.mark.parametrize(("schedule", "warned"), [("*/5 * * * *", False), ("@daily", True), (None, True)])
def test_neon_removes_slots_that_a_slow_schedule_leaves_idle(schedule: str | None, warned: bool) -> None:
    facts = replace(SOUND, service=Service(providers.NEON))
    said = of("provider", list(server_findings(facts, replace(CONFIG, schedule=schedule), slot=None)))
    assert [severity for severity, *_ in said] == ["note", *(["warning"] if warned else [])]


@pytest.mark.parametrize(
    ("version", "level", "refused"),
    [(180000, "replica", True), (190000, "replica", False), (190000, "minimal", True), (190000, "logical", False)],
)
def test_from_19_on_the_first_slot_raises_the_level(version: int, level: str, refused: bool) -> None:
    found = list(server_findings(replace(SOUND, version=version, wal_level=level), CONFIG, slot=None))
    assert [finding.severity for finding in found if finding.check == "wal_level"] == ["error"] * refused


@pytest.mark.parametrize("page", RECIPES)
def test_the_grants_of_a_recipe_lead_to_a_capture(
    postgres: PostgresServer, empty_ledger_database: str, page: str, tmp_path: object
) -> None:
    """Each as it is on the page; where the console makes the role, it is made here."""
    (grants,) = re.findall(r"```sql\n(.*?)```", (REPOSITORY / "docs" / "recipes" / page).read_text(), re.DOTALL)
    with roles(postgres, *RECIPES[page], "shop_owner"):
        with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
            if page == "neon.md":
                connection.execute(login("tidemark", postgres.conninfo(), "REPLICATION"))
        try:
            with psycopg.connect(postgres.conninfo("shop"), autocommit=True) as connection:
                connection.execute("CREATE SCHEMA shop AUTHORIZATION shop_owner")
                connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")
                connection.execute("ALTER TABLE shop.orders OWNER TO shop_owner")
                connection.execute(grants)
                password = sql.Literal(psycopg.conninfo.conninfo_to_dict(postgres.conninfo())["password"])
                connection.execute(sql.SQL("ALTER ROLE tidemark PASSWORD {}").format(password))
                if "rds_replication" in RECIPES[page]:  # there the role itself is what lets a walsender in
                    connection.execute("ALTER ROLE tidemark REPLICATION")
            config = pipeline_config("shop", f"{tmp_path}/lake", (TableRule("shop.*"),))
            source = make_conninfo(postgres.conninfo("shop"), user="tidemark")
            report = preflight(a_run(config, source=source, ledger=empty_ledger_database))
            assert report.errors == ()
            assert "Created slot" in str(report)
        finally:
            with psycopg.connect(postgres.conninfo("shop"), autocommit=True) as connection:
                connection.execute("DROP OWNED BY tidemark, shop_owner CASCADE")
            drop_database(postgres, postgres.conninfo("shop"))
            with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
                connection.execute("DROP ROLE tidemark")
