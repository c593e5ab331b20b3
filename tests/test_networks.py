"""Ways to a server: through an SSH host, by TLS with certificates on both sides."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sandbox.services.postgres import PostgresServer, free_port, wait_for
from tests.airflow.conftest import SHOP
from tests.support.certificates import Authority
from tests.support.remedies import Told
from tests.support.roles import login
from tests.support.runs import a_run
from tests.support.system_server import VERSIONS, SystemServer
from tests.test_command_line import as_uri
from tidemark.capture.confirm import confirm
from tidemark.capture.drain import drain
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config.airflow_connections import Connection, look_up
from tidemark.config.file_reader import load
from tidemark.errors import ConnectionInvalid, DatabaseRefused, DatabaseUnreachable, SshTunnelFailed
from tidemark.postgres import postgres_session
from tidemark.run import Run

# --- SSH --------------------------------------------------------------------------------------------------------------

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/usr/local/sbin")
PASSPHRASE = "of the tests"


@dataclass
class SshHost:
    """An OpenSSH server that forwards and gives nobody a shell."""

    folder: Path
    port: int

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host.pub").read_text().split()[:2])

    def connection(self, **extra: str) -> str:
        """An Airflow connection to it, as JSON."""
        said = {"conn_type": "ssh", "host": "127.0.0.1", "port": self.port, "login": getpass.getuser()}
        return json.dumps({**said, "extra": extra})


@pytest.fixture(scope="module")
def ssh_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    program = SSHD or pytest.fail("There is no sshd here: install the package openssh-server")
    host = SshHost(tmp_path_factory.mktemp("ssh"), free_port())
    for name, passphrase in (("host", ""), ("client", ""), ("secret", PASSPHRASE)):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(host.folder / name)]
        subprocess.run(command, check=True)
    keys = [(host.folder / f"{name}.pub").read_text() for name in ("client", "secret")]
    (host.folder / "authorized_keys").write_text("".join(f"restrict,port-forwarding {key}" for key in keys))
    (host.folder / "config").write_text(
        f"Port {host.port}\nListenAddress 127.0.0.1\nHostKey {host.folder}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {host.folder}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
        "AllowTcpForwarding local\nForceCommand /bin/false\nPermitRootLogin prohibit-password\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (host.folder / "log").open("w") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", str(host.folder / "config")], stderr=log)
    wait_for("sshd listens", lambda: "listening" in (host.folder / "log").read_text())
    yield host
    process.terminate()
    process.wait(10)


def through(ssh_host: SshHost, conninfo: str, **extra: str) -> Connection:
    """The source's connection by an SSH connection with these extras, as the command line finds them."""
    environment = {
        "AIRFLOW_CONN_SHOP_SOURCE": f"{as_uri(conninfo)}?ssh_conn_id=bastion",
        "AIRFLOW_CONN_BASTION": ssh_host.connection(**extra),
    }
    return look_up("shop_source", environment=environment, ask_airflow=lambda _: None)


@pytest.fixture
def with_key(ssh_host: SshHost) -> dict[str, str]:
    return {"key_file": str(ssh_host.folder / "client"), "host_key": ssh_host.host_key}


def ways_open() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "ssh" and child.status() != "zombie"]


@pytest.fixture
def shop_run(source: str, empty_ledger_database: str, tmp_path: Path) -> Callable[[str], Run]:
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return lambda conninfo: a_run(load(file), source=conninfo, ledger=empty_ledger_database)


@pytest.mark.thorough
def test_a_capture_goes_through_an_ssh_host_that_gives_no_shell(
    ssh_host: SshHost, source: str, shop_run: Callable[[str], Run], with_key: dict[str, str]
) -> None:
    run = shop_run(through(ssh_host, source, **with_key).conninfo())
    preflight(run).raise_for_errors()
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("INSERT INTO shop.orders SELECT generate_series(1, 1000)")
    assert drain(run).rows == 1000
    confirm(run)
    wait_for("each way ended with its session", lambda: not ways_open())


