"""docs/witnesses.md has no other fault than those named here, and sets no more aside than somebody has read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.test_architecture import REPOSITORY
from tests.witnesses.__main__ import PLAYS, SUITES, written_page
from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.scoreboard import GOOD, Play, SuiteResult, kept_in, merged, plays_in, write_plays
from tests.witnesses.scoreboard_page import READ, cause, page

ALL = plays_in(PLAYS)
EACH = pytest.mark.parametrize("play", ALL, ids=lambda play: "-".join(map(str, play.key)))
# By suite and server: tables without any column, and runs that a login trigger that fails keeps from logging in.
SET_ASIDE = {("regression", 18): 3, ("regression", 17): 2, ("regression", 16): 1, ("regression", 15): 1}
# The least number of equal tables of each suite. With fewer, most of the suite was not played. Without the event
# trigger, tables count that were marked and read again.
EQUAL = {"regression": 350, "isolation": 250, "subscription": 70, "decoding": 19, "decoding-specs": 50}


def test_every_suite_was_played_whole_on_the_newest_server() -> None:
    assert {play.suite for play in ALL if play.version == 18 and not play.chosen} == SUITES.keys()


def test_the_page_is_what_its_plays_give() -> None:
    assert (REPOSITORY / "docs" / "witnesses.md").read_text() == written_page()


@EACH
def test_no_table_differs_and_no_more_is_set_aside_than_was_read(play: Play) -> None:
    assert {verdict.outcome for verdict in play.set_aside} <= {"parked", "error"}
    assert [verdict for verdict in play.set_aside if cause(verdict) is None] == []
    assert sum(play.outcomes[outcome] for outcome in play.outcomes if outcome not in GOOD) == len(play.set_aside)
    if not play.chosen:
        assert len(play.set_aside) == SET_ASIDE.get((play.suite, play.version), 0)
        read_again = 0 if play.has_trigger else play.outcomes["repaired"]
        assert play.outcomes["equal"] + read_again >= EQUAL[play.suite]


def test_every_cause_that_was_read_is_still_on_the_page() -> None:
    aside = [verdict for play in ALL for verdict in play.set_aside]
    assert {cause(verdict) for verdict in aside} == set(READ.values())


@pytest.mark.parametrize("suite", SUITES)
def test_a_few_files_are_not_played(suite: str) -> None:
    assert len(SUITES[suite]) <= 9


def result(suite: str, file: str, part: str = "1/1") -> SuiteResult:
    return SuiteResult(suite, 18, "rows", part, [file], [TableVerdict(file, "t", "equal")], {"files": 1})


def told(plays: list[Play]) -> list[str]:
    lines = page(plays, SUITES).splitlines()
    return [line for line in lines if line.startswith(("## ", "| a", "| b", "| c"))]


def test_a_play_takes_the_place_of_the_one_before_and_leaves_the_others(tmp_path: Path) -> None:
    before = [Play.of(result("isolation", "a")), Play.of(result("regression", "b"))]
    write_plays(before, tmp_path / "plays.json")
    after = merged(plays_in(tmp_path / "plays.json"), [Play.of(result("isolation", "c"))])
    assert told(after) == [
        "## The regression tests",
        "| b | 1 / 0 / 0 |",
        "## The isolation tests",
        "| c | 1 / 0 / 0 |",
    ]


def test_each_server_has_a_column() -> None:
    older = replace(result("isolation", "a"), version=16, verdicts=[TableVerdict("a", "t", "differs", "2 differences")])
    plays = merged([], map(Play.of, [older, result("isolation", "a"), result("isolation", "b")]))
    text = page(merged(plays, [Play.of(older)]), SUITES)
    assert "| file | 18 | 16 |\n|---|---|---|\n| b | 1 / 0 / 0 | – |\n| a | – | 0 / 0 / 0, 1 differs |\n" in text
    assert "| [isolation](#the-isolation-tests) | 1 | 1, 1 differs |" in text
    assert "| differs | a | t | 16 | 2 differences |" in text


def test_plays_of_chosen_files_stand_beside_those_of_all() -> None:
    chosen = replace(result("isolation", "a"), chosen="a", lake="delta", has_trigger=False)
    text = page(merged([], map(Play.of, [chosen, result("isolation", "a")])), SUITES)
    assert "| 18 | rows | with | all | 1 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| 18 | Delta | without | a | 1 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| file | 18 |\n" in text
    assert "| [isolation](#the-isolation-tests) | 1 |" in text
    alone = page(merged([], map(Play.of, [chosen, replace(result("isolation", "b"), chosen="b")])), SUITES)
    assert "| [isolation](#the-isolation-tests) | 2, of chosen files |" in alone


def test_a_reason_loses_what_differs_from_table_to_table() -> None:
    reasons = [
        f'needs backfill: column "{column}" is built anew beside s.t~{n}, as of 0/{n}' for n, column in enumerate("ab")
    ]
    verdicts = [TableVerdict("a", f"s.t~{n + 1}", "repaired", reason) for n, reason in enumerate(reasons)]
    play = Play.of(replace(result("isolation", "a"), verdicts=verdicts))
    assert {reason: repairs.tables for reason, repairs in play.repairs.items()} == {
        "column … is built anew beside …, as of …": 2
    }


def test_the_parts_of_a_suite_are_put_together(tmp_path: Path) -> None:
    result("isolation", "a").keep(tmp_path)
    result("isolation", "b", "2/2").keep(tmp_path)
    replace(result("isolation", "a"), has_trigger=False).keep(tmp_path)
    replace(result("isolation", "a"), chosen="a").keep(tmp_path)
    kept = [one for one in kept_in(tmp_path) if one.has_trigger and not one.chosen]
    assert [(one.files, one.covered) for one in kept] == [(["a", "b"], {"files": 2})]
    assert len(kept_in(tmp_path)) == 3


def test_plays_are_kept_as_they_were(tmp_path: Path) -> None:
    write_plays(ALL, tmp_path / "plays.json")
    assert plays_in(tmp_path / "plays.json") == ALL
    assert json.loads((tmp_path / "plays.json").read_text()) == json.loads(PLAYS.read_text())
