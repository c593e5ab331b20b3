"""`make down` ends what `make up` started, all of it, and nothing else."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sandbox.checkout import Checkout
from sandbox.services import processes
from sandbox.services.postgres import wait_for
from sandbox.services.processes import Process, Services

Children = list[subprocess.Popen[bytes]]


@pytest.fixture
def started() -> Iterator[Children]:
    children: Children = []
    yield children
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


def lead_a_session(started: Children, script: str) -> Process:
    """A shell that leads a session and has a child that ignores SIGTERM."""
    child = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    started.append(child)
    wait_for("the shell has its child", lambda: psutil.Process(child.pid).children())
    return Process("leader", child.pid, psutil.Process(child.pid).create_time())


def running(checkout: Checkout, *processes: Process) -> Services:
    checkout.made.mkdir()
    services = Services(checkout)
    services.processes = list(processes)
    return services


STUBBORN = "(trap '' TERM; while :; do sleep 1; done) & wait"


def test_down_ends_a_process_and_what_outlives_it_in_its_session(tmp_path: Path, started: Children) -> None:
    leader = lead_a_session(started, STUBBORN)
    grandchild = psutil.Process(leader.pid).children()[0]
    processes.stop_airflow(running(Checkout(tmp_path), leader))
    assert not leader.alive
    wait_for("the stubborn one is gone", lambda: not grandchild.is_running() or grandchild.status() == "zombie")


def test_down_ends_what_a_dead_process_left_behind(tmp_path: Path, started: Children) -> None:
    leader = lead_a_session(started, STUBBORN)
    orphan = psutil.Process(leader.pid).children()[0]
    started[0].send_signal(signal.SIGKILL)
    started[0].wait()
    assert not leader.alive
    processes.stop_airflow(running(Checkout(tmp_path), leader))
    wait_for("the orphan is gone", lambda: not orphan.is_running() or orphan.status() == "zombie")


def test_down_leaves_a_stranger_with_the_same_pid_alone(tmp_path: Path, started: Children) -> None:
    stranger = lead_a_session(started, "sleep 60 & wait")
    noted = Process("api-server", stranger.pid, stranger.started - 3600)
    assert not noted.alive
    processes.stop_airflow(running(Checkout(tmp_path), noted))
    with pytest.raises(subprocess.TimeoutExpired):
        started[0].wait(timeout=0.5)


def test_what_is_noted_survives_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    noted = running(Checkout(tmp_path), Process("scheduler", 1, 1.5))
    noted.postgres_port = 5433
    noted.write()
    again = Services.read(Checkout(tmp_path))
    assert (again.processes, again.postgres_port) == (noted.processes, 5433)
    assert (again.postgres_password, again.ui_password) == (noted.postgres_password, noted.ui_password)
    assert stat.S_IMODE((tmp_path / ".tidemark" / "services.json").stat().st_mode) == 0o600
    assert noted.ui_password not in repr(noted)


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert processes._free_port(port) > port