@pytest.mark.thorough
def test_what_leads_to_the_same_server_goes_through_the_ssh_host_too(
    ssh_host: SshHost, source: str, with_key: dict[str, str]
) -> None:
    with postgres_session.connect(through(ssh_host, source, **with_key).conninfo(), application_name="a test") as first:
        assert first.info.hostaddr == "127.0.0.1"
        again = postgres_session.to_the_same_server(first, replication="database")
        said = conninfo_to_dict(again)
        assert (said["host"], said["port"]) == tuple(conninfo_to_dict(source)[name] for name in ("host", "port"))
        with postgres_session.open_session(again, "source"):
            assert len(ways_open()) == 2


@pytest.mark.thorough
def test_a_way_that_breaks_is_an_outage_and_the_next_session_has_a_new_one(
    ssh_host: SshHost, source: str, with_key: dict[str, str]
) -> None:
    conninfo = through(ssh_host, source, **with_key).conninfo()
    with postgres_session.connect(conninfo, application_name="a test") as session:
        for way in ways_open():
            way.kill()
        with pytest.raises(DatabaseUnreachable), postgres_session.outages():
            session.execute("SELECT 1")
    postgres_session.connect(conninfo, application_name="a test").close()


@pytest.mark.thorough
def test_a_private_key_in_the_connection_is_written_to_no_disk(ssh_host: SshHost, source: str) -> None:
    extra = {
        "private_key": (ssh_host.folder / "secret").read_text(),
        "private_key_passphrase": PASSPHRASE,
        "host_key": ssh_host.host_key,
    }
    connection = through(ssh_host, source, **extra)
    assert extra["private_key"] not in repr(connection)
    with postgres_session.connect(connection.conninfo(), application_name="a test") as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
        (way,) = ways_open()
        assert PASSPHRASE not in " ".join(way.cmdline())
        assert "/proc/" in " ".join(way.cmdline())


@pytest.mark.thorough
@pytest.mark.walks("SshTunnelFailed")
def test_an_ssh_host_whose_key_nobody_knows_is_refused(
    ssh_host: SshHost, source: str, with_key: dict[str, str], told: Told
) -> None:
    unknown = {"key_file": with_key["key_file"]}
    with told(SshTunnelFailed, "correct the SSH connection") as failed:
        postgres_session.connect(through(ssh_host, source, **unknown).conninfo(), application_name="a test")
    assert "Host key verification failed" in str(failed.value)
    postgres_session.connect(through(ssh_host, source, **with_key).conninfo(), application_name="a test").close()
    trusting = through(ssh_host, source, **unknown, no_host_key_check="true")
    postgres_session.connect(trusting.conninfo(), application_name="a test").close()


@pytest.mark.thorough
def test_a_server_that_the_ssh_host_cannot_reach_is_named_by_ssh(
    ssh_host: SshHost, source: str, with_key: dict[str, str]
) -> None:
    nowhere = make_conninfo(source, port=free_port())
    with pytest.raises(SshTunnelFailed, match="Connection refused"):
        postgres_session.connect(through(ssh_host, nowhere, **with_key).conninfo(), application_name="a test")


@pytest.mark.parametrize("host", ["a,b", "/run/postgresql", None])
def test_an_ssh_host_leads_to_one_server(host: str | None) -> None:
    ssh = Connection("bastion", "ssh", "bastion.example", "me")
    with pytest.raises(ConnectionInvalid, match="it needs one host"):
        Connection("c", "postgres", host, "u", extra={"ssh_conn_id": "bastion"}, ssh=ssh).conninfo()


def test_an_ssh_connection_has_its_type_and_a_host() -> None:
    for wrong, reason in ((Connection("b", "http", "h"), "not ssh"), (Connection("b", "ssh"), "names no host")):
        with pytest.raises(ConnectionInvalid, match=reason):
            Connection("c", "postgres", "h", "u", extra={"ssh_conn_id": "b"}, ssh=wrong).conninfo()


# --- TLS --------------------------------------------------------------------------------------------------------------


def of_the_system(test: Callable[..., None]) -> Callable[..., None]:
    """The embedded servers are built without TLS. Without the system's, `make faults` alone plays these tests."""
    return test if VERSIONS else pytest.mark.thorough(test)


