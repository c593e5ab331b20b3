"""What Airflow's connections become, in both forms in which the environment may hold them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.roles import login
from tidemark.config.airflow_connections import parse
from tidemark.errors import ConnectionInvalid, ConnectionMissing
from tidemark_airflow import connections
from tidemark_airflow.source_hook import TidemarkSourceHook

EXPECTED = {
    "host": "db.example",
    "port": "5433",
    "dbname": "shop",
    "user": "capture",
    "password": "p@ss word/1",
    "sslmode": "require",
}


@pytest.mark.parametrize(
    "value",
    [
        "postgres://capture:p%40ss%20word%2F1@db.example:5433/shop?sslmode=require&cursor=dictcursor",
        json.dumps(
            {
                "conn_type": "postgres",
                "host": "db.example",
                "port": 5433,
                "schema": "shop",
                "login": "capture",
                "password": "p@ss word/1",
                "extra": {"sslmode": "require", "cursor": "dictcursor"},
            }
        ),
    ],
    ids=["uri", "json"],
)
def test_a_postgres_connection_becomes_a_connection_string(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_SOURCE", value)
    assert conninfo_to_dict(connections.conninfo("shop_source")) == EXPECTED


def test_a_missing_connection_is_an_error_with_its_name() -> None:
    with pytest.raises(ConnectionMissing, match="AIRFLOW_CONN_NOWHERE"):
        connections.conninfo("nowhere")


def test_a_connection_of_another_type_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_SOURCE", "mysql://capture:hidden-secret@db.example/shop")
    with pytest.raises(ConnectionInvalid, match="mysql") as refused:
        connections.conninfo("shop_source")
    assert "hidden-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "master"),
    [
        ('{"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}', "local[*]"),
        ("spark://local[*]", "yarn"),
        ("spark://spark.example:7077", "spark://spark.example:7077"),
        (None, "yarn"),
    ],
)
def test_preflight_is_told_the_master_that_the_hook_resolves(
    monkeypatch: pytest.MonkeyPatch, value: str | None, master: str
) -> None:
    if value is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", value)
    assert connections.spark_connection("spark_default").master == master


@pytest.mark.parametrize(
    ("extra", "refused"),
    [
        ({"deploy-mode": "cluster", "spark-binary": "spark3-submit"}, ""),
        ({"spark-binary": "my-submit"}, "my-submit"),
        ({"spark-home": "/opt/spark"}, "spark-home"),
    ],
)
def test_tasks_and_command_line_understand_one_spark_connection(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], refused: str
) -> None:
    value = json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", value)
    by_hook, by_command_line = connections.spark_connection("spark_default"), parse("c", value).spark_connection()
    assert refused in by_hook.refused
    assert refused in by_command_line.refused
    assert refused or by_hook == by_command_line


def test_a_salt_is_the_password_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SALT", '{"conn_type": "generic", "password": "grains"}')
    assert connections.salt("salt") == b"grains"
    assert connections.salt(None) is None


@pytest.fixture
def source_connection(source: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_to(**fields: object) -> None:
        there = conninfo_to_dict(source)
        said = {
            "conn_type": "tidemark",
            "host": there["host"],
            "port": int(str(there["port"])),
            "login": there["user"],
            "password": there["password"],
            "schema": there["dbname"],
        }
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_SOURCE", json.dumps(said | fields))

    return set_to


def test_the_test_of_a_source_says_what_the_server_is(source: str, source_connection: Callable[..., None]) -> None:
    source_connection()
    hook = TidemarkSourceHook("shop_source")
    name = conninfo_to_dict(source)["dbname"]
    assert hook.test_connection() == (True, f"PostgreSQL 18, database {name}, role postgres: it can be captured")
    assert conninfo_to_dict(connections.conninfo("shop_source"))["dbname"] == name


def test_the_test_of_a_source_says_what_is_missing(source: str, source_connection: Callable[..., None]) -> None:
    source_connection(password="wrong-and-secret")
    well, said = TidemarkSourceHook("shop_source").test_connection()
    assert not well
    assert "authentication failed" in said
    assert "wrong-and-secret" not in said
    role = f"reads_{secrets.token_hex(4)}"
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute(login(role, source))
        try:
            source_connection(login=role)
            assert TidemarkSourceHook("shop_source").test_connection()[0] is False
            assert "may not use replication" in TidemarkSourceHook("shop_source").test_connection()[1]
        finally:
            connection.execute(f"DROP ROLE {role}")
