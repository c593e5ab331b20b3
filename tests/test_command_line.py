"""`tidemark`: the same code as the DAGs', with connections from the environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.migrations import NEWER, newer_version
from tests.support.runs import has_run
from tidemark.__main__ import READER_IS_GONE, main
from tidemark.capture import pg_upgrade
from tidemark.config.airflow_connections import Connection, look_up, parse
from tidemark.errors import ConnectionMissing
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import migrations
from tidemark.ledger.captured import backfill_marks, merge_states
from tidemark.ledger.connection import open_ledger


@pytest.fixture
def file(source: str, tmp_path: Path) -> Path:
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")
    path = tmp_path / "shop.yaml"
    path.write_text("pipeline: line\nsource: {connection: shop_source}\ntables: [shop.*]\nlake: lake\n")
    return path


def as_uri(conninfo: str) -> str:
    parameters = psycopg.conninfo.conninfo_to_dict(conninfo)
    login = f"{parameters['user']}:{parameters['password']}"
    return f"postgres://{login}@{parameters['host']}:{parameters['port']}/{parameters['dbname']}"


@pytest.fixture
def connections(source: str, empty_ledger_database: str) -> Callable[[str], Connection]:
    environment = {
        "AIRFLOW_CONN_SHOP_SOURCE": as_uri(source),
        "AIRFLOW_CONN_TIDEMARK_LEDGER": as_uri(empty_ledger_database),
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[*]"}',
    }
    return lambda wanted: look_up(wanted, environment=environment, ask_airflow=lambda _: None)


def test_preflight_sees_which_jars_spark_would_be_given(
    file: Path,
    connections: Callable[[str], Connection],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("TIDEMARK_SPARK_JARS", raising=False)
    assert main(["preflight", str(file), "--look"], look_up=connections) == 0
    assert "Spark may lack the jars for Delta Lake" in capsys.readouterr().out

    (tmp_path / "delta-spark_1.jar").touch()
    monkeypatch.setenv("TIDEMARK_SPARK_JARS", str(tmp_path))
    assert main(["preflight", str(file), "--look"], look_up=connections) == 0
    assert "Delta Lake" not in capsys.readouterr().out

    monkeypatch.setenv("TIDEMARK_SPARK_JARS", str(tmp_path / "gone.jar"))
    assert main(["preflight", str(file), "--look"], look_up=connections) == 1
    assert "jars that are not there" in capsys.readouterr().out


def test_preflight_status_and_unpark_of_a_pipeline(
    file: Path,
    connections: Callable[[str], Connection],
    empty_ledger_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["status", str(file)], look_up=connections) == 3
    shown = capsys.readouterr().out
    assert "pipeline line: it is new" in shown
    assert "[x] connections: they answer" in shown
    assert '[ ] slot: "tidemark_line". Un-pause line_capture in Airflow, or: tidemark run ' in shown

    assert main(["preflight", str(file), "--look"], look_up=connections) == 0
    assert 'Would create slot "tidemark_line"' in capsys.readouterr().out
    assert main(["preflight", str(file)], look_up=connections) == 0
    assert 'Created slot "tidemark_line"' in capsys.readouterr().out
    assert main(["preflight", str(file), "--staging-is-lost"], look_up=connections) == 0
    assert "generation.json exists: nothing was written again" in capsys.readouterr().out

    assert main(["status", str(file)], look_up=connections) == 3
    assert "[ ] capture: line_capture has not run yet" in capsys.readouterr().out
    has_run(empty_ledger_database)
    assert main(["status", str(file)], look_up=connections) == 0
    shown = capsys.readouterr().out
    assert "pipeline line: nothing needs anybody" in shown
    assert "[ ] first proof: nothing is proven yet. tidemark verify" in shown
    assert "generation 1, staged" in shown
    assert "tables  1: 1 exact" in shown
    assert main(["status", "--all", str(file)], look_up=connections) == 0
    assert "shop.orders  exact" in capsys.readouterr().out

    with open_ledger(empty_ledger_database, "line") as ledger:
        merge_states.park(ledger, "shop.orders", ErrorRecord("X", "FIX_TARGET", "It broke."))
    assert main(["status", str(file)], look_up=connections) == 1
    shown = capsys.readouterr().out
    assert "It broke." in shown
    assert f"tidemark unpark {file} shop.orders" in shown

    assert main(["unpark", str(file), "shop.ordes"], look_up=connections) == 1
    assert "did you mean shop.orders?" in capsys.readouterr().err
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
    def without_spark(name: str) -> Connection:
        if name == "spark_default":
            raise ConnectionMissing(connection=name, variable="X")
        return connections(name)

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


@pytest.mark.parametrize("away", ["shop_source", "tidemark_ledger", "no such source", "no such ledger", "the lake"])
def test_status_answers_whatever_is_away_and_says_what_it_could_not_see(
    file: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str], away: str
) -> None:
    assert main(["preflight", str(file)], look_up=connections) == 0
    lost = {"no such source": "shop_source", "no such ledger": "tidemark_ledger"}

    def without(name: str) -> Connection:
        if name == lost.get(away):
            raise ConnectionMissing(connection=name, variable="X")
        return parse(name, "postgres://x@127.0.0.1:1/x") if name == away else connections(name)

    if away == "the lake":
        shutil.rmtree(file.parent / "lake")
    capsys.readouterr()
    assert main(["status", "--all", str(file)], look_up=without) == 1
    shown = capsys.readouterr().out
    assert shown.count("cannot be seen:") == 1
    what = "lake" if away == "the lake" else "ledger" if "ledger" in away else "source"
    assert f"The {what} cannot be seen: " in shown
    assert ("confirmed 0/" in shown) == (what != "source")
    assert ("shop.orders  exact" in shown) == (what != "ledger")
    assert ("tables  1: 1 exact" in shown) == (what != "ledger")
    assert main(["status", "--json", str(file)], look_up=without) == 1
    assert list(json.loads(capsys.readouterr().out)["unseen"]) == [what]


def test_the_status_of_many_tables_fits_a_screen(
    file: Path,
    source: str,
    connections: Callable[[str], Connection],
    empty_ledger_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with psycopg.connect(source, autocommit=True) as connection:
        for n in range(129):
            connection.execute(f"CREATE TABLE shop.table_with_a_longer_name_{n:03} (id int PRIMARY KEY)".encode())
        connection.execute("CREATE TABLE shop.odd (id int PRIMARY KEY, _op text)")
    assert main(["preflight", str(file)], look_up=connections) == 1
    capsys.readouterr()
    assert main(["status", str(file)], look_up=connections) == 1
    shown = capsys.readouterr().out
    assert "tables  131: 130 exact, 1 not captured" in shown
    assert "shop.odd" in shown
    assert len(shown) < 1500
    with open_ledger(empty_ledger_database, "line") as ledger:
        for n in range(100):
            error = ErrorRecord("TargetDiffers", "FIX_TARGET", f"Table {n} broke, and that is long." * 9)
            merge_states.park(ledger, f"shop.table_with_a_longer_name_{n:03}", error)
        for n in range(100, 129):
            table = f"shop.table_with_a_longer_name_{n:03}"
            backfill_marks.mark(ledger, table, backfill_marks.GAP, "changes are gone")
    assert main(["status", str(file)], look_up=connections) == 1
    shown = capsys.readouterr().out
    assert "130 things need somebody" in shown
    assert "tables  131: 1 exact, 29 needs a backfill, 1 not captured, 100 parked" in shown
    assert "and 9 more: changes are gone" in shown
    assert "99 more" in shown
    assert len(shown) < 4000
    assert len(shown.splitlines()) < 30
    assert main(["status", "--all", str(file)], look_up=connections) == 1
    shown = capsys.readouterr().out
    assert all(f"table_with_a_longer_name_{n:03}" in shown for n in range(129))
    assert main(["status", "--json", str(file)], look_up=connections) == 1
    assert len(json.loads(capsys.readouterr().out)["tables"]) == 130


def test_a_pipeline_that_does_not_run_needs_somebody(
    file: Path, connections: Callable[[str], Connection], empty_ledger_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(file)], look_up=connections) == 0
    has_run(empty_ledger_database)
    assert main(["status", str(file)], look_up=connections) == 0
    with open_ledger(empty_ledger_database, "line") as ledger:
        ago = "clock_timestamp() - interval '1 day'"
        ledger.execute(f"UPDATE tidemark.generations SET opened_at = {ago}, heartbeat_at = {ago}".encode())
    assert main(["status", str(file)], look_up=connections) == 1
    assert "line_capture does not run, or its runs fail" in capsys.readouterr().out


def test_a_slot_that_is_gone_needs_somebody(
    file: Path, source: str, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(file)], look_up=connections) == 0
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot('tidemark_line')")
    assert main(["status", str(file)], look_up=connections) == 1
    assert (
        'The replication slot "tidemark_line" does not exist at the source. Run the capture' in capsys.readouterr().out
    )


def test_the_word_that_pg_upgrade_ran_is_checked_and_a_verify_with_repair_follows(
    file: Path,
    connections: Callable[[str], Connection],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["preflight", str(file)], look_up=connections) == 0
    capsys.readouterr()
    assert main(["upgraded", str(file)], look_up=connections) == 1
    refused = capsys.readouterr().out
    assert "so it is the captured one" in " ".join(refused.split())
    assert "line_verify" not in refused

    monkeypatch.setattr(pg_upgrade, "continue_upgraded", lambda *_, **__: ("Generation 2 continues.", True))
    monkeypatch.setenv("PATH", "")
    assert main(["upgraded", str(file)], look_up=connections) == 1, "the verify is still to be started"
    said = capsys.readouterr().out
    assert "Generation 2 continues." in said
    assert """airflow dags trigger line_verify --conf '{"tables": [], "share": "1", "repair": true}'""" in said


def test_the_script_of_the_event_trigger_is_what_preflight_accepts(
    file: Path, source: str, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> bool:
        main(["preflight", str(file), "--look"], look_up=connections)
        return "event trigger that writes definitions into the stream is not trusted" in capsys.readouterr().out

    assert main(["trigger", str(file), "--sql"], look_up=connections) == 0
    script = capsys.readouterr().out
    with psycopg.connect(source, autocommit=True) as superuser:
        superuser.execute(script.encode())
        superuser.execute(script.encode())  # a second time puts it in the first one's place
        assert not said()
        superuser.execute("ALTER EVENT TRIGGER ddl_tidemark_line_end DISABLE")
        assert said()
        assert main(["trigger", str(file), "--sql", "--remove"], look_up=connections) == 0
        superuser.execute(capsys.readouterr().out.encode())
        assert not said()
        assert superuser.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)


def test_a_table_that_is_captured_no_more_can_be_forgotten_and_another_one_has_its_name(
    file: Path,
    source: str,
    connections: Callable[[str], Connection],
    empty_ledger_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def status() -> str:
        main(["status", "--all", str(file)], look_up=connections)
        return capsys.readouterr().out

    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        assert main(["preflight", str(file)], look_up=connections) == 0
        assert main(["forget", str(file), "shop.lines"], look_up=connections) == 1
        assert "shop.lines is captured" in capsys.readouterr().out
        with open_ledger(empty_ledger_database, "line") as ledger:
            merge_states.park(ledger, "shop.lines", ErrorRecord("X", "RETRY", "It broke."))
        connection.execute("DROP TABLE shop.lines")
        assert main(["preflight", str(file)], look_up=connections) == 0
        assert "shop.lines   not captured" in status()
        assert main(["forget", str(file), "shop.lines"], look_up=connections) == 0
        assert "Its Delta tables line/current/shop/lines" in capsys.readouterr().out
        assert "shop.lines" not in status()
        with open_ledger(empty_ledger_database, "line") as ledger:
            assert "shop.lines" not in merge_states.due(ledger, -1)
        assert main(["forget", str(file), "shop.lines"], look_up=connections) == 1
        assert "has no table shop.lines" in capsys.readouterr().err
        connection.execute("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        assert main(["preflight", str(file)], look_up=connections) == 0
        shown = status()
        assert "shop.lines~2  exact" in shown
        assert "parked" not in shown


def test_a_table_that_the_file_names_is_not_forgotten(
    file: Path, source: str, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("shop.*", "shop.orders, shop.lines"))
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        assert main(["preflight", str(file)], look_up=connections) == 0
        connection.execute("DROP TABLE shop.lines")
    assert main(["preflight", str(file)], look_up=connections) == 1
    capsys.readouterr()
    assert main(["forget", str(file), "shop.lines"], look_up=connections) == 1
    assert "The file names shop.lines in line 3: take it out first" in capsys.readouterr().out
    file.write_text(file.read_text().replace(", shop.lines", ""))
    assert main(["preflight", str(file)], look_up=connections) == 0
    assert main(["forget", str(file), "shop.lines"], look_up=connections) == 0
    assert main(["status", str(file)], look_up=connections) == 3, "it is new"


def test_migrate_says_from_where_to_where_and_refuses_a_newer_ledger(
    file: Path,
    connections: Callable[[str], Connection],
    empty_ledger_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["migrate", str(file)], look_up=connections) == 0
    assert f"was brought from nothing to version {NEWER - 1}." in capsys.readouterr().out

    with newer_version():
        assert main(["preflight", str(file), "--look"], look_up=connections) == 0
        looked = capsys.readouterr().out
        assert f"Would bring the ledger's schema from version {NEWER - 1} to version {NEWER}" in looked
        assert main(["migrate", str(file), "--look"], look_up=connections) == 3
        assert f"would be brought from version {NEWER - 1} to version {NEWER}." in capsys.readouterr().out
        assert main(["migrate", str(file), "--connection", "nobody_s"], look_up=connections) == 1
        assert "AIRFLOW_CONN_NOBODY_S" in capsys.readouterr().err
        with psycopg.connect(empty_ledger_database) as ledger:
            assert migrations.version(ledger) == NEWER - 1

        assert main(["preflight", str(file)], look_up=connections) == 0
        brought = capsys.readouterr().out
        assert f"Brought the ledger's schema from version {NEWER - 1} to version {NEWER}" in brought
        assert main(["migrate", str(file)], look_up=connections) == 0
        assert f"is at version {NEWER}: nothing to do" in capsys.readouterr().out

    with psycopg.connect(empty_ledger_database) as ledger:
        ledger.execute("INSERT INTO tidemark.migrations (number) VALUES (999)")
    for command in (["migrate"], ["migrate", "--look"], ["positions"], ["pause"]):
        table = ["shop.orders"] if command == ["pause"] else []
        assert main([command[0], str(file), *command[1:], *table], look_up=connections) == 1
        assert "is at version 999" in "".join(capsys.readouterr())
    assert main(["preflight", str(file)], look_up=connections) == 1
    assert "newer Tidemark has migrated it" in capsys.readouterr().out


def test_whoever_reads_the_first_lines_alone_gets_no_traceback(
    file: Path, source: str, empty_ledger_database: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {
        **os.environ,
        "AIRFLOW_CONN_SHOP_SOURCE": as_uri(source),
        "AIRFLOW_CONN_TIDEMARK_LEDGER": as_uri(empty_ledger_database),
    }
    with os.fdopen(writer, "wb") as output:
        status = subprocess.run(
            [sys.executable, "-m", "tidemark", "status", str(file)],
            env=environment,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (status.returncode, status.stderr) == (READER_IS_GONE, "")
