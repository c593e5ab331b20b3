"""Opens psycopg connections with the settings that give every value the text that the codec reads.

The text of a value and the meaning of an operator's name depend on the session. Every session of Tidemark, also for
replication and ledger, has `SESSION_SETTINGS`: chunks and stream give the same text for the same value, and no
statement calls an object that a user created under the same name. The settings are in libpq's `options`, so they apply
from the first statement and to a walsender, which has no SET. Failures are classified by SQLSTATE: a ConfigError if a
person must act, else a retry. Source: PostgreSQL documentation, 34.1.2 "Parameter Key Words", 19.11.2 "Locale and
Formatting", 5.10.6 "Usage Patterns" (of schemas).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final

import psycopg
from psycopg.abc import Params, QueryNoTemplate
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidemark.errors import (
    DatabaseRefused,
    DatabaseUnreachable,
    LedgerFull,
    PoolerInBetween,
    SourceFull,
    SshTunnelFailed,
    TidemarkError,
)
from tidemark.postgres import login_tokens, ssh_tunnel
from tidemark.postgres.redaction import without_values

SESSION_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    # An operator or function of another schema that fits a statement better than PostgreSQL's own would take its place,
    # and run with the rights of this session's role. Names of tables are always written with their schema.
    "search_path": "pg_catalog",
}

# What a role or a database may have otherwise for its sessions. A transaction that locks a row and then reads must see
# what whoever held the lock has committed: the ledger's fences rest on it, and under another isolation they let pass
# what they are for, without an error. And a session waits for as long as the others of its task work: one transaction
# of the source may take an hour.
_NOBODYS_CHOICE: Final = {
    "default_transaction_isolation": "read committed",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

CONNECT_TIMEOUT_S: Final = 10

# What a connection that names a primary and its standby says in `target_session_attrs` to have the slot on the latter.
SLOT_ON_STANDBY: Final = "prefer-standby"

# What libpq needs to notice a machine that vanished: an idle probe after 20 s, given up after about a minute.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 4}

# SQLSTATE classes and codes of a connection attempt that only a person can change: 28 invalid authorization, 3D invalid
# catalog name, 42501 insufficient privilege.
_REFUSALS: Final = ("28", "3D", "42501")


# SQLSTATE classes and codes that are about the session or the server, whatever the statement was: 08 connection, 25P03
# and 25P04 timeouts that end the session, 28 and 3D authorization and database, 40 rollback (a standby's conflict, a
# deadlock), 53 resources, 55P03 a lock that was not to be had, 57 somebody's intervention, F0 the server's files.
_OF_THE_SESSION: Final = ("08", "25P03", "25P04", "28", "3D", "40", "53", "55P03", "57", "F0")

# PgBouncer's words; a server has no such sentence.
_OF_A_POOLER: Final = "unsupported startup parameter"

# Under this name an error keeps the database that it is of.
_DATABASE: Final = "tidemark_database"
# Under this name a session keeps the recipe of its token or tunnel, and where libpq would have connected without it.
_RECIPE: Final = "tidemark_login"


def with_settings(conninfo: str, application_name: str, settings: dict[str, str] | None = None, **keywords: Any) -> str:
    """The connection string with session settings, keepalives and application name. Keepalives that the string sets
    itself are kept."""
    parameters = conninfo_to_dict(conninfo)
    merged = {**SESSION_SETTINGS, **_NOBODYS_CHOICE, **(settings or {})}
    options = " ".join(f"-c {name}={_escaped(value)}" for name, value in merged.items())
    if parameters.get("options"):
        options = f"{parameters['options']} {options}"
    defaults = {"connect_timeout": CONNECT_TIMEOUT_S, **_KEEPALIVES}
    return make_conninfo(
        **{
            **{name: value for name, value in defaults.items() if name not in parameters},
            **{name: value for name, value in parameters.items() if name != "client_encoding"},
            **keywords,
            "options": options,
            "application_name": application_name[:63],
        }
    )


def connect(
    conninfo: str,
    *,
    application_name: str,
    database: str = "source",
    lock_timeout_s: float | None = None,
    statement_timeout_s: float | None = None,
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a session. Errors name the `database` that could not be reached: "source" or "ledger"."""
    settings: dict[str, str] = {}
    if lock_timeout_s is not None:
        settings["lock_timeout"] = f"{int(lock_timeout_s * 1000)}ms"
    if statement_timeout_s is not None:
        settings["statement_timeout"] = f"{int(statement_timeout_s * 1000)}ms"
    return open_session(conninfo, database, application_name=application_name, settings=settings)


