"""Commands that the commands of make start, and what becomes of them if somebody loses patience."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.wait_log import Wait

# Works until it is told to end, and cleans up when it may: both of them until there is a file.
CHILD = """
import signal, sys
from pathlib import Path
from tidemark.wait_log import Wait
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
folder = Path(sys.argv[1])
def until(name):
    wait = Wait(60, every_s=0.02)
    while not (folder / name).exists():
        assert wait.pause(lambda: name)
try:
    (folder / "began").touch()
    until("never")
finally:
    (folder / "is told").touch()
    until("may clean up")
    (folder / "cleaned up").touch()
"""
PARENT = """
import sys
from sandbox.steps import end_by_exception, waited_for
end_by_exception()
sys.exit(waited_for([sys.executable, "-c", sys.argv[1], sys.argv[2]]))
"""


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM to the parent"])
def test_a_command_that_is_ended_cleans_up_behind_itself(told: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, str(tmp_path)]
    # Whoever starts the tests in the background has had their SIGINT ignored, which children inherit.
    with subprocess.Popen(
        command,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as parent:
        _until(tmp_path / "began")
        if told is signal.SIGINT:  # as a terminal does, to all that it has in the foreground
            os.killpg(parent.pid, told)
        else:
            parent.send_signal(told)
        _until(tmp_path / "is told")
        # `subprocess.run` would kill it by now.
        with pytest.raises(subprocess.TimeoutExpired):
            parent.wait(timeout=1)
        (tmp_path / "may clean up").touch()
        assert parent.wait(timeout=30) != 0
    assert (tmp_path / "cleaned up").exists()


def _until(file: Path) -> None:
    wait = Wait(30, every_s=0.02)
    while not file.exists():
        assert wait.pause(lambda: file.name)
