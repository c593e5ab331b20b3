"""Whoever may create in `public` plants operators that fit Tidemark's own statements better than PostgreSQL's do: none
of them runs, neither at the source nor in the ledger.

`"char" = text` and `smallint & integer` have no operator of exactly these types in pg_catalog; one in a schema of the
search path wins over a conversion, and its function runs with the rights of whoever asked.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.support.pipeline import Pipeline
from tidemark.capture.waiting import changes_waiting
from tidemark.ledger import connection as ledger_sessions
from tidemark.observe.status import read_status
from tidemark.postgres import postgres_session
from tidemark.postgres.postgres_session import with_settings

# Every operator below on every two of these types of which PostgreSQL has none by itself.
PLANT = r"""
DO $$
DECLARE
    l regtype; r regtype; op text;
    types regtype[] := '{smallint,integer,bigint,numeric,float8,text,name,"char",oid,xid,bool,pg_lsn,text[],oid[]}';
BEGIN
    FOREACH l IN ARRAY types LOOP
        FOREACH r IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION public.picked_up(%s, %s) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS '
                           '''BEGIN RAISE EXCEPTION ''''picked up %s %s''''; END''', l, r, l, r);
            EXECUTE format('CREATE FUNCTION public.picked_up_as_left(%s, %s) RETURNS %s LANGUAGE plpgsql IMMUTABLE AS '
                           '''BEGIN RAISE EXCEPTION ''''picked up %s %s''''; END''', l, r, l, l, r);
            FOREACH op IN ARRAY '{=,<>,<,>,<=,>=,~,~~,+,-,*,/,&,|,||}'::text[] LOOP
                IF NOT EXISTS (SELECT FROM pg_operator WHERE oprname = op AND oprleft = l AND oprright = r) THEN
                    EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%s)',
                                   op, l, r, CASE WHEN op ~ '[-+*/&|]' THEN 'picked_up_as_left' ELSE 'picked_up' END);
                END IF;
            END LOOP;
        END LOOP;
    END LOOP;
END $$
"""


def test_operators_that_somebody_planted_in_public_are_never_picked_up(captured: Pipeline) -> None:
    captured.execute(
        "CREATE TYPE mood AS ENUM ('low', 'high')",
        'CREATE TABLE orders (id smallint, part text, how mood, kind "char", PRIMARY KEY (id, part))',
        "CREATE TABLE notes (id int, v text)",
        "ALTER TABLE notes REPLICA IDENTITY FULL",
        "INSERT INTO orders SELECT i, 'p' || i, 'low', 'c' FROM generate_series(1, 100) AS i",
        "INSERT INTO notes SELECT i, 'v' FROM generate_series(1, 100) AS i",
        "ANALYZE",
        PLANT,
    )
    with psycopg.connect(captured.ledger, autocommit=True) as ledger:
        ledger.execute(PLANT.encode())
        with pytest.raises(psycopg.errors.RaiseException):
            ledger.execute("SELECT 1::smallint & 1")  # it does fit better
    captured.capture()
    captured.plan(tables=["public.*"], chunk_rows=10)
    assert captured.read().rows == 200
    captured.execute("UPDATE orders SET how = 'high' WHERE id = '7'")
    captured.drain()
    captured.confirm()
    assert not captured.preflight().errors
    changes_waiting(captured.config, source=captured.source, ledger=captured.ledger)
    read_status(captured.config, source=captured.source, ledger=captured.ledger)


def test_every_session_looks_for_names_in_pg_catalog_alone(captured: Pipeline) -> None:
    captured.execute(f"ALTER DATABASE {captured.connection.info.dbname} SET search_path = public")
    sessions = (
        postgres_session.connect(captured.source, application_name="ordinary"),
        psycopg.connect(with_settings(captured.source, "walsender", replication="database"), autocommit=True),
        ledger_sessions.connect(captured.ledger),
    )
    for session in sessions:
        with session:
            assert session.execute("SHOW search_path").fetchone() == ("pg_catalog",)
