"""A whole run in which everything fails that quotes a row, under Airflow: no log, record or result holds the value.

What fails: a merge whose Delta table was given a constraint, and a backfill whose filter cannot read a value. Looked
through is all that Airflow printed, logged and keeps in its database, every table of the ledger, every plan and result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import FIRST_ORDERS, Shop, open_shop
from tidemark.formats import layout
from tidemark.names import TableName

MARKER = "hunter2-is-a-value-that-no-log-may-hold"

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.sound()
        opened.sql(FIRST_ORDERS)
        yield opened


def add_constraint(table: Path, constraint: str) -> None:
    """What ALTER TABLE … ADD CONSTRAINT writes, without a Spark of the test's own."""
    log = table / "_delta_log"
    versions = sorted(log.glob("*.json"))
    actions = [json.loads(line) for version in versions for line in version.read_text().splitlines()]
    protocol, metadata = ([a[kind] for a in actions if kind in a][-1] for kind in ("protocol", "metaData"))
    protocol["writerFeatures"] = [*protocol["writerFeatures"], "checkConstraints"]
    metadata["configuration"]["delta.constraints.short"] = constraint
    commit = log / f"{int(versions[-1].stem) + 1:020}.json"
    commit.write_text(json.dumps({"protocol": protocol}) + "\n" + json.dumps({"metaData": metadata}) + "\n")


def holding(conninfo: str) -> list[str]:
    """Tables of a database of which a row holds the marker, in whatever column."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        query = sql.SQL("SELECT EXISTS (SELECT FROM {} t WHERE strpos(t::text, {}) > 0)")
        holders = []
        for table in tables:
            row = connection.execute(query.format(sql.Identifier(*table), MARKER)).fetchone()
            if row and row[0]:
                holders.append(".".join(table))
    assert tables
    return holders


def files_holding(*folders: Path) -> list[Path]:
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert files
    return [file for file in files if MARKER.encode() in file.read_bytes()]


def test_no_trace_of_a_failed_run_holds_a_value(shop: Shop) -> None:
    first = shop.airflow.run("dags", "test", "shop_capture")
    assert first.returncode == 0, first.stdout[-6000:]
    lake = Path(shop.config.lake)
    add_constraint(lake / layout.current_table("shop", TableName.parse("shop.customers")), "length(email) < 30")
    shop.sql(f"INSERT INTO shop.customers VALUES (9000, '{MARKER}')")
    shop.sql(f"UPDATE shop.orders SET note = '{MARKER}' WHERE customer = 7")

    merged = shop.airflow.run("dags", "test", "shop_capture")
    assert "shop.customers: Spark could not merge shop.customers: DELTA_VIOLATE_CONSTRAINT_WITH_VALUES" in merged.stdout
    assert "DeltaInvariantViolationException" in merged.stdout, "where it failed is told"

    form = {"tables": ["shop.orders"], "row_filter": "id > 'no number'"}
    refused = shop.airflow.run("dags", "test", "shop_backfill", "--conf", json.dumps(form))
    assert refused.returncode != 0
    assert "RowFilterInvalid" in refused.stdout

    # One that reads all rows: what its chunks say of how far they are.
    whole = shop.airflow.run("dags", "test", "shop_backfill", "--conf", json.dumps({"tables": ["shop.orders"]}))
    assert "rows in" in whole.stdout

    with psycopg.connect(shop.source) as connection:
        keys = [str(key) for (key,) in connection.execute("SELECT id FROM shop.orders")]
    for run in (first, merged, refused, whole):
        assert MARKER not in run.stdout
        assert [key for key in keys if key in run.stdout] == []
    assert files_holding(shop.airflow.folder, lake / "shop" / "plans") == []
    assert holding(shop.airflow.metadata) == []
    assert holding(shop.ledger) == []
    assert files_holding(lake / "shop" / "current") != [], "it is looked for where it is, too"
