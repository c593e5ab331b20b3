"""The statements that preflight's findings print, executed as they stand until it is content: then a run ends equal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sandbox.services.postgres import PostgresServer, running
from tests.conftest import QUIET
from tests.support import judge
from tests.support.capture import Environment
from tests.support.remedies import ends_equal
from tests.support.roles import login
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import TableRule
from tidemark.findings import Finding
from tidemark.spark_submit.spark_connection import SparkConnection

pytestmark = pytest.mark.thorough

# What a finding says besides the SQL that it prints, by the words in which it says it.
STATEMENT = re.compile(r"\b(?:ALTER|CREATE) PUBLICATION\b[^;]*|\b(?:ALTER (?:TABLE|ROLE|SYSTEM)|GRANT)\b[^;(<]*")


def statements(finding: Finding) -> list[str]:
    """Of several ways the last one that is a whole statement."""
    found: list[str] = []
    for part in re.split(r"; ", re.sub(r" \((?:on|with|not|managed) [^()]*\)", "", finding.remedy)):
        ways = [match.group().strip(" .,") for way in part.split(", or ") for match in STATEMENT.finditer(way)]
        found += [way for way in ways if not way.endswith("INDEX")][-1:]
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "source", 18, **QUIET) as server:
        yield server


def with_defects(shop: Environment, role: str) -> None:
    """A server and tables of which nothing is as a capture needs it."""
    shop.execute(
        login(role, shop.source),
        "CREATE SCHEMA shop",
        "CREATE UNLOGGED TABLE shop.unlogged (id int PRIMARY KEY, note text)",
        "CREATE TABLE shop.deferred (id int PRIMARY KEY DEFERRABLE, note text)",
        "CREATE TABLE shop.secured (id int PRIMARY KEY, note text)",
        "ALTER TABLE shop.secured ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE shop.generated (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE shop.generated REPLICA IDENTITY FULL",
        "CREATE TABLE shop.sound (id int PRIMARY KEY, note text)",
        "ALTER SYSTEM SET wal_level = replica",
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        "ALTER SYSTEM SET synchronous_commit = local",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'",
        "ALTER SYSTEM SET idle_replication_slot_timeout = '1min'",
    )
    for table in ("unlogged", "deferred", "secured", "sound"):
        shop.execute(f"INSERT INTO shop.{table} VALUES (1, 'from before')")
    shop.execute("INSERT INTO shop.generated VALUES (1)")


def test_the_statements_of_all_findings_lead_to_a_run_that_ends_equal(
    new_environment: Callable[..., Environment], server: PostgresServer
) -> None:
    rules = tuple(
        TableRule(f"shop.{name}", line=3) for name in ("unlogged", "deferred", "secured", "sound", "genrated")
    )
    shop = new_environment("findings", rules, server=server)
    shop.config = replace(shop.config, schedule="*/5 * * * *")
    owner, role = shop.source, "capturing"
    with_defects(shop, role)
    shop.close()
    server.restart()
    shop.source = make_conninfo(owner, user=role)
    followed: set[str] = set()
    for _ in range(8):
        report = preflight(shop.task("preflight"), spark=SparkConnection("local[2]"))
        findings = [f for f in report.findings if f.severity != "note" and f.check != "backfill"]
        if not findings:
            break
        with psycopg.connect(owner, autocommit=True) as connection:
            for finding in findings:
                followed.add(finding.check)
                _follow(shop, finding, connection)
        server.restart()
    else:
        raise AssertionError("\n".join(map(str, findings)))
    assert followed == {
        "wal_level",
        "role",
        "synchronous_standby_names",
        "max_slot_wal_keep_size",
        "idle_replication_slot_timeout",
        "tables",
        "rights",
        "row_security",
        "replica_identity",
        "publication",
    }
    shop.run()
    shop.backfill()
    ends_equal(shop)
    assert set(judge.captured(shop)) == {
        f"shop.{name}" for name in ("unlogged", "deferred", "secured", "sound", "generated")
    }
    shop.close()


def _follow(shop: Environment, finding: Finding, owner: psycopg.Connection[tuple[object, ...]]) -> None:
    """As a person with the rights of the database's owner would, who reads no further than the remedy."""
    if finding.remedy.startswith("Follow the remedy of each table's finding"):
        return
    if meant := re.search(r"Did you mean ([\w.]+)\?", finding.remedy):
        (wrong,) = finding.tables
        others = tuple(rule for rule in shop.config.tables if not rule.matches(wrong))
        shop.config = replace(shop.config, tables=(*others, TableRule(meant[1], line=3)))
    elif bound := re.search(r"Set bounds\.(\w+) to (\d+) or less", finding.remedy):
        shop.with_bounds(**{bound[1]: int(bound[2])})
    elif finding.check == "synchronous_standby_names":
        owner.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby1'")
    elif finding.check == "idle_replication_slot_timeout":
        assert "(0 switches it off)" in finding.remedy
        owner.execute("ALTER SYSTEM SET idle_replication_slot_timeout = 0")
    elif "set manage_publication: false" in finding.remedy:
        shop.config = replace(shop.config, manage_publication=False)
        for statement in re.findall(r"run: ((?:ALTER|CREATE) PUBLICATION [^;]*)", finding.remedy):
            owner.execute(statement.encode())
    else:
        printed = statements(finding)
        assert printed, finding
        for statement in printed:
            owner.execute(statement.encode())
