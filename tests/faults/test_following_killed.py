"""SIGKILL of a following run's drain, merge and driver, once at every failpoint that they reach, while the source is
busy: each is started again, as Airflow does it, and the tables equal the source."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandbox.services.postgres import wait_for
from tests.faults import workload
from tests.support import failpoint_names, judge
from tests.support.capture import Environment
from tests.support.stage_process import Started

TASKS = ("follow_drain", "follow_merge")
EXPECTED = {name for name in failpoint_names.OF_CAPTURE if name.startswith(("drain.", "merge."))}
PATIENCE_S = 900


@dataclass
class Run:
    """Both tasks of a run, each started again until it ends well."""

    environment: Environment
    reached: Path
    is_stopped: bool = False
    processes: dict[str, Started] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.threads = [threading.Thread(target=self._task, args=(name,)) for name in TASKS]

    def _task(self, name: str) -> None:
        while not self.is_stopped:
            process = self.processes[name] = self.environment.start(name, f"each:{self.reached}", own_jvm=True)
            output, _ = process.communicate()
            if process.returncode == 0:
                return
            if process.returncode != -signal.SIGKILL:
                print(f"{name} ended with {process.returncode}:\n{output[-2000:]}")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self.threads:
            thread.start()
        try:
            yield
        finally:
            self.is_stopped = True
            for process in self.processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            for thread in self.threads:
                thread.join()


@pytest.mark.thorough
def test_a_run_killed_at_every_step_equals_its_source(shop: Environment, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    reached.mkdir()
    shop.wait_s = 60.0
    shop.begin_run("following")
    shop.ends_at = datetime.now(UTC) + timedelta(hours=1)

    looks = itertools.count()

    def all_reached() -> bool:
        if next(looks) % 40 == 0:  # now and then: more would be a flood, and merges of it take long
            workload.change(shop)
        return {file.name for file in reached.iterdir()} >= EXPECTED

    with Run(shop, reached).at_work():
        wait_for("all failpoints are reached", all_reached, PATIENCE_S)
        wait_for("the tables equal the source", lambda: judge.wrongs(shop) == [], PATIENCE_S)
    shop.let_leases_end()
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()
