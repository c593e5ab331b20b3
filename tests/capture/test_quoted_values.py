"""Nothing that PostgreSQL quotes of a row, and no password, leaves a session: neither an error's text nor its causes.

Every statement here makes the server quote a marker. That it does is asserted through psycopg's own session first.
"""

from __future__ import annotations

import pickle
import select
import traceback
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from sandbox.services.postgres import PostgresServer
from tests.support.pipeline import Pipeline
from tidemark.errors import DatabaseRefused, DatabaseUnreachable, ReplicationFailed
from tidemark.postgres.postgres_session import connect, connect_walsender, open_session, unreachable
from tidemark.source.rows.copying import copy_rows

MARKER = "hunter2"
NUMBER = "73556087355608"

TABLES = """
CREATE DOMAIN short AS text CONSTRAINT at_most_three CHECK (length(value) <= 3);
CREATE TABLE person (id int PRIMARY KEY, note text UNIQUE, amount numeric, secret text);
INSERT INTO person VALUES (1, 'hunter2', 73556087355608, 'hunter2');
CREATE TABLE checked (note text CONSTRAINT never CHECK (length(note) < 3),
                      late text UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE owned (note text);
CREATE FUNCTION said(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'saw %', $1; END $$;
CREATE FUNCTION said_as_a_right(text) RETURNS text LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'permission denied for table %', $1 USING ERRCODE = '42501'; END $$;
CREATE FUNCTION inside(text) RETURNS int LANGUAGE plpgsql AS
  $$ BEGIN EXECUTE format('SELECT 1 / (id - 1) FROM person WHERE note = %L', $1); RETURN 1; END $$;
"""

# How the server comes to quote a row's value: what it is -> statements; the last one fails.
QUOTING = {
    "input of a cast": ["SELECT note::int FROM person"],
    "a date": ["SELECT note::timestamptz FROM person"],
    "an enumeration's label": ["CREATE TYPE mood AS ENUM ('sad')", "SELECT note::text::mood FROM person"],
    "JSON": ["SELECT ('{' || note)::jsonb FROM person"],
    "a number out of range": ["SELECT amount::text::int FROM person"],
    "a name that is looked up": ["SELECT note::regclass FROM person"],
    "a name of another database": ["SELECT (note || '.a.b')::regclass FROM person"],
    "a setting's name": ["SELECT current_setting(note) FROM person"],
    "a role's name": ["SELECT note::regrole FROM person"],
    "a file's name": ["SELECT pg_read_file(note) FROM person"],
    "a unique key": ["INSERT INTO person VALUES (2, 'hunter2')"],
    "a unique key at the end": ["INSERT INTO checked VALUES ('a', 'hunter2'), ('b', 'hunter2')"],
    "a row that a check refuses": ["INSERT INTO checked VALUES ('hunter2')"],
    "a function's own words": ["SELECT said(note) FROM person"],
    "a function's words under another's code": ["SELECT said_as_a_right(note) FROM person"],
    "the statement's own line": ["SELECT secret_hunter2 FROM person"],
    "the context of a function": ["SELECT inside(note) FROM person"],
}


@pytest.fixture
def people(source: str) -> str:
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute(TABLES)
    return source


def everything_of(error: BaseException) -> str:
    """All that a log, a ledger or another process could get out of an error, its causes and contexts included."""
    text = "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)
    seen: BaseException | None = error
    while seen is not None:
        text += f"{seen!s}{seen.__dict__}{pickle.dumps(seen)!r}"
        if isinstance(seen, psycopg.Error):
            text += repr([getattr(seen.diag, name) for name in dir(seen.diag) if not name.startswith("_")])
            text += repr(seen.pgresult) + repr(seen.pgconn)
        seen = seen.__cause__ or seen.__context__
    return text


def told(error: BaseException) -> bool:
    return MARKER in everything_of(error) or NUMBER in everything_of(error)


def failure(connection: psycopg.Connection, statements: list[str]) -> psycopg.Error:
    def run() -> None:
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)

    with pytest.raises(psycopg.Error) as raised:
        run()
    return raised.value


@pytest.mark.parametrize("what", QUOTING)
def test_no_error_of_a_session_quotes_a_value(what: str, people: str) -> None:
    with psycopg.connect(people, autocommit=True) as plain:
        quoted = failure(plain, QUOTING[what])
    assert told(quoted), "the server does not quote it, so this shows nothing"
    with open_session(people, "source") as connection:
        error = failure(connection, QUOTING[what])
    assert not told(error)
    assert type(error) is type(quoted)
    assert error.sqlstate == quoted.sqlstate
    assert error.diag.sqlstate == quoted.sqlstate
    assert str(error.sqlstate) in str(error) or error.sqlstate == "42501"


