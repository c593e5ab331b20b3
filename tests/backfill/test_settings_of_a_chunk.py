"""A chunk counts only where the settings that its texts depend on are Tidemark's, from its first row to its last."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from tests.support.pipeline import Pipeline
from tidemark.backfill import read_sessions
from tidemark.ledger.reading.backfills import Backfill

# An operator class for the key whose "greater" changes a setting, as any function of another's may.
KEY = """
    CREATE FUNCTION public.greater(a int, b int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN PERFORM pg_catalog.set_config('{name}', '{value}', {local}); RETURN a > b; END $$;
    CREATE OPERATOR public.># (LEFTARG = int, RIGHTARG = int, FUNCTION = public.greater);
    CREATE OPERATOR CLASS public.counted FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,
        OPERATOR 4 >=, OPERATOR 5 public.>#, FUNCTION 1 btint4cmp(int, int);
    CREATE TABLE public.measured (id int NOT NULL, f float8);
    CREATE UNIQUE INDEX by_id ON public.measured (id public.counted);
    ALTER TABLE public.measured REPLICA IDENTITY USING INDEX by_id;
    INSERT INTO public.measured SELECT i, i / 3.0::float8 FROM generate_series(1, 50) AS i;
    ANALYZE public.measured
"""


MENDED = """
    CREATE OR REPLACE FUNCTION public.greater(a int, b int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RETURN a > b; END $$
"""


def ended_by_settings(captured: Pipeline, backfill: Backfill, name: str) -> str:
    """The settings that the end of the backfill names; `name` is one of them."""
    reason = captured.again(backfill).state_reason or ""
    settings = re.search(r"read under settings that change how values read: ([^.]*)\.", reason)
    assert settings is not None, reason
    assert name in settings[1].split(", ")
    return settings[1]


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("name", "value", "local"),
    [
        ("extra_float_digits", "-15", True),
        ("extra_float_digits", "-15", False),
        ("DateStyle", "German", True),
        ("search_path", "public", False),
        ("row_security", "on", True),
        pytest.param("TimeZone", "Asia/Tokyo", True, marks=pytest.mark.thorough),
        pytest.param("IntervalStyle", "postgres", True, marks=pytest.mark.thorough),
        pytest.param("bytea_output", "escape", True, marks=pytest.mark.thorough),
        pytest.param("xmlbinary", "hex", True, marks=pytest.mark.thorough),
        pytest.param("lc_monetary", "C", True, marks=pytest.mark.thorough),
        pytest.param("quote_all_identifiers", "on", True, marks=pytest.mark.thorough),
        pytest.param("statement_timeout", "1h", True, marks=pytest.mark.thorough),
    ],
)
def test_a_chunk_under_settings_that_changed_is_rejected(
    captured: Pipeline, name: str, value: str, local: bool
) -> None:
    if name == "lc_monetary":
        captured.execute(f"ALTER DATABASE {captured.connection.info.dbname} SET lc_monetary = 'C.UTF-8'")
    captured.execute(KEY.format(name=name, value=value, local=local))
    captured.capture()
    (backfill,) = captured.plan(tables=["public.measured"], chunk_rows=10, readers=1)
    captured.read()
    assert value not in ended_by_settings(captured, backfill, name)
    read = captured.rows(backfill)
    # The first range has no lower bound, so its chunk compares nothing: it counts.
    assert all(row["f"] == row["id"] / 3.0 for row in read)
    assert len(read) < 50
    captured.execute(MENDED)
    (again,) = captured.plan(tables=["public.measured"], chunk_rows=10, readers=1)
    captured.read()
    assert sorted((row["id"], row["f"]) for row in captured.rows(again)) == [(i, i / 3.0) for i in range(1, 51)]


def test_a_session_whose_options_were_dropped_on_the_way_reads_no_chunk_that_counts(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.execute(
        "CREATE TABLE public.measured (id int PRIMARY KEY, f float8)", "INSERT INTO measured VALUES (1, 2)"
    )
    captured.capture()
    (backfill,) = captured.plan(tables=["public.measured"])
    connect = read_sessions.connect

    def without_options(*arguments: Any) -> psycopg.Connection[Any]:
        conn = connect(*arguments)
        conn.execute("RESET extra_float_digits; SET extra_float_digits = 0")  # as behind a pooler that ignores them
        return conn

    monkeypatch.setattr(read_sessions, "connect", without_options)
    captured.read()
    ended_by_settings(captured, backfill, "extra_float_digits")
    assert captured.chunks(backfill) == []
