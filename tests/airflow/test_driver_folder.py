"""What a task's driver reads of it goes with the task, or with the next one where it was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark_airflow.driver.driver_folder import driver_folder

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
A_TASK = """
import sys
from tidemark_airflow.driver.driver_folder import driver_folder

with driver_folder() as folder:
    (folder / "lake-key.json").write_text("a key")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def task() -> Iterator[subprocess.Popen[str]]:
    """Another task, which works until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", A_TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PLUGINS
    ) as process:
        yield process
        process.kill()


def folder_of(task: subprocess.Popen[str]) -> Path:
    assert task.stdout is not None
    return Path(task.stdout.readline().strip())


def test_a_key_goes_with_the_task(temporary: Path) -> None:
    with driver_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "lake-key.json").write_text("a key")
    assert list(temporary.iterdir()) == []


def test_a_key_that_a_killed_task_left_goes_with_the_next_one(task: subprocess.Popen[str], temporary: Path) -> None:
    left = folder_of(task)
    task.send_signal(signal.SIGKILL)
    task.wait()
    assert (left / "lake-key.json").exists()
    with driver_folder() as folder:
        assert list(temporary.iterdir()) == [folder]


def test_a_key_of_a_task_that_works_stays(task: subprocess.Popen[str]) -> None:
    beside = folder_of(task)
    with driver_folder():
        assert (beside / "lake-key.json").exists()
    task.communicate()
    assert not beside.exists()
