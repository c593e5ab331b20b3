"""What Debezium's engine gives is never mixed with the results of Tidemark's own plays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.pipeline import Refused
from tests.witnesses import __main__ as witnesses
from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.scoreboard import Play, SuiteResult, plays_in

SECTION = "## The same files with Debezium's engine"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree without files, and the places where results are kept."""
    (tmp_path / "src" / "test" / "regress" / "sql").mkdir(parents=True)
    monkeypatch.setenv("POSTGRES_SOURCE", str(tmp_path))
    monkeypatch.setattr(witnesses, "end_by_exception", lambda: None)
    monkeypatch.setattr(witnesses, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(witnesses, "PLAYS", tmp_path / "plays.json")
    monkeypatch.setattr(witnesses, "PEER_PLAYS", tmp_path / "peers.json")
    for name in ("plays", "peers"):
        (tmp_path / f"{name}.json").write_text("[]")
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


@pytest.mark.parametrize("lake", ["debezium", "rows"])
def test_what_the_engine_gave_is_kept_apart_and_stands_on_the_same_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lake: str
) -> None:
    is_peer = lake == "debezium"
    about = "regression", 18, witnesses.PEER if is_peer else lake, "1/1"
    result = SuiteResult(*about, ["a"], [TableVerdict("a", "t", "equal")], {"files": 1})
    monkeypatch.setattr(witnesses, "debezium", lambda: ["java"])
    monkeypatch.setattr(witnesses, "_play", lambda *_: iter([result]))
    assert called(monkeypatch, lake) == 0
    assert [*(folder / "kept").glob("debezium/*.json")] != [] or not is_peer
    assert [*(folder / "kept").glob("*.json")] != [] or is_peer
    kept = {name: plays_in(folder / f"{name}.json") for name in ("plays", "peers")}
    assert kept == {"plays": [] if is_peer else [Play.of(result)], "peers": [Play.of(result)] if is_peer else []}
    assert (SECTION in (folder / "plays.md").read_text()) is is_peer


def test_a_difference_of_the_engine_is_no_fault_of_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [TableVerdict("a", "t", "differs", "altered: 1 of 1 rows are not there")]
    monkeypatch.setattr(witnesses, "debezium", lambda: ["java"])
    for lake, code in (("debezium", 0), ("rows", 1)):
        result = SuiteResult("regression", 18, lake, "1/1", ["a"], verdicts, {"files": 1})
        monkeypatch.setattr(witnesses, "_play", lambda *_, result=result: iter([result]))
        assert called(monkeypatch, lake) == code