@dataclass(frozen=True)
class TlsServer:
    server: PostgresServer
    authority: Authority
    folder: Path

    def connection(self, role: str, certificate_of: str, **extra: str) -> Connection:
        """Without a password: the role logs in by the certificate of `certificate_of`."""
        certificate, key = self.authority.write(
            self.folder / f"{certificate_of}-{secrets.token_hex(4)}", certificate_of
        )
        by_certificate = {
            "sslmode": "verify-full",
            "sslrootcert": str(self.folder / "authority.pem"),
            "sslcert": str(certificate),
            "sslkey": str(key),
        }
        return Connection(
            "shop_source", "postgres", "localhost", role, None, self.server.port, "postgres", by_certificate | extra
        )


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder, authority = tmp_path_factory.mktemp("tls"), Authority()
    (folder / "authority.pem").write_bytes(authority.pem)
    if not VERSIONS:
        pytest.fail("There is no PostgreSQL of the system here: install the package postgresql")
    server = SystemServer(tmp_path_factory.mktemp("postgres-tls"), version=VERSIONS[-1])
    server.start()
    try:
        files = authority.write(server.home / "server", "localhost")
        (server.home / "authority.pem").write_bytes(authority.pem)
        for file in (*files, server.home / "authority.pem"):
            shutil.chown(file, server.home.stat().st_uid, server.home.stat().st_gid)
        certificate, key = map(str, files)
        server.settings = {
            "ssl": "on",
            "ssl_cert_file": certificate,
            "ssl_key_file": key,
            "ssl_ca_file": str(server.home / "authority.pem"),
        }
        hba = server.data / "pg_hba.conf"
        of_tests = "hostssl all,replication postgres 127.0.0.1/32 scram-sha-256\n"
        hba.write_text(of_tests + "hostssl all,replication all 127.0.0.1/32 cert\n")
        server.restart()
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute(login("tidemark", server.conninfo(), "SUPERUSER REPLICATION"))
        yield TlsServer(server, authority, folder)
    finally:
        server.remove()


@of_the_system
def test_a_client_certificate_is_a_login_for_sessions_and_streams(tls: TlsServer) -> None:
    conninfo = tls.connection("tidemark", "tidemark").conninfo()
    with postgres_session.connect(conninfo, application_name="a test") as session:
        row = session.execute("SELECT client_dn, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
        assert row == ("/CN=tidemark", True)
        assert postgres_session.unverified(session.info.host, session.info.get_parameters()) is None
        again = postgres_session.to_the_same_server(session, replication="database")
        postgres_session.open_session(again, "source").close()
    postgres_session.connect_walsender(conninfo, application_name="a test").close()


@of_the_system
def test_the_certificate_of_another_role_is_refused_for_good(tls: TlsServer) -> None:
    with pytest.raises(DatabaseRefused, match="certificate authentication failed"):
        postgres_session.connect(tls.connection("tidemark", "somebody").conninfo(), application_name="a test")


@of_the_system
def test_a_server_that_another_authority_vouches_for_is_not_trusted(tls: TlsServer) -> None:
    (tls.folder / "other.pem").write_bytes(Authority().pem)
    connection = tls.connection("tidemark", "tidemark", sslrootcert=str(tls.folder / "other.pem"))
    with pytest.raises(DatabaseUnreachable, match="certificate verify failed"):
        postgres_session.connect(connection.conninfo(), application_name="a test")


@pytest.mark.thorough
def test_tls_verifies_the_server_through_an_ssh_host(
    tls: TlsServer, ssh_host: SshHost, with_key: dict[str, str]
) -> None:
    bastion = look_up("bastion", environment={"AIRFLOW_CONN_BASTION": ssh_host.connection(**with_key)})
    plain = tls.connection("tidemark", "tidemark")
    conninfo = Connection(
        "c", "postgres", plain.host, plain.login, None, plain.port, plain.schema,
        {**plain.extra, "ssh_conn_id": "bastion"}, bastion,
    ).conninfo()  # fmt: skip
    with postgres_session.connect(conninfo, application_name="a test") as session:
        row = session.execute("SELECT client_dn, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
    assert row == ("/CN=tidemark", True)
