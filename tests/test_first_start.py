"""From nothing to a pipeline: `init`, the SQL for the source's administrator, `doctor`, and what starts DAGs."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.runs import a_run
from tests.test_command_line import as_uri
from tidemark.__main__ import STOPPED_BY_HAND, main
from tidemark.capture.preflight import airflow_findings
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.command_line import init_command
from tidemark.config.airflow_connections import Connection, look_up
from tidemark.config.file_reader import load
from tidemark.source.grants_sql import grants_sql


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "pipelines"))
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    return tmp_path


@pytest.fixture
def connections(source: str, empty_ledger_database: str) -> Callable[[str], Connection]:
    environment = {
        "AIRFLOW_CONN_SHOP_SOURCE": as_uri(source),
        "AIRFLOW_CONN_TIDEMARK_LEDGER": as_uri(empty_ledger_database),
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[*]"}',
    }
    return lambda wanted: look_up(wanted, environment=environment, ask_airflow=lambda _: None)


@pytest.fixture
def shop(place: Path, source: str, connections: Callable[[str], Connection]) -> str:
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")
    arguments = ["init", "shop", "--source", "shop_source", "--tables", "shop.*", "--lake", str(place / "lake")]
    assert main(arguments, look_up=connections) == 0
    return "shop"


def test_init_writes_a_pipeline_that_loads_and_overwrites_nothing(
    shop: str, place: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    config = load(place / "pipelines" / "shop.yaml")
    assert (config.source_connection, config.auto_backfill) == ("shop_source", True)
    assert [rule.pattern for rule in config.tables] == ["shop.*"]
    assert "pipeline_dags()" in (place / "dags" / "tidemark_pipelines.py").read_text()
    assert "DO $tidemark$" in (place / "pipelines" / "shop.sql").read_text()
    before = (place / "pipelines" / "shop.yaml").read_text()
    again = ["init", "shop", "--source", "other", "--tables", "a.b", "--lake", "/l"]
    assert main(again, look_up=connections) == 1
    assert "is there already" in capsys.readouterr().out
    assert (place / "pipelines" / "shop.yaml").read_text() == before


def test_what_no_option_says_is_asked_on_a_terminal_alone(
    place: Path,
    connections: Callable[[str], Connection],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    assert main(["init", "shop"], look_up=connections) == 2
    assert "--tables is missing" in capsys.readouterr().out
    assert not (place / "pipelines").exists()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    answers = iter(["", "shop.* public.orders", "/lake"])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    assert main(["init", "shop"], look_up=connections) == 0
    config = load(place / "pipelines" / "shop.yaml")
    assert config.source_connection == "shop_source"
    assert [rule.pattern for rule in config.tables] == ["shop.*", "public.orders"]


def test_a_pipeline_that_cannot_be_is_not_left_behind(
    place: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["init", "shop", "--source", "s", "--tables", "no schema", "--lake", "/l"]
    assert main(arguments, look_up=connections) == 1
    assert "Nothing was written." in capsys.readouterr().out
    assert not list(place.rglob("*.yaml"))


def test_whoever_stops_at_a_question_gets_no_traceback(
    place: Path, connections: Callable[[str], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", stopped)
    assert main(["init", "shop"], look_up=connections) == STOPPED_BY_HAND
    assert not list(place.iterdir())


@pytest.mark.parametrize("name", ["a/b", "../shop", "", "my shop", "shöp"])
def test_a_name_that_no_pipeline_can_have_is_refused_before_anything_is_asked(
    place: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["init", name], look_up=connections) == 2
    assert "A pipeline's name has letters" in capsys.readouterr().out
    assert not list(place.iterdir())


def test_a_pipeline_of_any_name_gets_a_slot_that_postgresql_accepts(
    place: Path, connections: Callable[[str], Connection]
) -> None:
    arguments = ["init", "Shop-EU", "--source", "s", "--tables", "shop.*", "--lake", "/l"]
    assert main(arguments, look_up=connections) == 0
    config = load(place / "pipelines" / "Shop-EU.yaml")
    assert (config.slot, config.publication) == ("tidemark_shop_eu", "tidemark_shop_eu")


def test_sql_that_somebody_wrote_is_not_overwritten(
    place: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "pipelines").mkdir()
    (place / "pipelines" / "shop.sql").write_text("-- ours")
    arguments = ["init", "shop", "--source", "s", "--tables", "shop.*", "--lake", "/l"]
    assert main(arguments, look_up=connections) == 1
    assert "shop.sql is there already; nothing was written" in capsys.readouterr().out
    assert [path.name for path in place.rglob("*") if path.is_file()] == ["shop.sql"]
    assert (place / "pipelines" / "shop.sql").read_text() == "-- ours"


@pytest.mark.parametrize("taken", ["pipelines", "dags"])
def test_a_folder_that_cannot_be_written_is_named_and_no_file_is_left(
    place: Path, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str], taken: str
) -> None:
    (place / taken).write_text("a file")
    arguments = ["init", "shop", "--source", "s", "--tables", "shop.*", "--lake", "/l"]
    assert main(arguments, look_up=connections) == 1
    assert f"{place / taken} cannot be written: File exists. Nothing was written." in capsys.readouterr().out
    assert [path.name for path in place.rglob("*") if path.is_file()] == [taken]


@pytest.fixture
def owner(source: str) -> Iterator[str]:
    """Owns the tables of a schema, and is no superuser."""
    name = f"Shop owner {secrets.token_hex(3)}"
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
        connection.execute(sql.SQL("GRANT ALL ON SCHEMA shop TO {}").format(sql.Identifier(name)))
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(name)))
        connection.execute('CREATE TABLE shop."Line items" (id int PRIMARY KEY)')
    yield name
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("DROP SCHEMA shop CASCADE")
        connection.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(sql.Identifier(name)))


def test_the_sql_for_the_administrator_is_all_that_a_role_needs(
    place: Path, source: str, empty_ledger_database: str, owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    role = f"tide's mark {secrets.token_hex(3)}"
    there = conninfo_to_dict(source)
    as_role = Connection(
        "shop_source", "postgres", there["host"], role, str(there["password"]), int(there["port"]), there["dbname"]
    )
    arguments = ["init", "shop", "--source", "shop_source", "--tables", "s[h]o?.*", "--lake", str(place / "lake")]
    assert main(arguments, look_up=lambda _: as_role) == 0
    script = (place / "pipelines" / "shop.sql").read_text()
    capsys.readouterr()
    assert main(["preflight", "shop", "--sql"], look_up=lambda _: as_role) == 0
    assert capsys.readouterr().out == script
    with psycopg.connect(source, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(script.encode())
        password = sql.Literal(there["password"])
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), password))
    try:
        run = a_run(load(place / "pipelines" / "shop.yaml"), source=as_role.conninfo(), ledger=empty_ledger_database)
        report = preflight(run)
        report.raise_for_errors()
        assert report.table_errors == ()
    finally:
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot('tidemark_shop')")
            connection.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(sql.Identifier(role)))


def test_no_superuser_is_lent_to_the_role(shop: str, place: Path, source: str) -> None:
    """Its tables can be read, and the publication is made by whoever may."""
    role = f"tidemark_{secrets.token_hex(3)}"
    notices: list[str] = []
    with psycopg.connect(source, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute(grants_sql(load(place / "pipelines" / "shop.yaml"), role).encode())
        member = connection.execute(
            "SELECT count(*) FROM pg_auth_members WHERE member = %s::regrole", (role,)
        ).fetchone()
        connection.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(sql.Identifier(role)))
    assert member == (0,)
    assert any("create the publication yourself" in notice for notice in notices)


def test_doctor_says_a_line_for_each_thing_and_changes_nothing(
    shop: str,
    source: str,
    empty_ledger_database: str,
    connections: Callable[[str], Connection],
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    main(["doctor", shop], look_up=connections)
    said = capsys.readouterr().out
    for what in ("Python", "Airflow", "Java", "Spark", "Delta's jars", "pipeline files", "connection shop_source"):
        assert any(line.startswith(what) for line in said.splitlines()), said
    assert "Would bring the ledger's schema from nothing" in said
    for conninfo, query in (
        (empty_ledger_database, "SELECT count(*) FROM pg_namespace WHERE nspname = 'tidemark'"),
        (source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tidemark_shop'"),
        (source, "SELECT count(*) FROM pg_publication WHERE pubname = 'tidemark_shop'"),
    ):
        with psycopg.connect(conninfo) as connection:
            assert connection.execute(query.encode()).fetchone() == (0,)
    assert main(["preflight", shop], look_up=connections) == 0
    capsys.readouterr()
    main(["doctor", shop], look_up=connections)
    said = capsys.readouterr().out
    assert [
        line.split()[:2] for line in said.splitlines() if line.startswith(("source", "slot", "ledger", "lake"))
    ] == [
        ["source", "ok"],
        ["ledger", "ok"],
        ["lake", "ok"],
        ["slot", "ok"],
    ]


def test_doctor_says_what_is_wrong_with_a_connection(
    shop: str, connections: Callable[[str], Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    def with_wrong(name: str) -> Connection:
        return Connection(name, "mysql") if name == "shop_source" else connections(name)

    assert main(["doctor", shop], look_up=with_wrong) == 1
    _, wrong = capsys.readouterr().out.split("connection shop_source")
    line, remedy, *_ = wrong.splitlines()
    assert "WRONG" in line
    assert "its type is 'mysql', not postgres" in line
    assert "Correct it in Airflow" in remedy


def test_doctor_of_a_machine_needs_no_pipeline(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(place / "nothing"))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert f"JAVA_HOME says {place}/nothing" in said
    assert "Install Java 17" in said
    assert "tidemark init" in said


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ("3.2.2", "Airflow  ok       Airflow 3.2.2 lacks what a later version has: a run that another DAG triggers"),
        ("3.0.6", "Airflow  WRONG    This is Airflow 3.0.6; Tidemark runs on 3.1 and later"),
    ],
)
def test_doctor_names_what_an_older_airflow_lacks(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: str, expected: str
) -> None:
    monkeypatch.setattr(airflow_findings, "installed_airflow", lambda: installed)
    main(["doctor"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Airflow")]
    assert " ".join(line.split()).startswith(" ".join(expected.split()))


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Airflow's command, which notes what it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "airflow").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {folder}/told\n")
    (folder / "airflow").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "told"


@pytest.mark.parametrize(
    ("arguments", "dag", "conf"),
    [
        (["run", "shop"], "shop_capture", None),
        (["backfill", "shop"], "shop_backfill", None),
        (["backfill", "shop", "shop.orders"], "shop_backfill", {"tables": ["shop.orders"]}),
        (["replay", "shop", "rebuild", "shop.orders"], "shop_replay", {"step": "rebuild", "tables": ["shop.orders"]}),
        (
            ["replay", "shop", "as-of", "shop.orders", "--moment", "0/1"],
            "shop_replay",
            {"step": "as_of", "tables": ["shop.orders"], "moment": "0/1"},
        ),
    ],
)
def test_a_dag_is_started_by_airflows_own_command(
    shop: str,
    connections: Callable[[str], Connection],
    airflow: Path,
    arguments: list[str],
    dag: str,
    conf: dict[str, object] | None,
) -> None:
    assert main(["preflight", shop], look_up=connections) == 0
    assert main(arguments, look_up=connections) == 0
    told = airflow.read_text().splitlines()
    assert told[:3] == ["dags", "trigger", dag]
    assert (json.loads(told[4]) if told[3:] else None) == conf


def test_a_table_that_is_not_there_starts_nothing(
    shop: str, connections: Callable[[str], Connection], airflow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", shop], look_up=connections) == 0
    assert main(["backfill", shop, "shop.ordes"], look_up=connections) == 1
    assert "did you mean shop.orders?" in capsys.readouterr().err
    assert main(["replay", shop, "as-of", "shop.orders"], look_up=connections) == 2
    assert not airflow.exists()


def test_a_word_that_is_no_command_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["statsu", "shop"])
    assert ended.value.code == 2
    assert "did you mean status?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("tidemark ")


def test_pipelines_are_listed_with_what_is_wrong_with_a_file(
    shop: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["pipelines", "--names"]) == 0
    assert capsys.readouterr().out == "shop\n"
    (place / "pipelines" / "broken.yaml").write_text("lake: x\n")
    assert main(["pipelines"]) == 1
    said = capsys.readouterr().out
    assert "shop.*" in said
    assert "broken.yaml:1" in said


def test_a_shell_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in words)
        command = (
            f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _tidemark; echo ${{COMPREPLY[@]}}"
        )
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout.split()

    assert completed("tidemark", "pre") == ["preflight"]
    assert set(completed("tidemark", "preflight", "--")) >= {"--look", "--sql"}
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "preflight" in capsys.readouterr().out


def test_status_is_shown_again_until_somebody_stops_it(
    shop: str,
    connections: Callable[[str], Connection],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["preflight", shop], look_up=connections) == 0
    capsys.readouterr()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("tidemark.command_line.showing_commands.time.sleep", wait)
    assert main(["status", shop, "--watch", "7"], look_up=connections) == 3
    assert capsys.readouterr().out.count("pipeline shop:") == 2
    assert waits == [7, 7]


def test_the_role_of_the_sql_is_that_of_the_connection(shop: str, place: Path, source: str) -> None:
    config = load(place / "pipelines" / "shop.yaml")
    assert (
        init_command.source_role(config, lambda name: look_up(name, environment={}, ask_airflow=lambda _: None))
        == "tidemark"
    )
    assert init_command.source_role(config, lambda name: Connection(name, "postgres", login="reader")) == "reader"
