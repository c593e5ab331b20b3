"""A table that PostgreSQL cannot read: its own backfill ends, the others are read, and nothing starts it again by
itself."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipeline import Pipeline
from tests.support.roles import login
from tests.support.thorough import thorough
from tidemark.backfill.backfill_report import report
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.backfill.verifying import VerifyRequest, plan_verify
from tidemark.errors import BackfillNotApplied, ReadFailed
from tidemark.ledger.captured import backfill_marks
from tidemark.ledger.reading import backfills
from tidemark.ledger.reading.backfills import Backfill
from tidemark.observe import status

RAISES = """
    CREATE OR REPLACE FUNCTION greater(a int, b int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN {} RETURN a > b; END $$
"""
# A key whose order calls a function of its owner.
BROKEN = (
    RAISES.format(""),
    """
    CREATE OPERATOR ># (LEFTARG = int, RIGHTARG = int, FUNCTION = greater);
    CREATE OPERATOR CLASS counted FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,
        OPERATOR 4 >=, OPERATOR 5 >#, FUNCTION 1 btint4cmp(int, int);
    CREATE TABLE broken (id int NOT NULL, v text);
    CREATE UNIQUE INDEX by_id ON broken (id counted);
    ALTER TABLE broken REPLICA IDENTITY USING INDEX by_id
    """,
)
WHOLE = "CREATE TABLE whole (id int PRIMARY KEY)"
ROWS = (
    "INSERT INTO broken SELECT i, 'v' || i FROM generate_series(1, 50) AS i",
    "INSERT INTO whole SELECT generate_series(1, 50)",
    "ANALYZE",
)
TABLES = ["public.broken", "public.whole"]


def of_both(captured: Pipeline, *broken: str) -> None:
    captured.execute(*(broken or BROKEN), WHOLE, *ROWS)
    captured.capture()


def opened(captured: Pipeline, **request: Any) -> dict[str, Backfill]:
    return {one.table: one for one in captured.plan(**{"tables": TABLES, "chunk_rows": 10, "readers": 1, **request})}


def is_held(captured: Pipeline, match: str) -> None:
    """The table is named with its remedy, and nothing starts its backfill by itself; the other one was read."""
    read = {one.table: one for one in _of_the_run(captured)}
    assert read["public.broken"].state == "closed"
    reason = read["public.broken"].state_reason or ""
    assert match in reason
    assert "public.broken" in reason
    assert "start a backfill that names the table" in reason
    assert read["public.whole"].state == "open"
    assert [row["id"] for row in captured.rows(read["public.whole"])] == list(range(1, 51))
    captured.drain()
    with pytest.raises(BackfillNotApplied, match=r"public\.whole: (its one chunk is|all \d+ chunks are) claimed"):
        report(captured.task("report", captured.run_id))
    assert [one.table for one in requested_tables(captured.task("wanted"))] == []
    (finding,) = [f for f in captured.preflight(act=False).findings if f.check == "backfill" and match in f.remedy]
    assert "public.broken" in finding.message
    now = status.read_status(captured.config, source=captured.source, ledger=captured.ledger)
    (concern,) = [c for c in now.health.concerns if c.kind == "needs a backfill" and c.table == "public.broken"]
    assert (concern.severity, match in concern.message) == ("red", True)


def _of_the_run(captured: Pipeline) -> list[Backfill]:
    with captured.ledger_connection() as ledger:
        return backfills.of_run(ledger, captured.run_id)


@pytest.mark.parametrize(
    "code",
    # A value, of the user's own, damage; raised by itself, a constraint, not supported, too complex, a state, a
    # routine, a bug, damage, a privilege.
    [
        "22012",
        "MY001",
        "XX001",
        *thorough("P0001", "23514", "0A000", "54001", "55000", "38000", "XX000", "58P01", "42704"),
    ],
)
def test_an_error_of_its_own_ends_the_backfill_of_that_table_alone(captured: Pipeline, code: str) -> None:
    of_both(captured)
    opened(captured)
    captured.execute(RAISES.format(f"RAISE EXCEPTION 'secret' USING ERRCODE = '{code}';"))
    captured.read()
    is_held(captured, f"SQLSTATE {code}")
    assert "secret" not in str(_of_the_run(captured))


def test_the_cause_is_mended_and_a_backfill_that_names_the_table_reads_it(captured: Pipeline) -> None:
    of_both(captured)
    opened(captured)
    captured.execute(RAISES.format("RAISE EXCEPTION 'no';"))
    captured.read()
    captured.execute(RAISES.format(""))
    assert opened(captured, tables=["public.broken"])
    captured.read()
    (one,) = _of_the_run(captured)
    assert len(captured.rows(one)) == 50


def test_a_table_that_is_marked_anew_is_tried_anew(captured: Pipeline) -> None:
    of_both(captured)
    opened(captured)
    captured.execute(RAISES.format("RAISE EXCEPTION 'no';"))
    captured.read()
    with captured.ledger_connection() as ledger:
        backfill_marks.mark(ledger, "public.broken", "changed", "its column v changed its type")
    assert [one.table for one in requested_tables(captured.task("wanted"))] == ["public.broken"]


@pytest.mark.parametrize("mode", ["chunks", "exported_snapshot"])
def test_a_right_that_is_lost_on_one_column(captured: Pipeline, mode: str) -> None:
    of_both(captured)
    opened(captured, mode=mode)
    role = f"limited_{captured.config.pipeline}"
    captured.execute(login(role, captured.source, "REPLICATION"), f"GRANT SELECT ON whole TO {role}")
    captured.execute(f"GRANT SELECT (id) ON broken TO {role}")
    whole, captured.source = captured.source, captured.source.replace("user=postgres", f"user={role}")
    try:
        if mode == "exported_snapshot":
            captured.read_exported()
        captured.read()
    finally:
        captured.source = whole
        captured.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    is_held(captured, "permission denied")


def test_a_filter_of_the_publication_that_fails_on_a_value(captured: Pipeline) -> None:
    of_both(captured, "CREATE TABLE broken (id int PRIMARY KEY, v text)")
    _filter(captured)
    opened(captured, chunk_rows=1000)
    captured.read()
    is_held(captured, "SQLSTATE 22012")


def _filter(captured: Pipeline) -> None:
    publication = captured.config.publication
    captured.execute(f"ALTER PUBLICATION {publication} SET TABLE whole, broken WHERE (1 / (id - 20) < 9)")
    captured.drain()


@pytest.mark.parametrize("at", ["the plan", "the read"])
def test_a_page_that_is_damaged(captured: Pipeline, at: str) -> None:
    of_both(
        captured,
        "CREATE TABLE broken (id int PRIMARY KEY, v text)",
        "INSERT INTO broken SELECT i, repeat('v', 500) FROM generate_series(100, 200) AS i",
    )
    if at == "the read":
        opened(captured)
    _damage(captured)
    if at == "the plan":
        assert set(opened(captured)) == {"public.whole"}
    captured.read()
    is_held(captured, "SQLSTATE XX00")


def test_a_form_that_names_a_damaged_table_alone_is_refused(captured: Pipeline) -> None:
    of_both(
        captured,
        "CREATE TABLE broken (id int PRIMARY KEY, v text)",
        "INSERT INTO broken SELECT i, repeat('v', 500) FROM generate_series(100, 200) AS i",
    )
    _damage(captured)
    with pytest.raises(ReadFailed, match="SQLSTATE XX00"):
        opened(captured, tables=["public.broken"])
    assert _of_the_run(captured) == []


def _damage(captured: Pipeline) -> None:
    """Garbage in place of the header of the table's third page. What another tablespace has of a table is in no shared
    buffer yet."""
    space = f"space_{captured.config.pipeline}"
    captured.execute("SET allow_in_place_tablespaces = on", f"CREATE TABLESPACE {space} LOCATION ''")
    captured.execute(f"ALTER TABLE broken SET TABLESPACE {space}", "CHECKPOINT")
    ((path,),) = captured.query("SELECT current_setting('data_directory') || '/' || pg_relation_filepath('broken')")
    with Path(path).open("r+b") as file:
        file.seek(2 * 8192, os.SEEK_SET)
        file.write(b"\xff" * 24)


def test_a_verify_ends_for_that_table_alone(captured: Pipeline) -> None:
    captured.with_bounds(chunk_rows=10)
    captured.execute(*BROKEN, WHOLE)
    captured.capture()
    captured.execute(*ROWS)
    captured.run_id = "verify-1"
    plan_verify(captured.task("plan", captured.run_id), request=VerifyRequest(share=Fraction(1)))
    captured.execute(RAISES.format("RAISE EXCEPTION 'no';"))
    captured.read()
    states = {one.table: (one.state, one.state_reason) for one in _of_the_run(captured)}
    assert states["public.whole"] == ("open", None)
    assert states["public.broken"][0] == "closed"
    assert "SQLSTATE P0001" in (states["public.broken"][1] or "")
