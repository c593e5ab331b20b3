"""What set-up, demo and tests show while they work: one line per step, with what it does and how long it took.

Standard library only: set-up runs before anything is installed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class StepFailed(Exception):
    """A sentence for the person at the terminal: what failed, and what to type."""


@dataclass
class Steps:
    """`took` keeps the seconds of every step, in order."""

    took: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        print(f"  {title} … ", end="", flush=True)
        started = time.monotonic()
        try:
            yield
        except BaseException:
            print(f"failed after {time.monotonic() - started:.1f} s", flush=True)
            raise
        self.took.append((title, time.monotonic() - started))
        print(f"{self.took[-1][1]:.1f} s", flush=True)


def run(command: Sequence[object], log: Path, *, env: Mapping[str, str], cwd: Path | None = None) -> None:
    """Run a command with its output in a file. Raises StepFailed with the output's last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.run(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=cwd
        )
    if process.returncode != 0:
        tail = log.read_text(errors="replace").strip().splitlines()[-12:]
        raise StepFailed(
            "\n".join([f"{Path(str(command[0])).name} ended with {process.returncode}:", *tail, f"(all of it: {log})"])
        )


def end_by_exception() -> None:
    """Let SIGTERM, as Ctrl-C, be an exception, so that this process stops the servers and sessions that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def waited_for(command: Sequence[str], **options: Any) -> int:
    """Run a command to its end, and return its code; `options` are those of Popen.

    Ctrl-C reaches the command as well, which has servers to stop then: it is waited for, where `subprocess.run` kills
    after a quarter of a second. A second Ctrl-C waits no longer. Whatever else ends this process ends the command.
    """
    process = subprocess.Popen(command, **options)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    except BaseException:
        process.terminate()
        process.wait()
        raise


def fail(error: StepFailed) -> int:
    """Say why; the answer is the program's exit code."""
    print(f"\n{error}", file=sys.stderr, flush=True)
    return 1
