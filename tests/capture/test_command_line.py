"""`python -m tidemark`: the same code as the DAGs', with connections from the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tidemark.__main__ import main
from tidemark.connections import Connection, look_up, parse
from tidemark.errors import ConnectionMissing
from tidemark.ledger import connection as ledger_sessions
from tidemark.ledger import tables


@pytest.fixture
def file(source: str, tmp_path: Path) -> Path:
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")
    path = tmp_path / "shop.yaml"
    path.write_text("pipeline: line\nsource: {connection: shop_source}\ntables: [shop.*]\nlake: lake\n")
    return path


@pytest.fixture
def connections(source: str, empty_ledger_database: str) -> Callable[[str], Connection]:
    def uri(conninfo: str) -> str:
        given = psycopg.conninfo.conninfo_to_dict(conninfo)
        return f"postgres://{given['user']}@{given['host']}:{given['port']}/{given['dbname']}"

    environment = {
        "AIRFLOW_CONN_SHOP_SOURCE": uri(source),
        "AIRFLOW_CONN_TIDEMARK_LEDGER": uri(empty_ledger_database),
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[*]"}',
    }
    return lambda wanted: look_up(wanted, environment=environment, ask_airflow=lambda _: None)


def test_preflight_status_and_unpark_of_a_pipeline(
    file: Path,
    connections: Callable[[str], Connection],
    empty_ledger_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["status", str(file)], look_up=connections) == 1
    assert "run the preflight task" in capsys.readouterr().err.lower()

    assert main(["preflight", str(file), "--look"], look_up=connections) == 0
    assert 'Would create slot "tidemark_line"' in capsys.readouterr().out
    assert main(["preflight", str(file)], look_up=connections) == 0
    assert 'Created slot "tidemark_line"' in capsys.readouterr().out

    assert main(["status", str(file)], look_up=connections) == 0
    shown = capsys.readouterr().out
    assert "generation  1, staged" in shown
    assert "shop.orders  merging" in shown

    with ledger_sessions.connect(empty_ledger_database) as ledger:
        tables.park(ledger, "line", "shop.orders", {"kind": "X", "move": "FIX_TARGET", "message": "It broke."})
    assert main(["status", str(file)], look_up=connections) == 1
    shown = capsys.readouterr().out
    assert "It broke." in shown
    assert f"python -m tidemark unpark {file} shop.orders" in shown

    assert main(["unpark", str(file), "shop.ordes"], look_up=connections) == 1
    assert "it has shop.orders" in capsys.readouterr().out
    left = file.parent / "lake" / "line" / "history" / "shop" / "orders" / "_delta_log"
    left.mkdir(parents=True)
    (left / "00000000000000000000.json").touch()
    assert main(["unpark", str(file), "shop.orders", "--anew"], look_up=connections) == 1
    assert "First remove line/history/shop/orders" in capsys.readouterr().out
    assert main(["unpark", str(file), "shop.orders"], look_up=connections) == 0
    assert main(["unpark", str(file), "shop.orders"], look_up=connections) == 1
    assert "is not parked" in capsys.readouterr().out
    assert main(["status", str(file)], look_up=connections) == 0


def test_findings_are_printed_and_make_the_exit_status(
    file: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("shop.*", "shop.ordrs"))
    assert main(["preflight", str(file)], look_up=connections) == 1
    assert "Did you mean shop.orders?" in capsys.readouterr().out


def test_a_spark_connection_that_is_missing_is_what_the_hook_makes_of_it(
    file: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    def without_spark(wanted: str) -> Connection:
        if wanted == "spark_default":
            raise ConnectionMissing(connection=wanted, variable="X")
        return connections(wanted)

    assert main(["preflight", str(file), "--look"], look_up=without_spark) == 1
    assert "--master yarn" in capsys.readouterr().out


def test_a_broken_file_and_an_unknown_connection_are_said(
    file: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("shop_source", "other"))
    assert main(["preflight", str(file)], look_up=connections) == 1
    assert "AIRFLOW_CONN_OTHER" in capsys.readouterr().err
    file.write_text("lake: x\n")
    assert main(["status", str(file)], look_up=connections) == 1
    assert f"{file}:1: " in capsys.readouterr().err


def test_a_source_that_is_away_leaves_the_ledgers_part_of_the_status(
    file: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(file)], look_up=connections) == 0

    def without_source(wanted: str) -> Connection:
        return parse(wanted, "postgres://x@127.0.0.1:1/x") if wanted == "shop_source" else connections(wanted)

    assert main(["status", str(file)], look_up=without_source) == 1
    shown = capsys.readouterr().out
    assert "cannot be reached" in shown
    assert "shop.orders  merging" in shown
