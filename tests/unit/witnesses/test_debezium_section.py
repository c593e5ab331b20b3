"""The page says of each table that differs with Debezium's engine why it does, as somebody has read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from psycopg import sql

from benchmarks.peers import DEBEZIUM_VERSION
from tests.witnesses.__main__ import PEER, PEER_PLAYS
from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.debezium.causes import CAUSES, DOCUMENTATION, cause
from tests.witnesses.debezium.change_events import PeerTable, Row
from tests.witnesses.debezium.debezium_database import SourceTable, differences
from tests.witnesses.debezium.page_section import section
from tests.witnesses.scoreboard import Play, SuiteResult, plays_in

(WHOLE,) = plays_in(PEER_PLAYS)
INT = {"type": "int32"}


def test_all_files_were_played_with_the_version_that_the_links_are_of() -> None:
    assert (WHOLE.suite, WHOLE.version, WHOLE.lake, WHOLE.chosen) == ("regression", 18, PEER, "")
    assert f"/v{DEBEZIUM_VERSION}.Final/" in DOCUMENTATION
    assert WHOLE.covered["files"] >= 220
    assert WHOLE.outcomes["equal"] >= 300


def test_somebody_has_read_why_each_table_differs_and_every_cause_is_on_the_page() -> None:
    assert {verdict.outcome for verdict in WHOLE.set_aside} <= {"differs", "error"}
    assert [verdict for verdict in WHOLE.set_aside if cause(verdict) is None] == []
    found = {cause(verdict) for verdict in WHOLE.set_aside}
    assert [one for one in CAUSES if one not in found and not one.varies] == []


def played(*verdicts: TableVerdict, lake: str = PEER) -> Play:
    return Play.of(SuiteResult("regression", 18, lake, "1/1", ["a", "b"], verdicts, {"files": 2}))


def rows_of(text: str, first: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {first}")]


def test_a_dropped_table_counts_as_dropped_alone_and_ours_stand_beside() -> None:
    peer = played(TableVerdict("a", "t", "equal"), TableVerdict("a", "u", "dropped"), TableVerdict("b", "v", "dropped"))
    ours = played(TableVerdict("a", "t", "repaired", "why"), lake="delta")
    text = section([peer], [replace(ours, version=17), replace(ours, chosen="a"), ours, replace(ours, lake="rows")])
    assert rows_of(text, "Debezium's engine") == [
        f"| Debezium's engine {DEBEZIUM_VERSION} | regression | 18 | 2 | 1 | – | 2 | – | – | 0 | 0 |"
    ]
    assert rows_of(text, "Tidemark") == ["| Tidemark | regression | 18 | 2 | 0 | 1 | 0 | 0 | 0 | 0 | 0 |"]


def test_tables_are_counted_by_cause_and_a_reason_that_nobody_read_stands_for_itself() -> None:
    def differs(table: str, reason: str) -> TableVerdict:
        return TableVerdict("a", table, "differs", reason)

    text = section([played(differs("t", "odd"), differs("u", "altered: 1"), differs("v", "altered: 2"))], [])
    altered = next(one for one in CAUSES if one.text == "^altered")
    _, table = text.split("### Why tables differ with Debezium\n")
    assert table.splitlines()[5:] == [
        f"| {altered.what} | 2 | a: u | {altered.documented} |",
        "| odd | 1 | a: t | – |",
    ]


def test_without_a_play_there_is_no_section() -> None:
    assert section([], []) == ""


def held(*rows: Row, fields: dict[str, dict[str, Any]]) -> PeerTable:
    table = PeerTable()
    table.evolve(fields, ())
    for row in rows:
        table.apply("c", None, None, row)
    return table


@pytest.mark.parametrize(
    ("kind", "field", "there", "here", "found"),
    [
        ("int4", INT, 1, 2, "only values of b (int4, int32): source 1, events 2"),
        ("int4", INT, None, 2, "only values of b (int4, int32): source None, events 2"),
        ("int2vector", {"type": "array"}, (1, 2), [], "only values of b (int2vector, array): source (1, 2), events ()"),
        (
            "interval",
            {"type": "string", "name": "io.debezium.time.Interval"},
            "infinity",
            "P0Y0M0DT0H0M0S",
            "only values of b (interval, string io.debezium.time.Interval): source infinity, events (0, 0, 0)",
        ),
    ],
)
def test_a_difference_in_one_column_names_it_with_a_value_of_each_side(
    kind: str, field: dict[str, Any], there: object, here: object, found: str
) -> None:
    kinds = {"a": "int4", "b": kind}
    table = SourceTable(1, "s.t", False, True, kinds, sql.SQL("t"))
    events = held({"a": 1, "b": here}, fields={"a": INT, "b": field})
    text = differences([{"a": 1, "b": there}], events, table)
    assert text.startswith(
        "1 of 1 rows are not there, 1 of 1 are too many; events {'c': 1}; " + found + "; source {'a': 1, "
    )
    assert "only values" not in differences([{"a": 1, "b": there}, {"a": 2, "b": there}], events, table)


def test_equal_rows_differ_in_nothing_and_a_column_that_no_event_had_is_named() -> None:
    table = SourceTable(1, "s.t", False, True, {"a": "int4", "b": "int4"}, sql.SQL("t"))
    assert differences([{"a": 1, "b": None}], held({"a": 1}, fields={"a": INT}), table) == ""
    text = differences([{"a": 1, "b": 2}], held({"a": 1}, fields={"a": INT}), table)
    assert "; no event had b; " in text
    assert "only values of b (int4, not in an event): source 2, events None" in text
