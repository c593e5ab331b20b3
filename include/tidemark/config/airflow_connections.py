"""Converts an Airflow connection id to its record, and to the libpq conninfo and Spark master of Airflow's hooks.

The command line works without importing Airflow. It reads an id from the environment first (AIRFLOW_CONN_<ID>, JSON or
URI, as Airflow does), else from the output of the subprocess `airflow connections get`. Inside Airflow the hooks
resolve ids. No password is ever part of a message. Sources: Airflow documentation, "Managing Connections"; PostgreSQL
documentation, 34.1.2 "Parameter Key Words".
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from tidemark.errors import ConnectionInvalid, ConnectionMissing
from tidemark.postgres import login_tokens, ssh_tunnel
from tidemark.spark_submit.spark_connection import PROGRAMS, SparkConnection
from tidemark.storage import lake_access
from tidemark.storage.lake_access import LakeAccess

_POSTGRES: Final = ("postgres", "postgresql", "tidemark")
_AIRFLOW_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Connection:
    """One Airflow connection. `ssh` is the connection that `ssh_conn_id` names. `repr` hides the password and the
    extras."""

    id: str
    conn_type: str = ""
    host: str | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    port: int | None = None
    schema: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ssh: Connection | None = None

    @property
    def ssh_conn_id(self) -> str | None:
        """The id of the connection of the SSH host through which this database is reached, None without one."""
        return str(self.extra.get("ssh_conn_id") or "") or None if self.conn_type in _POSTGRES else None

    def conninfo(self) -> str:
        """libpq's connection string: the fields, and those extras that are libpq keywords (sslmode, options, …).
        Raises ConnectionInvalid."""
        if self.conn_type not in _POSTGRES:
            raise self._invalid(f"its type is {self.conn_type!r}, not postgres or tidemark")
        keywords = {option.keyword.decode() for option in Conninfo.get_defaults()}
        settings = {
            "host": self.host,
            "port": self.port,
            "user": self.login,
            "password": self.password,
            "dbname": self.schema,
            **{name: value for name, value in self.extra.items() if name in keywords},
            **self._login_token(),
        }
        if self.ssh is not None:
            if not self.host or "," in self.host or self.host.startswith("/"):
                raise self._invalid("with ssh_conn_id it needs one host, as the SSH host reaches it")
            settings["password"] = ssh_tunnel.recipe(self.ssh.ssh_host(), settings["password"])
        try:
            return make_conninfo(**{name: value for name, value in settings.items() if value not in (None, "")})
        except psycopg.Error:
            raise self._invalid("libpq takes its fields for no connection") from None

    def _login_token(self) -> dict[str, str]:
        """The settings that replace the password if the extra `iam` is set; none otherwise. A token is sent only
        over TLS."""
        try:
            provider = login_tokens.provider_of(self.extra)
        except ValueError:
            known = ", ".join(login_tokens.PROVIDERS)
            raise self._invalid(f"its extra iam is {self.extra['iam']}, and may be true or one of {known}") from None
        if provider is None:
            return {}
        if provider == "aws" and "," in (self.host or ""):
            raise self._invalid("it names several hosts, and a token of AWS is for one: name the cluster's endpoint")
        region = self.extra.get("region_name")
        return {
            "password": login_tokens.recipe(provider, None if region is None else str(region)),
            "sslmode": str(self.extra.get("sslmode") or "require"),
        }

    def ssh_host(self) -> dict[str, Any]:
        """The settings that Airflow's SSHHook reads from this connection, for `ssh_tunnel.recipe`. The host key is
        checked unless `no_host_key_check` is true. Raises ConnectionInvalid."""
        if self.conn_type not in ("ssh", "sftp"):
            raise self._invalid(f"its type is {self.conn_type!r}, not ssh")
        if not self.host:
            raise self._invalid("it names no host")
        extra = self.extra
        settings = {
            "host": self.host,
            "port": self.port,
            "user": self.login,
            "password": self.password,
            "key_file": extra.get("key_file"),
            "private_key": extra.get("private_key"),
            "passphrase": extra.get("private_key_passphrase"),
            "host_key": extra.get("host_key"),
            "any_host_key": str(extra.get("no_host_key_check", "")).lower() == "true" and not extra.get("host_key"),
        }
        return {name: value for name, value in settings.items() if value}

    def spark_connection(self) -> SparkConnection:
        """The Spark connection that `SparkSubmitHook` makes of this connection."""
        program = str(self.extra.get("spark-binary") or PROGRAMS[0])
        refused = "" if program in PROGRAMS else f"spark-binary is {program!r}, and may be {' or '.join(PROGRAMS)}"
        if self.extra.get("spark-home"):
            refused = "spark-home is not allowed any more: have spark-submit on the PATH"
        return SparkConnection(self._spark_master(), self.extra.get("deploy-mode"), program, refused)

    def _spark_master(self) -> str:
        if self.conn_type == "spark" and self.host and ("://" in self.host or not self.port):
            master = self.host
        else:
            master = f"{self.conn_type}://{self.host or ''}"
        return f"{master}:{self.port}" if self.port else master

    def lake_access(self, lake: str) -> LakeAccess:
        """The credentials and settings of the lake's object store."""
        return lake_access.read(
            lake,
            connection=self.id,
            conn_type=self.conn_type,
            login=self.login,
            password=self.password,
            extra=self.extra,
        )

    def salt(self) -> bytes:
        """The password, as the salt of `sha256` masks."""
        if not self.password:
            raise self._invalid("it has no password, which is to be the salt of sha256 masks")
        return self.password.encode()

    def _invalid(self, reason: str) -> ConnectionInvalid:
        return ConnectionInvalid(connection=self.id, reason=reason)


