"""Row filters run as a role that may read what is captured and no more: nothing else does, and preflight says what the
role lacks, and what it has too much."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.pipeline import Pipeline
from tidemark.config import TableRule
from tidemark.errors import FilterRoleRefused, ReadRefused


@pytest.fixture
def with_role(captured: Pipeline) -> Iterator[Pipeline]:
    """The pipeline's role is no superuser; row filters run as a role that may read what is captured, and no more."""
    captured.execute(
        "CREATE TABLE public.parts (id int PRIMARY KEY, note text, secret text, hidden text)",
        "INSERT INTO public.parts SELECT i, 'n' || i, 's', 'h' FROM generate_series(1, 30) AS i",
        "CREATE TABLE public.salaries (name text)",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        f"CREATE ROLE capturing LOGIN REPLICATION PASSWORD '{captured.connection.info.password}'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO capturing",
        "GRANT USAGE ON SCHEMA public TO capturing",
        "CREATE ROLE row_filters NOLOGIN",
        "GRANT USAGE ON SCHEMA public TO row_filters",
        "GRANT SELECT (id, note, secret) ON public.parts TO row_filters",
        "GRANT row_filters TO capturing WITH INHERIT FALSE, SET TRUE",
    )
    captured.with_tables(TableRule("public.parts", leave_out=("hidden",), mask={"secret": "null"}))
    captured.capture()
    captured.source = make_conninfo(captured.source, user="capturing")
    captured.config = dataclasses.replace(captured.config, manage_publication=False, filter_role="row_filters")
    yield captured
    captured.execute("DROP OWNED BY capturing, row_filters", "DROP ROLE capturing, row_filters")


def of_the_role(captured: Pipeline) -> list[tuple[str, str]]:
    report = captured.preflight(act=False)
    return [(f.severity, str(f)) for f in report.findings if f.check == "filter_role"]


def test_a_filter_runs_as_the_role_of_row_filters_and_nothing_else_does(with_role: Pipeline) -> None:
    assert of_the_role(with_role) == []
    (backfill,) = with_role.plan(tables=["public.parts"], row_filter="id > 25")
    with_role.read()
    assert [row["id"] for row in with_role.rows(backfill)] == [26, 27, 28, 29, 30]
    with_role.execute("REVOKE SELECT ON public.parts FROM row_filters")
    refused = re.escape("may not read all that is captured of public.parts")
    with pytest.raises(FilterRoleRefused, match=refused):
        with_role.plan(tables=["public.parts"], row_filter="id > 20", replace=True)
    with_role.execute("GRANT SELECT ON public.parts TO row_filters")
    with_role.plan(tables=["public.parts"], row_filter="id > 20", replace=True)
    with_role.execute("REVOKE SELECT ON public.parts FROM row_filters")
    with pytest.raises(FilterRoleRefused, match=refused):
        with_role.read()
    (whole,) = with_role.plan(tables=["public.parts"], replace=True)
    with_role.read()
    assert len(with_role.rows(whole)) == 30


def test_a_role_that_the_pipeline_may_not_become_refuses_the_filter(with_role: Pipeline) -> None:
    with_role.execute("REVOKE row_filters FROM capturing")
    with pytest.raises(FilterRoleRefused, match="may not SET ROLE to it"):
        with_role.plan(tables=["public.parts"], row_filter="id > 20")
    with_role.config = dataclasses.replace(with_role.config, filter_role="nobody")
    with pytest.raises(FilterRoleRefused, match="it does not exist"):
        with_role.plan(tables=["public.parts"], row_filter="id > 20")


@pytest.mark.parametrize(
    ("statement", "severity", "message", "cure"),
    [
        ("REVOKE row_filters FROM capturing", "warning", "capturing may not become", True),
        ("REVOKE SELECT (note) ON public.parts FROM row_filters", "warning", "may not read note of public.parts", True),
        ("REVOKE USAGE ON SCHEMA public FROM row_filters", "warning", "may not look into schema public", True),
        ("ALTER TABLE public.parts ENABLE ROW LEVEL SECURITY", "warning", "Row-level security", True),
        ("ALTER ROLE row_filters REPLICATION CREATEDB", "error", "has REPLICATION, CREATEDB", True),
        ("ALTER ROLE row_filters SUPERUSER", "error", "has SUPERUSER", True),
        ("GRANT SELECT ON public.salaries TO row_filters", "warning", "what is not captured of public.salaries", False),
        ("GRANT SELECT ON public.parts TO row_filters", "warning", "what is not captured of public.parts", False),
        ("GRANT UPDATE ON public.parts TO row_filters", "warning", "may change public.parts", False),
        ("ALTER TABLE public.salaries OWNER TO row_filters", "warning", "may change public.salaries", False),
    ],
)
def test_preflight_says_what_the_role_lacks_and_what_it_has_too_much(
    with_role: Pipeline, statement: str, severity: str, message: str, cure: bool
) -> None:
    with_role.execute(statement)
    first = of_the_role(with_role)[0]
    assert first[0] == severity
    assert message in first[1]
    if cure:
        report = with_role.preflight(act=False)
        with_role.execute(next(f.remedy for f in report.findings if f.check == "filter_role"))
        assert of_the_role(with_role) == []


def test_preflight_refuses_a_role_that_is_none_or_the_pipelines_own(with_role: Pipeline) -> None:
    for role, reason in (("nobody", "does not exist"), ("capturing", "is the pipeline's own")):
        with_role.config = dataclasses.replace(with_role.config, filter_role=role)
        ((severity, message),) = of_the_role(with_role)
        assert (severity, reason in message) == ("error", True)


def test_row_level_security_refuses_a_filter_rather_than_hiding_rows(with_role: Pipeline) -> None:
    with_role.execute(
        "ALTER ROLE capturing BYPASSRLS",
        "ALTER TABLE public.parts ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON public.parts USING (id < 3)",
    )
    with pytest.raises(FilterRoleRefused, match="row-level security"):
        with_role.plan(tables=["public.parts"], row_filter="id > 0")
    with_role.config = dataclasses.replace(with_role.config, filter_role=None)
    with_role.execute("ALTER ROLE capturing NOBYPASSRLS")
    with pytest.raises(ReadRefused, match="row-level security"):
        with_role.plan(tables=["public.parts"], row_filter="id > 0")
