"""`tidemark tables`, `positions`, `plan`, `pause`, `resume`, `verify`, `doctor`: of a pipeline of many tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database, drop_database
from tests.support import many_tables
from tests.support.airflow_home import postgres_connection, spark_connection
from tidemark.__main__ import main
from tidemark.command_line import changing_commands
from tidemark.config.airflow_connections import Connection, look_up
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import open_ledger
from tidemark.lsn import Lsn

SHOP = """\
source: {connection: shop_source}
tables: ['*.*']
lake: ../lake
spark: {conf: {spark.driver.extraJavaOptions: -Dopen=sesame}}
"""

Type = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> Iterator[tuple[str, str]]:
    source, ledger = create_database(postgres, "source"), create_database(postgres, "ledger")
    many_tables.make(source, ledger)
    yield source, ledger
    many_tables.drop_slot(source)
    for database in (source, ledger):
        drop_database(postgres, database)


@pytest.fixture
def ledger(databases: tuple[str, str]) -> str:
    return databases[1]


@pytest.fixture
def tidemark(
    databases: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Type:
    """Type a command: its exit status, what it printed, and its errors."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "shop.yaml").write_text(SHOP)
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(folder))
    environment = {
        "AIRFLOW_CONN_SHOP_SOURCE": postgres_connection(databases[0]),
        "AIRFLOW_CONN_TIDEMARK_LEDGER": postgres_connection(databases[1]),
        "AIRFLOW_CONN_SPARK_DEFAULT": spark_connection(),
    }

    def find(connection: str) -> Connection:
        return look_up(connection, environment=environment, ask_airflow=lambda _: None)

    def type_(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments, look_up=find)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return type_


def line_of(table: str, shown: str) -> str:
    return next(line for line in shown.splitlines() if line.startswith(f"{table} "))


def test_tables_shows_every_table_on_a_line_of_its_own(tidemark: Type) -> None:
    code, shown, _ = tidemark("tables", "shop")
    assert code == 1
    assert len(shown.splitlines()) == 501
    assert "parked" in line_of("shop.orders", shown)
    assert "SchemaNotFollowed" in line_of("shop.orders", shown)
    assert "by anna" in line_of("shop.prices", shown)
    assert re.search(r"exact +[\d,]+ +1 h \d+ min ago", line_of("stock.visits", shown))
    assert many_tables.SCRIPT in shown


def test_tables_takes_a_pattern_and_a_state_and_ends_as_hard_as_the_worst_of_them(tidemark: Type) -> None:
    code, shown, _ = tidemark("tables", "shop", "shop.p*", "--json")
    rows = json.loads(shown)
    assert {row["name"].partition("_")[0] for row in rows} == {
        "shop.products",
        "shop.prices",
        "shop.payments",
        "shop.parcels",
    }
    assert code == 3
    assert tidemark("tables", "shop", "stock.visits")[0] == 0
    code, shown, _ = tidemark("tables", "shop", "--state", "parked", "--json")
    assert (code, [row["name"] for row in json.loads(shown)]) == (1, ["shop.orders"])


def test_tables_says_all_that_is_known_of_one(tidemark: Type) -> None:
    shown = tidemark("tables", "shop", "shop.orders")[1]
    assert "SchemaNotFollowed: The definition of table shop.orders changed" in shown
    assert "tidemark unpark" in shown
    assert re.search(r"did not fit +total \(9\)", shown)
    assert re.search(r'version 2 +column "currency" was added', shown)
    assert re.search(r"current +[\d,]+ rows, .* in \d+ file", shown)
    assert re.search(r"changes merged by +driver: 50 changes in 1 batch\n", shown)
    assert re.search(r"chunks merged by +files: 40 of their rows are new\n", shown)
    assert re.search(r"left to Spark +changes: driver: OSError\n", shown)


def test_a_name_that_is_none_is_answered_with_those_there_are(tidemark: Type) -> None:
    for command in (("tables",), ("pause",), ("resume",), ("unpark",), ("forget",), ("verify",)):
        code, _, said = tidemark(*command, "shop", "shop.oders")
        assert (code, "did you mean shop.orders?" in said) == (1, True)
        assert "and 480 more" in said
    code, _, said = tidemark("tables", "shopp")
    assert (code, "did you mean shop?" in said) == (1, True)


POSITIONS = ["confirmed", "applied", "staged", "source"]