def test_names_and_conditions_stay(people: str) -> None:
    with open_session(people, "source") as connection:
        refused = failure(connection, QUOTING["a row that a check refuses"])
        unread = failure(connection, QUOTING["input of a cast"])
        connection.execute("CREATE ROLE nobody_here NOLOGIN; GRANT USAGE ON SCHEMA public TO nobody_here")
        try:
            denied = failure(connection, ["SET LOCAL ROLE nobody_here", "SELECT * FROM owned"])
        finally:
            connection.execute("DROP OWNED BY nobody_here; DROP ROLE nobody_here")
        late = failure(connection, ["SET LOCAL statement_timeout = 1", "SELECT pg_sleep(60)"])
    assert str(refused) == "check violation (SQLSTATE 23514), schema public, table checked, constraint never"
    assert str(unread) == "invalid text representation (SQLSTATE 22P02)"
    assert str(denied) == "permission denied for table owned"
    assert str(late) == "canceling statement due to statement timeout"


def test_copy_by_libpqs_own_calls_quotes_nothing(people: str) -> None:
    with open_session(people, "source") as connection:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation) as raised:
            list(copy_rows(connection, sql.SQL("SELECT note::int FROM person").format()))
        assert not told(raised.value)
        with pytest.raises(psycopg.errors.UndefinedTable) as raised_by_name, connection.transaction():
            list(copy_rows(connection, sql.SQL("SELECT note::regclass FROM person").format()))
        assert not told(raised_by_name.value)


def test_what_libpq_keeps_of_the_last_error_is_neither_said_nor_logged_with_the_next(
    people: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(psycopg.connect(people, autocommit=True)) as plain:
        quoted = left_open(plain)
    assert told(quoted), "libpq does not quote it, so this shows nothing"
    assert MARKER in caplog.text, "psycopg does not log it, so this shows nothing"
    caplog.clear()
    with closing(open_session(people, "source")) as connection:
        error = left_open(connection)
    assert str(error) == "another command is already in progress"
    assert not told(error)
    assert not told(unreachable(error, "source"))
    assert "error ignored in rollback" in caplog.text
    assert MARKER not in caplog.text


def left_open(connection: psycopg.Connection) -> psycopg.OperationalError:
    """The error of a statement behind a COPY that failed, and whose end nobody has fetched."""

    def run() -> None:
        with connection.transaction():
            begin_copy(connection)
            connection.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError) as raised:
        run()
    return raised.value


def begin_copy(connection: psycopg.Connection) -> None:
    pgconn = connection.pgconn
    pgconn.exec_(b"COPY (SELECT note::regclass FROM person) TO STDOUT")
    while pgconn.get_copy_data(1)[0] == 0:
        select.select([pgconn.socket], [], [])
        pgconn.consume_input()
    pgconn.get_result()


def test_a_session_that_dies_under_a_statement_tells_no_value_of_it(people: str) -> None:
    with (
        open_session(people, "source") as connection,
        open_session(people, "source") as other,
    ):
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        statement = f"SELECT '{MARKER}'::int"
        with pytest.raises(psycopg.OperationalError) as raised:
            connection.execute(statement)
    lost = unreachable(raised.value, "source")
    assert isinstance(lost, DatabaseUnreachable)
    assert not told(raised.value)
    assert not told(lost)


@pytest.mark.parametrize(
    "opened",
    [
        lambda conninfo: connect(conninfo, application_name="tidemark_test", database="ledger"),
        lambda conninfo: connect_walsender(conninfo, application_name="tidemark_test"),
        lambda conninfo: open_session(conninfo, "source"),
    ],
)
@pytest.mark.parametrize(
    "broken",
    [
        "{conninfo} password=hunter2 dbname=none_of_these",
        "{conninfo} password=hunter2 user=none_of_these",
        "{conninfo} password=hunter2 host=127.0.0.1 port=1",
        "{conninfo} password=hunter2 sslmode=require",
        "{conninfo} password=hunter2 sslmode=hunter2",
        "{conninfo} password=hunter2 connect_timeout=hunter2",
        "{conninfo} password='hunter2",
        "{conninfo} password=a hunter2",
        "postgresql://u:hunter2@127.0.0.1:port/database",
        "postgresql://u:p@127.0.0.1/database?hunter2=1",
    ],
)
def test_no_connection_string_that_fails_shows_its_password(
    broken: str, opened: Callable[[str], psycopg.Connection], postgres: PostgresServer
) -> None:
    with pytest.raises((DatabaseRefused, DatabaseUnreachable)) as raised:
        opened(broken.format(conninfo=postgres.conninfo()))
    assert not told(raised.value)


def test_a_stream_whose_row_filter_fails_quotes_nothing(pipeline: Pipeline) -> None:
    """The walsender evaluates it, on every row that anybody writes."""
    pipeline.execute("CREATE TABLE visits (id int PRIMARY KEY, year int)", "ALTER TABLE visits REPLICA IDENTITY FULL")
    pipeline.connection.execute(
        sql.SQL("CREATE PUBLICATION {} FOR TABLE visits WHERE (make_date(year, 1, 1) IS NOT NULL)").format(
            sql.Identifier(pipeline.config.publication)
        )
    )
    pipeline.create_slot()
    pipeline.execute("INSERT INTO visits VALUES (1, 73556087)")
    with pytest.raises(ReplicationFailed) as raised:
        pipeline.drain()
    assert "22008" in str(raised.value), "an operator can look it up"
    assert "73556087" not in everything_of(raised.value)
