"""The soak of a pipeline that follows its source: run after run, each a drain and a merge beside each other, processes
of their own, for TIDEMARK_SOAK_MINUTES.

Whoever merges has a driver of its own. Drain, merge and driver are killed by SIGKILL at any moment, each alone or with
its driver, which then goes on without it for a while; leases are taken from tasks that live, connections to the ledger
are cut, the source crashes and fails over. Backfills and maintenance are let in. What ends is started again, as Airflow
does it. In the end every table equals its source."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import psutil
import psycopg
import pytest

from sandbox.services.postgres import wait_for
from tests.simulation.failing_over import GAPS
from tests.simulation.test_soak import MINUTES, Soak
from tests.simulation.test_soak import soak as soak
from tests.support.capture import Environment
from tests.support.stage_process import Started

RUN_S = 90
WAIT_S = 60.0
TASKS = ("follow_drain", "follow_merge")


@dataclass
class Runs:
    """Run after run until it is told to stop; `environment` is where they find the source now."""

    soak: Soak
    stop: threading.Event = field(default_factory=threading.Event)
    stopped_at: datetime | None = None
    processes: dict[str, Started] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own: Environment = copy.copy(self.soak.environment)
        self.own.sessions, self.own.wait_s = {}, WAIT_S
        self.thread = threading.Thread(target=self._go_on)

    def _go_on(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            self.own.begin_run(f"following-{number}")
            self.own.ends_at = datetime.now(UTC) + timedelta(seconds=RUN_S)
            self._until_it_works(self.own.preflight)
            tasks = [threading.Thread(target=self._task, args=(name,)) for name in TASKS]
            for task in tasks:
                task.start()
            for task in tasks:
                task.join()
            self._until_it_works(self.own.confirm)
            self.soak.done["runs that followed"] += 1

    def _until_it_works(self, stage: Callable[[], object]) -> None:
        """For a while: a source or a ledger that is away comes back."""

        def works() -> bool:
            self.own.source = self.soak.environment.source
            try:
                stage()
            except (*GAPS, psycopg.Error) as told:
                self.soak.done[type(told).__name__] += 1
                return False
            return True

        with suppress(TimeoutError):
            wait_for(f"{stage} works", works, WAIT_S)

    def _task(self, name: str) -> None:
        """One task, try after try."""
        while True:
            self.own.source = self.soak.environment.source
            process = self.processes[name] = self.own.start(name, own_jvm=True)
            output, _ = process.communicate()
            if process.returncode == 0:
                return
            if process.returncode != -signal.SIGKILL:
                last = next((line for line in reversed(output.splitlines()) if line and line[0].isalpha()), "nothing")
                error = last.partition(":")[0].rpartition(".")[2]
                self.soak.done[f"{name} ended with {error}"] += 1
                self._until_it_works(self.own.preflight)  # a gap asks for a slot
            if self.stopped_at is not None and datetime.now(UTC) > self.stopped_at + timedelta(seconds=180):
                return

    @contextmanager
    def following(self) -> Iterator[None]:
        self.thread.start()
        try:
            yield
        finally:
            self.stop.set()
            self.stopped_at = datetime.now(UTC)
            self.thread.join()
            self.own.close()


@dataclass
class FollowingSoak:
    """The same pipeline, source and neighbours; what happens to runs is another thing."""

    soak: Soak
    runs: Runs

    def happen(self) -> None:
        soak = self.soak
        weighted: list[tuple[Callable[[], object], int]] = [
            (self.kill_the_drain, 4),
            (self.kill_the_merge, 3),
            (self.kill_the_driver, 3),
            (self.kill_merge_and_driver, 2),
            (self.take_leases_away, 2),
            (self.cut_off_the_ledger, 2),
            (self.cleared, 2),
            (soak.plan, 1),
            (soak.read, 2),
            (soak.end, 3),
            (soak.crash, 1),
            (soak.unpark, 1),
            (soak.environment.maintain, 1),
        ]
        act = soak.random.choice([act for act, weight in weighted for _ in range(weight)])
        self.attempt(act)
        # What happens next falls some time into the work of a drain, or upon its end.
        with suppress(subprocess.TimeoutExpired):
            self.runs.processes["follow_drain"].wait(soak.random.uniform(1, 8))

    def attempt(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except (*GAPS, psycopg.Error, psutil.Error, ProcessLookupError) as told:
            self.soak.done[type(told).__name__] += 1
            return False
        self.soak.done[act.__name__] += 1
        return True

    def kill_the_drain(self) -> None:
        os.kill(self.runs.processes["follow_drain"].pid, signal.SIGKILL)

    def kill_the_merge(self) -> None:
        """Its driver goes on until it sees that nobody beats."""
        os.kill(self.runs.processes["follow_merge"].pid, signal.SIGKILL)

    def kill_the_driver(self) -> None:
        for child in psutil.Process(self.runs.processes["follow_merge"].pid).children(recursive=True):
            child.kill()

    def kill_merge_and_driver(self) -> None:
        os.killpg(self.runs.processes["follow_merge"].pid, signal.SIGKILL)

    def take_leases_away(self) -> None:
        """As if whoever holds one had slept for longer than it lasts; and somebody else drains."""
        self.soak.environment.let_leases_end()
        self.soak.environment.begin_run()
        self.soak.environment.drain()

    def cut_off_the_ledger(self) -> None:
        """Once, or every session that comes for some seconds."""
        for _ in range(self.soak.random.choice([1, 30])):
            with suppress(TimeoutError):
                wait_for("somebody uses the ledger", self._terminated, 1)

    def _terminated(self) -> int:
        """How many sessions of the ledger were ended."""
        with suppress(psycopg.Error), psycopg.connect(self.soak.environment.ledger, autocommit=True) as connection:
            return connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).rowcount
        return 0

    def cleared(self) -> None:
        """A task of a run that is over, run again beside the one that follows."""
        environment = self.soak.environment
        environment.begin_run("following-1")
        environment.ends_at = datetime.now(UTC)
        process = environment.start(self.soak.random.choice(TASKS), own_jvm=True)
        try:
            process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.thorough
def test_a_pipeline_that_follows_and_is_never_left_alone_ends_equal_to_its_source(
    soak: Soak, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = soak.environment
    soak.begin()
    environment.wait_s = WAIT_S
    runs = Runs(soak)
    following = FollowingSoak(soak, runs)
    began = time.monotonic()
    failovers = [(0.4, True), (0.75, False)]
    with soak.writing(), runs.following():
        while (passed := (time.monotonic() - began) / (MINUTES * 60)) < 1 or failovers:
            if failovers and passed > failovers[0][0]:
                following.attempt(lambda: soak.fail_over(failovers.pop(0)[1]))
                soak.done["failovers"] += 1
            if set(TASKS) <= runs.processes.keys():
                following.happen()
        soak.stop.set()
    environment.wait_s = 0.0
    soak.judge(capsys)