def test_positions_shows_how_far_all_four_are_apart(tidemark: Type, databases: tuple[str, str]) -> None:
    code, shown, _ = tidemark("positions", "shop")
    assert code == 1
    assert [line.split()[0] for line in shown.splitlines()[1:5]] == POSITIONS
    assert "Not confirmed further for: billing.payments, shop.carts, stock.orders, stock.payments" in shown
    assert 'Slot "tidemark_shop" keeps' in shown
    at = json.loads(tidemark("positions", "shop", "--json")[1])["positions"]
    confirmed, applied, staged, source = (Lsn.parse(at[f"{name}_lsn"]) for name in POSITIONS)
    assert confirmed < applied < staged < source


def test_plan_shows_what_the_next_merge_takes_and_why_it_leaves_the_rest(tidemark: Type) -> None:
    code, shown, _ = tidemark("plan", "shop")
    assert code == 0
    assert "The next merge takes 258000 changes of 4 tables" in shown
    assert "it is parked (SchemaNotFollowed)" in line_of("shop.orders", shown)
    assert "it is paused by anna" in line_of("shop.prices", shown)
    parts: list[dict[str, Any]] = json.loads(tidemark("plan", "shop", "--json")[1])
    assert [(part["table"], part["batches"], part["why_not"]) for part in parts[:2]] == [
        ("billing.payments", 3, ""),
        ("shop.carts", 3, ""),
    ]


def test_a_table_is_paused_and_resumed_by_who_types(tidemark: Type, ledger: str) -> None:
    assert tidemark("pause", "shop", "shop.carts")[0] == 0
    with open_ledger(ledger, "shop") as book:
        row = tables.one(book, "shop.carts")
    assert row is not None
    assert row.life.is_paused
    assert row.paused_by == changing_commands.user_and_host()
    code, said, _ = tidemark("pause", "shop", "shop.carts")
    assert (code, "is paused already" in said) == (1, True)
    assert "it is paused" in line_of("shop.carts", tidemark("plan", "shop")[1])
    assert tidemark("resume", "shop", "shop.carts")[0] == 0
    code, said, _ = tidemark("resume", "shop", "shop.carts")
    assert (code, "is not paused (it is merging)" in said) == (1, True)
    code, said, _ = tidemark("pause", "shop", "shop.orders")
    assert (code, "is parked" in said) == (1, True)


def test_verify_triggers_the_dag_with_the_form_filled_in(
    tidemark: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = tmp_path / "airflow"
    airflow.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\nexit $AIRFLOW_EXIT\n')
    airflow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("AIRFLOW_EXIT", "0")
    assert tidemark("verify", "shop", "shop.carts", "--repair")[0] == 0
    *words, conf = (tmp_path / "called").read_text().splitlines()
    assert words == ["dags", "trigger", "shop_verify", "--conf"]
    assert json.loads(conf) == {"tables": ["shop.carts"], "share": "1", "repair": True}
    monkeypatch.setenv("AIRFLOW_EXIT", "1")
    assert tidemark("verify", "shop")[0] == 1
    airflow.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said, _ = tidemark("verify", "shop")
    assert (code, "airflow dags trigger shop_verify" in said) == (1, True)


def test_doctor_holds_what_a_report_needs_and_no_secret(tidemark: Type, databases: tuple[str, str]) -> None:
    code, shown, _ = tidemark("doctor", "shop", "--report")
    assert code == 0
    for needed in ("pyspark: ", "wal_level: logical", "migration: ", "last runs:", "SchemaNotFollowed"):
        assert needed in shown
    report = json.loads(tidemark("doctor", "shop", "--json")[1])
    assert report["connections"]["shop_source"]["given"] == ["host", "login", "password", "schema"]
    assert sum(report["status"]["tables"].values()) == 500
    parameters = conninfo_to_dict(databases[0])
    for text in (shown, json.dumps(report)):
        assert str(parameters["password"]) not in text
        assert str(parameters["dbname"]) not in text
        assert "sesame" not in text
        assert "spark.driver.extraJavaOptions" in text


def test_status_as_json_is_what_the_page_draws(tidemark: Type) -> None:
    code, shown, _ = tidemark("status", "shop", "--json")
    status = json.loads(shown)
    assert (code, status["health"]) == (1, "red")
    assert status["dags"]["verify"] == "shop_verify"
    assert status["backfills"][0]["share"] == pytest.approx(28 / 48)
    assert status["queue"]["tables"] == 6
    by_name = {row["name"]: row for row in status["tables"]}
    assert by_name["shop.orders"]["error"]["kind"] == "SchemaNotFollowed"
    assert by_name["people.customers"]["differences"].startswith("verify v7")
    assert by_name["people.customers"]["state"] == "differs"
