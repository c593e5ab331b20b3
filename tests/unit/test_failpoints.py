"""Where a test may kill the process: what the environment variable means."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import failpoint_names
from tests.unit.test_architecture import modules_below
from tidemark import failpoints


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def _survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises where the process would be signalled."""

    def kill(pid: int, signum: int) -> None:
        raise Killed(signal.Signals(signum).name)

    monkeypatch.setattr(failpoints, "os", SimpleNamespace(**{**vars(os), "kill": kill}))
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)


def test_a_process_dies_at_the_name_that_the_variable_has_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    failpoints.reach("read.after_low")
    monkeypatch.setenv(failpoints.VARIABLE, "read.after_low")
    failpoints.reach("read.after_files")
    with pytest.raises(Killed, match="SIGKILL"):
        failpoints.reach("read.after_low")


def test_a_process_is_stopped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "read.after_low:stop")
    with pytest.raises(Killed, match="SIGSTOP"):
        failpoints.reach("read.after_low")
    failpoints.reach("read.after_low")


def test_of_all_that_reach_a_name_the_first_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"each:{tmp_path}")
    for name in failpoint_names.NAMES:
        with pytest.raises(Killed, match="SIGKILL"):
            failpoints.reach(name)
        failpoints.reach(name)
    assert {file.name for file in tmp_path.iterdir()} == set(failpoint_names.NAMES)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"each:{tmp_path / 'gone'}")
    with pytest.raises(FileNotFoundError):
        failpoints.reach("read.after_low")


def test_the_names_that_the_code_reaches_are_those_that_are_listed() -> None:
    reached = re.compile(r'\breach\("([a-z_.]+)"')
    code = [*modules_below("include/tidemark"), *modules_below("spark_apps")]
    assert {name for module in code for name in reached.findall(module.read_text())} == set(failpoint_names.ALL)