def one_row(connection: psycopg.Connection[Any], query: QueryNoTemplate, values: Params | None = None) -> Any:
    """The row of a query that returns exactly one."""
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return row


def to_the_same_server(connection: psycopg.Connection[Any], **keywords: Any) -> str:
    """A connection string to the server of this session. The session's own string may list several servers, and
    another one may be the primary by now."""
    info = connection.info
    there: dict[str, Any] = {"host": info.host, "port": info.port} if info.host else {}
    recipe: dict[str, Any] = vars(connection).get(_RECIPE) or {"password": info.password or None}
    return make_conninfo(**{**info.get_parameters(), **there, **keywords, **recipe})


def logs_in_by_token(connection: psycopg.Connection[Any]) -> bool:
    """Whether the session's password was a login token of a provider."""
    recipe: dict[str, Any] = vars(connection).get(_RECIPE) or {}
    password = str(recipe.get("password") or "")
    return login_tokens.is_recipe(ssh_tunnel.without_ssh(password) if ssh_tunnel.is_recipe(password) else password)


def connect_walsender(conninfo: str, *, application_name: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a walsender that is bound to the source database, as logical replication requires."""
    return open_session(conninfo, "source", application_name=application_name, settings={}, replication="database")


def open_session(
    conninfo: str,
    database: str,
    *,
    application_name: str | None = None,
    settings: dict[str, str] | None = None,
    **keywords: Any,
) -> Session:
    """Open a connection. All connections are opened here, so that no error quotes a value or a password.

    With an `application_name` the string gets Tidemark's settings (`with_settings`); without one it is used unchanged.
    A string that prefers a standby is for the slot (`source.wal.slot_server`); everything else needs the primary.
    """
    password, servers, tunnel = "", "", None
    recipe: dict[str, Any] | None = None
    try:
        parameters, asked = conninfo_to_dict(conninfo), conninfo
        password = in_its_place = str(parameters.get("password") or "")
        if ssh_tunnel.is_recipe(in_its_place):
            tunnel = ssh_tunnel.open_way(in_its_place, parameters)
            password = ssh_tunnel.without_ssh(in_its_place)
        if login_tokens.is_recipe(password):
            password = login_tokens.fetch(password, parameters)
        if password != in_its_place:
            recipe = {"password": in_its_place}
            conninfo = make_conninfo(conninfo, password=password)
        if tunnel is not None:
            recipe = {"password": in_its_place, "port": parameters.get("port"), "hostaddr": None}
            conninfo = make_conninfo(conninfo, **tunnel.parameters())
        if parameters.get("target_session_attrs") == SLOT_ON_STANDBY and "target_session_attrs" not in keywords:
            servers = asked
            conninfo = make_conninfo(conninfo, target_session_attrs="read-write")
        if application_name is not None:
            conninfo = with_settings(conninfo, application_name, settings, **keywords)
        session = Session.connect(conninfo, autocommit=True)
    except psycopg.Error as failed:
        failure = without_values(failed, password=password)
    else:
        if application_name is not None and not _has_its_settings(session):
            session.close()
            raise PoolerInBetween(database=database, detail="the session does not have the settings that it asked for")
        session.database, session.servers = database, servers
        if recipe is not None:
            vars(session)[_RECIPE] = recipe
        return session
    if isinstance(failure, psycopg.OperationalError):
        if _OF_A_POOLER in str(failure):
            raise PoolerInBetween(database=database, detail="it refuses the settings of a session")
        if tunnel is not None and (detail := tunnel.failure()):
            raise SshTunnelFailed(host=tunnel.host, detail=detail)
        raise unreachable(failure, database)
    raise DatabaseRefused(database=database, detail="the connection's fields make no connection string")


def _has_its_settings(session: psycopg.Connection[Any]) -> bool:
    """Whether the session has Tidemark's settings. The server reports one of them when a session begins and
    whenever it changes."""
    return session.info.parameter_status("IntervalStyle") == SESSION_SETTINGS["IntervalStyle"]


def require_own_process(session: psycopg.Connection[Any], database: str) -> None:
    """Raises PoolerInBetween if another server process answers statements than the one of the login."""
    row = session.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != session.info.backend_pid:
        raise PoolerInBetween(database=database, detail="another process of the server answers than the session's own")


def unverified(host: str, parameters: Mapping[str, str]) -> str | None:
    """The sslmode of a session to another machine that does not verify the server's identity; None if it does
    (verify-full), or if the session uses a socket or the loopback.

    `parameters` are libpq's own in force. Weaker modes encrypt at most, and `prefer`, libpq's default, does not even
    guarantee that: an attacker on the path reads passwords and rows, or answers in the server's place. Source:
    PostgreSQL documentation, 34.19.1.
    """
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return None
    try:
        if ip_address(host.partition("%")[0]).is_loopback:
            return None
    except ValueError:
        pass  # a name
    sslmode = parameters.get("sslmode", "prefer")
    return None if sslmode == "verify-full" else sslmode


class Session(psycopg.Connection[tuple[Any, ...]]):
    """A psycopg connection whose errors quote no values (`redaction`). It waits for the server in `wait` alone: for
    statements, COMMIT and the end of blocks. Its errors keep the name of the `database`, for `outages`."""

    database = "source"
    servers = ""  # what names both servers, where the slot is on the standby
    beside: Session | None = None  # the session at the standby

    def close(self) -> None:
        if self.beside is not None:
            self.beside.close()
        super().close()

    def _check_connection_ok(self) -> None:
        """Called before anything is sent; raises if the session ended earlier."""
        try:
            super()._check_connection_ok()
        except psycopg.Error as failed:
            vars(failed)[_DATABASE] = self.database
            raise

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(*args, **kwargs)
        except psycopg.Error as failed:
            failure = without_values(failed)
        vars(failure)[_DATABASE] = self.database
        raise failure

    def _exec_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run BEGIN, COMMIT or ROLLBACK. Strips values, since psycopg logs the error of a failing ROLLBACK itself."""
        try:
            return (yield from super()._exec_command(*args, **kwargs))
        except psycopg.Error as failed:
            failure = without_values(failed)
        vars(failure)[_DATABASE] = self.database
        raise failure


@contextmanager
def outages() -> Iterator[None]:
    """Raises DatabaseUnreachable, with the database's name, in place of the error of a session that was lost in the
    middle of work."""
    try:
        yield
    except psycopg.OperationalError as lost:
        raise unreachable(lost, vars(lost).get(_DATABASE, "source")) from lost


def is_of_the_statement(failed: psycopg.Error) -> bool:
    """Whether the source refused a statement for its content. Other statements may succeed; this one fails until
    somebody changes something at the source."""
    of_source = vars(failed).get(_DATABASE, "source") == "source"
    return of_source and failed.sqlstate is not None and not failed.sqlstate.startswith(_OF_THE_SESSION)


def full(failed: psycopg.Error) -> LedgerFull | SourceFull | None:
    """The error to raise if the server's disk is full; None for other errors. Its text names files."""
    if not isinstance(failed, psycopg.errors.DiskFull):
        return None
    leaf = LedgerFull if vars(failed).get(_DATABASE, "source") == "ledger" else SourceFull
    return leaf(detail=" ".join(str(without_values(failed)).split()))


def unreachable(failed: psycopg.OperationalError, database: str) -> TidemarkError:
    """The error to raise for a failed connection. Its text keeps only host, role and database."""
    if (no_space := full(failed)) is not None:
        return no_space
    detail = " ".join(str(without_values(failed)).split())
    sqlstate = failed.sqlstate or _sqlstate_of(detail)
    if sqlstate.startswith(_REFUSALS):
        return DatabaseRefused(database=database, detail=detail)
    return DatabaseUnreachable(database=database, detail=detail)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _sqlstate_of(detail: str) -> str:
    """The SQLSTATE of a failed connection attempt, from the server's sentence: libpq does not provide it. The
    sentences are stable since PostgreSQL 8."""
    if "authentication failed" in detail or "no pg_hba.conf entry" in detail or "no password supplied" in detail:
        return "28000"
    if 'role "' in detail and "does not exist" in detail:
        return "28000"
    if 'database "' in detail and "does not exist" in detail:
        return "3D000"
    if "permission denied" in detail:
        return "42501"
    return ""
