"""Runs a stage in a process of its own, forked off one that has imported what stages import.

An interpreter takes up to two seconds of CPU to import psycopg, Arrow and pyspark; a fork takes none. The standard
library's fork server is the process they are forked off. A driver with a JVM of its own is a new interpreter all the
same (`Environment.start`).
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Protocol


class Started(Protocol):
    """What tests ask of a process of a stage, whichever way it was started; see `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]: ...


class StageProcess:
    """It leads a session of its own; its output goes to a file until somebody asks for it."""

    def __init__(self, stage: str, input_file: Path, environment: Mapping[str, str]) -> None:
        self._output = input_file.with_suffix(".output")
        self._process = fork_server().Process(
            target=_run, args=(stage, str(input_file), dict(environment), str(self._output))
        )
        self._process.start()
        # Before the standard library waits for its end: a halted one would never come to it.
        atexit.register(self._process.kill)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:
        """All output behind its end; nothing is kept apart as errors."""
        self.wait(timeout)
        return self._output.read_text(errors="replace") if self._output.exists() else "", ""


@cache
def fork_server() -> ForkServerContext:
    """For processes that import much: forked off one that has imported it already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.stage_imports"])
    return context


def _run(stage: str, path: str, environment: dict[str, str], output: str) -> None:
    """In the new process."""
    from tests.support import stages

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(Path(path).parent)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    stages.main(stage, path)