def look_up(
    connection_id: str,
    *,
    environment: Mapping[str, str] | None = None,
    ask_airflow: Callable[[str], str | None] | None = None,
) -> Connection:
    """Return the connection with this id, and that of its SSH host. Raises ConnectionMissing if neither the
    environment nor Airflow has it."""
    value = (os.environ if environment is None else environment).get(f"AIRFLOW_CONN_{connection_id.upper()}")
    if not value:
        value = (ask_airflow or _airflow_uri)(connection_id)
    if not value:
        raise ConnectionMissing(connection=connection_id, variable=f"AIRFLOW_CONN_{connection_id.upper()}")
    connection = parse(connection_id, value)
    if (through := connection.ssh_conn_id) is None:
        return connection
    return dataclasses.replace(connection, ssh=look_up(through, environment=environment, ask_airflow=ask_airflow))


def parse(connection_id: str, value: str) -> Connection:
    """Convert the JSON or URI form that Airflow uses in the environment to a connection. Raises ConnectionInvalid."""
    if value.lstrip().startswith("{"):
        return _from_json(connection_id, value)
    return _from_uri(connection_id, value)


def _from_json(connection_id: str, value: str) -> Connection:
    try:
        raw = json.loads(value)
        extra = raw.get("extra") or {}
        extra = dict(json.loads(extra) if isinstance(extra, str) else extra)
        port = int(raw["port"]) if raw.get("port") else None
    except (ValueError, TypeError, AttributeError):
        # The text has a password, so neither the text nor the parser's message is shown.
        raise ConnectionInvalid(connection=connection_id, reason="its JSON cannot be read") from None
    return Connection(
        id=connection_id,
        conn_type=str(raw.get("conn_type") or "").replace("-", "_"),
        host=raw.get("host"),
        login=raw.get("login"),
        password=raw.get("password"),
        port=port,
        schema=raw.get("schema"),
        extra=extra,
    )


def _from_uri(connection_id: str, value: str) -> Connection:
    try:
        uri = urlsplit(value)
        host = unquote(uri.netloc.rpartition("@")[2])
        port = uri.port
        extra = dict(parse_qsl(uri.query, keep_blank_values=True))
        extra = dict(json.loads(extra["__extra__"])) if extra.get("__extra__") else extra
    except (ValueError, TypeError):
        # spark://local[*] is such a URI: brackets in a URI's host must enclose an IPv6 address, so Airflow cannot parse
        # it either. The parser's message may quote a piece of the password ("Port could not be cast to integer value
        # as …"), so it is not shown.
        raise ConnectionInvalid(connection=connection_id, reason="its URI cannot be read; write it as JSON") from None
    if port is not None:
        host = host.rpartition(":")[0]
    elif uri.hostname is None:
        host = ""
    return Connection(
        id=connection_id,
        conn_type=uri.scheme.replace("-", "_"),
        host=host or None,
        login=unquote(uri.username) if uri.username else None,
        password=unquote(uri.password) if uri.password else None,
        port=port,
        schema=unquote(uri.path.lstrip("/")) or None,
        extra=extra,
    )


def _airflow_uri(connection_id: str) -> str | None:
    """The connection as a URI from `airflow connections get`; None if there is no Airflow or no such connection."""
    try:
        process = subprocess.run(
            ["airflow", "connections", "get", connection_id, "--output", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_AIRFLOW_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if process.returncode != 0:
        return None
    # Airflow and its plugins may print lines before its output and behind it, a list with one object.
    for found in re.finditer(r"\[\{", process.stdout):
        with suppress(ValueError, RecursionError, KeyError, TypeError):
            answer, _ = json.JSONDecoder().raw_decode(process.stdout, found.start())
            return str(answer[0]["get_uri"])
    return None
