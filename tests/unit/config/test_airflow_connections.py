"""Connections of the environment and of Airflow's command line are read as Airflow reads them, and say no secret."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tidemark.config.airflow_connections import look_up, parse
from tidemark.errors import ConnectionInvalid, ConnectionMissing
from tidemark.spark_submit.spark_connection import SparkConnection

JSON = (
    '{"conn_type": "postgres", "host": "db", "login": "u", "password": "p@ :/", "port": 5433, "schema": "shop", '
    '"extra": {"sslmode": "require", "cursor": "dictcursor"}}'
)
URI = "postgres://u:p%40%20%3A%2F@db:5433/shop?__extra__=%7B%22sslmode%22%3A+%22require%22%7D"


@pytest.mark.parametrize("value", [JSON, URI, "postgresql://u:p%40%20%3A%2F@db:5433/shop?sslmode=require&cursor=x"])
def test_json_and_uri_give_one_connection_string(value: str) -> None:
    assert conninfo_to_dict(parse("c", value).conninfo()) == {
        "host": "db",
        "port": "5433",
        "user": "u",
        "password": "p@ :/",
        "dbname": "shop",
        "sslmode": "require",
    }


def test_several_hosts_with_a_port_each_are_one_connection() -> None:
    value = (
        '{"conn_type": "postgres", "host": "db1,db2", "port": 5432, "login": "u", "schema": "shop", '
        '"extra": {"port": "5432,5433", "target_session_attrs": "read-write"}}'
    )
    assert conninfo_to_dict(parse("c", value).conninfo()) == {
        "host": "db1,db2",
        "port": "5432,5433",
        "user": "u",
        "dbname": "shop",
        "target_session_attrs": "read-write",
    }


def test_a_socket_folder_is_a_host() -> None:
    assert conninfo_to_dict(parse("c", "postgres://u@%2Fvar%2Frun/shop").conninfo())["host"] == "/var/run"


@pytest.mark.parametrize(
    ("value", "master"),
    [
        ('{"conn_type": "spark", "host": "local[*]"}', "local[*]"),
        ('{"conn_type": "spark", "host": "spark://m", "port": 7077}', "spark://m:7077"),
        ("spark://m:7077", "spark://m:7077"),
        ('{"conn_type": "spark", "host": "yarn"}', "yarn"),
    ],
)
def test_the_master_is_the_one_of_the_spark_hook(value: str, master: str) -> None:
    assert parse("c", value).spark_connection().master == master


def test_deploy_mode_and_program_are_those_of_the_spark_hook() -> None:
    extra = '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster", "spark-binary": "%s"}}'
    assert parse("c", extra % "spark3-submit").spark_connection() == SparkConnection("yarn", "cluster", "spark3-submit")
    assert "may be spark-submit or" in parse("c", extra % "my-submit").spark_connection().refused


def test_the_environment_comes_before_airflow() -> None:
    connection = look_up(
        "shop_source", environment={"AIRFLOW_CONN_SHOP_SOURCE": JSON}, ask_airflow=lambda _: pytest.fail("asked")
    )
    assert connection.schema == "shop"
    assert look_up("c", environment={}, ask_airflow=lambda _: URI).schema == "shop"


ANSWER = json.dumps([{"id": "1", "conn_id": "c", "extra_dejson": {"a": "[{"}, "get_uri": URI}])


@pytest.mark.parametrize(
    "printed",
    [
        ANSWER,
        f"[2026-01-02T03:04:05] a line before\n{ANSWER}\na line behind it",
        f'[{{a plugin}}] says [{{"its": "own"}}]\n{ANSWER}\n[{{}}]',
        f"{'[{' * 9}\n{ANSWER}",
    ],
)
def test_airflow_may_print_lines_around_its_answer(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints(printed, tmp_path, monkeypatch)
    assert look_up("c", environment={}).schema == "shop"


@pytest.mark.parametrize("printed", ["", "[]", ANSWER[:-9], "[{}]", "[{" * 1000, '[{"a":' * 1000, "[{\n}, 7]"])
def test_an_answer_that_cannot_be_read_is_no_connection(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints(printed, tmp_path, monkeypatch)
    with pytest.raises(ConnectionMissing):
        look_up("c", environment={})


def prints(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program `airflow` on the PATH that prints the text, for any arguments."""
    (folder / "answer").write_text(text)
    program = folder / "airflow"
    program.write_text(f"#!/bin/sh\ncat '{folder}/answer'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_an_unknown_connection_says_where_to_add_it() -> None:
    with pytest.raises(ConnectionMissing, match="AIRFLOW_CONN_SHOP_SOURCE"):
        look_up("shop_source", environment={}, ask_airflow=lambda _: None)


@pytest.mark.parametrize(
    "value",
    [
        '{"conn_type": "postgres", "password": "hunter2"',
        '{"port": "hunter2"}',
        '{"conn_type": "postgres", "extra": "{hunter2"}',
        '{"conn_type": "postgres", "extra": ["hunter2"]}',
        "spark://local[*]",
        "postgres://u:hunter2/x@h:5432/d",  # "Port could not be cast to integer value as …", says Python
        "postgres://u:p@h/d?__extra__=%7Bhunter2",
        "postgres://u:p@h/d?__extra__=%5B%22hunter2%22%5D",
    ],
)
def test_an_unreadable_connection_does_not_show_itself(value: str) -> None:
    with pytest.raises(ConnectionInvalid) as raised:
        parse("c", value)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_another_type_is_no_database() -> None:
    with pytest.raises(ConnectionInvalid, match="its type is 'mysql'"):
        parse("c", "mysql://u@h/d").conninfo()


def test_a_salt_is_a_password() -> None:
    assert parse("c", '{"conn_type": "generic", "password": "grain"}').salt() == b"grain"
    with pytest.raises(ConnectionInvalid, match="no password"):
        parse("c", '{"conn_type": "generic"}').salt()


def test_a_connection_hides_its_password() -> None:
    assert "p@ :/" not in repr(parse("c", JSON))
