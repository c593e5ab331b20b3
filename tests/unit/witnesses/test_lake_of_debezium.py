"""What Debezium's engine gives is shown, and never mixed with the results of Tidemark's own plays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.pipeline import Refused
from tests.witnesses import __main__ as witnesses
from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.scoreboard import SuiteResult


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree without files, and the places where results are kept."""
    (tmp_path / "src" / "test" / "regress" / "sql").mkdir(parents=True)
    monkeypatch.setenv("POSTGRES_SOURCE", str(tmp_path))
    monkeypatch.setattr(witnesses, "end_by_exception", lambda: None)
    monkeypatch.setattr(witnesses, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(witnesses, "PLAYS", tmp_path / "plays.json")
    (tmp_path / "plays.json").write_text("[]")
    return tmp_path


def called(monkeypatch: pytest.MonkeyPatch, lake: str) -> int:
    monkeypatch.setattr(sys, "argv", ["witnesses", "--suite", "regression", "--page", "--lake", lake])
    return witnesses.main()


def test_without_the_jars_nothing_is_played(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> list[str]:
        raise Refused("Debezium's jars cannot be had")

    monkeypatch.setattr(witnesses, "debezium", refused)
    monkeypatch.setattr(witnesses, "_play", lambda *_: pytest.fail("played"))
    assert called(monkeypatch, "debezium") == 0
    assert capsys.readouterr().err == "Debezium's jars cannot be had: nothing was played\n"


@pytest.mark.parametrize(("lake", "is_kept"), [("debezium", False), ("rows", True)])
def test_only_our_own_results_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lake: str, is_kept: bool
) -> None:
    result = SuiteResult("regression", 18, lake, "1/1", ["a"], [TableVerdict("a", "t", "equal")], {"files": 1})
    monkeypatch.setattr(witnesses, "debezium", lambda: ["java"])
    monkeypatch.setattr(witnesses, "_play", lambda *_: iter([result]))
    assert called(monkeypatch, lake) == 0
    assert (folder / "kept").exists() is is_kept
    assert ((folder / "plays.json").read_text() != "[]") is is_kept
    assert (folder / "plays.md").exists() is is_kept
    assert bool(capsys.readouterr().out) is is_kept
