"""Logins by tokens that live shortly, by certificates, by several hosts; and poolers, which are no servers."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import tidemark
from sandbox.services.postgres import free_port
from tests.airflow.conftest import SHOP
from tests.airflow.installed_wheels import new_environment
from tests.support.remedies import Told
from tests.support.runs import a_run
from tidemark.capture.confirm import confirm
from tidemark.capture.drain import drain
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import PipelineConfig
from tidemark.config.airflow_connections import Connection
from tidemark.config.file_reader import load
from tidemark.errors import ConnectionInvalid, DatabaseRefused, PoolerInBetween, TokenClientMissing, TokenNotIssued
from tidemark.postgres import login_tokens, postgres_session


class TokenService:
    """Issues tokens over HTTP; each makes the one before worthless, as time does."""

    def __init__(self, superuser: str, role: str) -> None:
        self.issued: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = secrets.token_urlsafe(200)
                with psycopg.connect(superuser, autocommit=True) as connection:
                    statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
                    connection.execute(statement.format(sql.Identifier(role), sql.Literal(token)))
                service.issued.append(token)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(token.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def fetch(self, *_: object) -> str:
        with urlopen(f"http://127.0.0.1:{self.server.server_port}/token") as answer:
            return str(answer.read().decode())


@pytest.fixture
def role(source: str) -> Iterator[str]:
    name = f"by_token_{secrets.token_hex(4)}"
    with psycopg.connect(source, autocommit=True) as connection:
        made = sql.SQL("CREATE ROLE {} SUPERUSER LOGIN REPLICATION PASSWORD {}")  # each token replaces it
        connection.execute(made.format(sql.Identifier(name), sql.Literal(secrets.token_urlsafe())))
    yield name
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute(sql.SQL("REASSIGN OWNED BY {} TO postgres").format(sql.Identifier(name)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def tokens(source: str, role: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenService]:
    service = TokenService(source, role)
    service.thread.start()
    monkeypatch.setitem(login_tokens.FETCHERS, "google", service.fetch)
    yield service
    service.server.shutdown()
    service.thread.join()
    service.server.server_close()


def with_token(conninfo: str, role: str, **extra: str) -> Connection:
    there = conninfo_to_dict(conninfo)
    return Connection(
        "shop_source", "postgres", there["host"], role, None, int(there["port"]), there["dbname"],
        {"iam": "google", "sslmode": "disable", **extra},
    )  # fmt: skip


@pytest.fixture
def config(source: str, tmp_path: Path) -> PipelineConfig:
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return load(file)


def test_every_connect_of_a_capture_has_a_new_token(
    config: PipelineConfig, source: str, empty_ledger_database: str, role: str, tokens: TokenService
) -> None:
    run = a_run(config, source=with_token(source, role).conninfo(), ledger=empty_ledger_database)
    preflight(run).raise_for_errors()
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("INSERT INTO shop.orders SELECT generate_series(1, 10)")
    assert drain(run).rows == 10
    confirm(run)
    assert len(tokens.issued) > 3
    assert len(set(tokens.issued)) == len(tokens.issued)
    assert not [token for token in tokens.issued if token in repr(run) or token in run.source]


@pytest.mark.parametrize("value", ["off", "on"])
def test_preflight_names_the_setting_without_which_rds_takes_no_token_of_a_stream(
    config: PipelineConfig, source: str, empty_ledger_database: str, role: str, tokens: TokenService, value: str
) -> None:
    run = a_run(config, source=with_token(source, role).conninfo(), ledger=empty_ledger_database)
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE ROLE rds_superuser")
        setting = sql.SQL("ALTER ROLE {} SET rds.iam_auth_for_replication = {}")
        connection.execute(setting.format(sql.Identifier(role), sql.Literal(value)))
        try:
            by_token = preflight(run, act=False)
            by_password = preflight(a_run(config, source=source, ledger=empty_ledger_database), act=False)
        finally:
            connection.execute("DROP ROLE rds_superuser")
    said = [error.message for error in by_token.errors]
    assert said == (["The role logs in by a token, and rds.iam_auth_for_replication is off"] if value == "off" else [])
    assert by_password.errors == ()


def test_a_session_outlives_its_token_and_what_leads_to_the_same_server_has_a_new_one(
    source: str, role: str, tokens: TokenService
) -> None:
    conninfo = with_token(source, role).conninfo()
    with postgres_session.connect(conninfo, application_name="a test") as session:
        tokens.fetch()  # time passes
        assert session.execute("SELECT 1").fetchone() == (1,)
        again = postgres_session.to_the_same_server(session, replication="database")
        with postgres_session.open_session(again, "source") as walsender:
            assert not walsender.closed
        with postgres_session.connect_walsender(conninfo, application_name="a test"):
            pass
    assert len(tokens.issued) == 4


def test_a_token_that_the_server_refuses_is_not_said(
    source: str, role: str, tokens: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(login_tokens.FETCHERS, "google", lambda *_: "old-and-secret")
    with pytest.raises(DatabaseRefused) as refused:
        postgres_session.connect(with_token(source, role).conninfo(), application_name="a test")
    assert "old-and-secret" not in str(refused.value)


@pytest.mark.walks("TokenClientMissing", "TokenNotIssued")
def test_a_client_that_is_missing_or_fails_is_said_without_its_words(
    source: str, role: str, tokens: TokenService, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    conninfo = with_token(source, role).conninfo()
    working = login_tokens.FETCHERS["google"]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with told(TokenClientMissing, "extra iam-google"):
        postgres_session.connect(conninfo, application_name="a test")

    def refuses(*_: object) -> str:
        raise RuntimeError("key=secret")

    monkeypatch.setitem(login_tokens.FETCHERS, "google", refuses)
    with told(TokenNotIssued, "the retry asks again") as refused:
        postgres_session.connect(conninfo, application_name="a test")
    assert "secret" not in str(refused.value)
    monkeypatch.setitem(login_tokens.FETCHERS, "google", working)
    postgres_session.connect(conninfo, application_name="a test").close()


def test_awss_own_client_signs_for_host_port_and_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    host = "shop.abc.eu-west-1.rds.amazonaws.com"
    conninfo = conninfo_to_dict(
        Connection("c", "postgres", host, "tidemark", None, 5433, "shop", {"iam": True}).conninfo()
    )
    assert conninfo["sslmode"] == "require"
    token = login_tokens.fetch(str(conninfo["password"]), conninfo)
    assert token.startswith(f"{host}:5433/?Action=connect&DBUser=tidemark&")
    assert "%2Feu-west-1%2Frds-db%2Faws4_request" in token
    assert "secret" not in token


@pytest.fixture(scope="module")
def with_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the clients of Azure and Google, from the package index."""
    python = new_environment(tmp_path_factory.mktemp("clients")).python
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "azure-identity", "google-auth", "requests"], check=True)
    return python


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("provider", "requested"),
    [
        ("azure", "/identity?api-version=2019-08-01&resource=https://ossrdbms-aad.database.windows.net"),
        (
            "google",
            "/computeMetadata/v1/instance/service-accounts/default/token"
            "?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fsqlservice.login",
        ),
    ],
)
def test_a_machines_identity_is_exchanged_by_the_providers_own_client(
    with_clients: Path, provider: str, requested: str
) -> None:
    """The service that each cloud gives its machines, stood in for; the clients are the real ones."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = {"access_token": f"of {provider}", "token_type": "Bearer", "expires_in": 900, "expires_on": 2**32}
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({**body, "email": "tidemark@project.iam"}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    there = f"127.0.0.1:{server.server_port}"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(tidemark.__file__).parents[1]),
        "HOME": str(with_clients.parents[1]),  # nobody's own credentials
        "GCE_METADATA_HOST": there,
        "GCE_METADATA_IP": there,
        "IDENTITY_ENDPOINT": f"http://{there}/identity",
        "IDENTITY_HEADER": "of this machine",
    }
    program = f"from tidemark.postgres import login_tokens as l; print(l.fetch(l.recipe({provider!r}), {{}}))"
    try:
        done = subprocess.run([with_clients, "-c", program], env=environment, capture_output=True, text=True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (done.stdout, done.returncode) == (f"of {provider}\n", 0), done.stderr
    assert asked[-1] == requested


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"iam": True}, "aws"),
        ({"iam": "true"}, "aws"),
        ({"iam": "true", "azure_conn_id": "azure_default"}, "azure"),
        ({"iam": "azure"}, "azure"),
        ({"iam": "Google"}, "google"),
        ({"iam": False}, None),
        ({}, None),
    ],
)
def test_the_connections_extra_says_who_issues_tokens(extra: dict[str, object], expected: str | None) -> None:
    assert login_tokens.provider_of(extra) == expected


def test_what_no_provider_can_do_is_refused() -> None:
    with pytest.raises(ConnectionInvalid, match="may be true or one of aws, azure, google"):
        Connection("c", "postgres", "h", "u", extra={"iam": "oracle"}).conninfo()
    with pytest.raises(ConnectionInvalid, match="name the cluster's endpoint"):
        Connection("c", "postgres", "a,b", "u", extra={"iam": True}).conninfo()


def test_of_several_hosts_the_one_that_is_written_to_is_taken(source: str) -> None:
    there = conninfo_to_dict(source)
    one = Connection(
        "c", "postgres", f"127.0.0.1,{there['host']}", str(there["user"]), str(there["password"]), None,
        str(there["dbname"]), {"port": f"1,{there['port']}", "target_session_attrs": "read-write"},
    )  # fmt: skip
    with postgres_session.connect(one.conninfo(), application_name="a test") as session:
        assert session.info.port == int(there["port"])


# --- poolers ----------------------------------------------------------------------------------------------------------


PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
# It comes from the system's packages, which `make setup` does not ask: without it `make faults` alone plays its tests.
WHERE_IT_IS = () if PGBOUNCER else (pytest.mark.thorough,)


class PgBouncer:
    def __init__(self, source: str, *settings: str) -> None:
        program = PGBOUNCER or pytest.fail("There is no pgbouncer here: install the package pgbouncer")
        there = conninfo_to_dict(source)
        self.port = free_port()
        self.folder = folder = Path(tempfile.mkdtemp(prefix="tidemark-pgbouncer-"))
        folder.chmod(0o777)  # it runs as root no more than a server does
        (folder / "users").write_text(f'"{there["user"]}" "{there["password"]}"\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={there['host']} port={there['port']}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {folder}/users\n"
            f"logfile = {folder}/log\n" + "".join(f"{setting}\n" for setting in settings)
        )
        self.process = subprocess.Popen(
            [program, "--quiet", *(["--user=nobody"] if os.geteuid() == 0 else []), str(folder / "pgbouncer.ini")],
            stderr=subprocess.DEVNULL,
        )
        self.conninfo = make_conninfo(source, host="127.0.0.1", port=self.port)

    def __enter__(self) -> PgBouncer:
        for _ in range(100):
            try:
                psycopg.connect(self.conninfo, connect_timeout=5).close()
                return self
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    raise
                threading.Event().wait(0.05)
        raise TimeoutError("PgBouncer does not answer")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=WHERE_IT_IS) for mode in ("session", "transaction")])
@pytest.mark.parametrize(
    "ignores", ["ignore_startup_parameters =", "ignore_startup_parameters = extra_float_digits, options"]
)
@pytest.mark.walks("PoolerInBetween")
def test_pgbouncer_is_recognised(
    config: PipelineConfig, source: str, empty_ledger_database: str, mode: str, ignores: str, told: Told
) -> None:
    with PgBouncer(source, f"pool_mode = {mode}", ignores) as pooler:
        run = a_run(config, source=pooler.conninfo, ledger=empty_ledger_database)
        with told(PoolerInBetween, "Name the server's own host and port"):
            preflight(run).raise_for_errors()
    preflight(a_run(config, source=source, ledger=empty_ledger_database)).raise_for_errors()


def test_a_pooler_that_keeps_settings_is_known_by_its_processes(source: str) -> None:
    with postgres_session.connect(source, application_name="a test") as session:
        postgres_session.require_own_process(session, "source")

        class Pooled:
            info = type("Info", (), {"backend_pid": session.info.backend_pid + 1})
            execute = session.execute

        with pytest.raises(PoolerInBetween, match="another process"):
            postgres_session.require_own_process(Pooled(), "source")  # type: ignore[arg-type]
