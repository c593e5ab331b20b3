"""How far behind the tables get where a process is killed under a run that follows: `python -m benchmarks.killed`.

A real Airflow captures 20 tables with 200 changes a second. Meanwhile, one after the other and each so many times,
these get a SIGKILL: the drain, the merge, its Spark driver, the scheduler, the scheduler with all that runs below it
(its container ends), the source and the ledger. Scheduler and servers are started again after three seconds, as a
supervisor does it. Airflow starts the tasks again.

`killed-at-handover` does it while one run hands over to the next. Two runs are at work then. Drain, merge and driver of
each are killed.

What counts is the longest time from a commit to where it can be read, of all commits until the next kill. In the end
every table has to equal its source, and `history` has to hold each change once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
import psycopg

from benchmarks.latency import (
    DATABASES,
    FEW,
    FOLLOWING,
    WAIT_S,
    WARM_S,
    Services,
    applied,
    at_work,
    change,
    create_many,
    logs_of,
    write_first_rows,
)
from benchmarks.pairs import Benchmark, Goal, Pair, Pairs, Setting, Taken, main
from benchmarks.pipeline import Refused
from benchmarks.warm_spark import warm_session
from sandbox.checks.comparison import compare
from sandbox.services import processes
from sandbox.services.postgres import PostgresServer
from tidemark.lsn import Lsn
from tidemark.wait_log import Wait

BETWEEN_S: Final = 75.0  # two kills: what is behind a first one can end
BEFORE_S: Final = 5.0  # what was committed so long before a kill may wait for what comes behind it
AWAY_S: Final = 3.0
HANDING_OVER: Final = 'schedule: "*/2 * * * *"\nfollow: {every: 2s}'
PIPELINE: Final = "latency"
Thing = TypeVar("Thing")
# Kills so often each kind, and yields what was killed and when.
Killing = Callable[[Services, int], Iterator[tuple[str, float]]]


@dataclass
class Busy:
    """Commits of one table after the other while the block runs; where the source is away, it waits for it."""

    source: str
    committed: list[tuple[int, float, Lsn]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Busy:
        self.thread = threading.Thread(target=self._keep_committing, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _keep_committing(self) -> None:
        while not self.ended.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self.source, autocommit=True) as connection:
                self._commit(connection)
            self.ended.wait(0.2)

    def _commit(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        began = time.monotonic()
        for number in range(1_000_000):
            if self.ended.wait(max(0.0, began + number / FEW.commits_s - time.monotonic())):
                return
            table = number % FEW.tables
            self.committed.append((table, *change(connection, table, FEW)))


def pairs(setting: Setting, way: str, killing: Killing) -> Pairs:
    """One pair: the longest that a commit waited, after any kill; `size` is how often each is killed."""
    lake = setting.folder / "lake"
    logs = logs_of(lake, FEW)
    create = partial(create_many, tables=FEW.tables)
    with at_work(setting.folder, lake, way, starts_it=True, create=create, apart=True) as (source, services):
        with psycopg.connect(source, autocommit=True) as connection:
            write_first_rows(connection, logs, FEW)
        with Busy(source) as busy:
            time.sleep(WARM_S)
            kills = list(killing(services, setting.size))
        behind = seconds_behind(kills, applied(logs, busy.committed))
        for kind, seconds in behind.items():
            print(f"    {kind}: {', '.join(f'{s:.1f}' for s in seconds)} s", flush=True)
        check(source, lake)
    facts = {f"{kind}_s": max(seconds) for kind, seconds in behind.items()}
    yield Pair(Taken(max(facts.values())), facts=facts)


def killed(services: Services, times: int) -> Iterator[tuple[str, float]]:
    """Kill each kind in turn, and yield what was killed and when."""
    kinds: dict[str, Callable[[], None]] = {
        "drain": partial(kill_task, services, "drain"),
        "merge": partial(kill_task, services, "merge"),
        "driver": partial(kill_driver, services),
        **of_no_run(services),
    }
    for _ in range(times):
        for kind, kill in kinds.items():
            at = time.time()
            kill()
            yield kind, at
            time.sleep(BETWEEN_S)


def killed_at_handover(services: Services, times: int) -> Iterator[tuple[str, float]]:
    """Kill each kind in turn, once two runs have a merge, and yield what was killed and when."""
    kinds: dict[str, Callable[[], None]] = {}
    for which, run in (("earlier", 0), ("next", -1)):
        kinds[f"{which}_drain"] = partial(kill_task, services, "drain", run)
        kinds[f"{which}_merge"] = partial(kill_task, services, "merge", run)
        kinds[f"{which}_driver"] = partial(kill_driver, services, run)
    kinds |= of_no_run(services)
    for _ in range(times):
        for kind, kill in kinds.items():
            found("one run to be at work", lambda: len(running_tasks(services, "merge")) == 1)
            found("two runs to be at work", lambda: len(running_tasks(services, "merge")) == 2)
            at = time.time()
            kill()
            yield kind, at


def of_no_run(services: Services) -> dict[str, Callable[[], None]]:
    source, ledger = (services.server_of(database) for database in DATABASES[:2])
    return {
        "scheduler": partial(kill_scheduler, services),
        "source": partial(kill_server, source),
        "ledger": partial(kill_server, ledger),
        # Airflow needs minutes to notice that tasks are gone whose supervisor was killed too, so this comes last.
        "container": partial(kill_scheduler, services, with_all_below=True),
    }


def kill_task(services: Services, task: str, run: int = 0) -> None:
    """The process that runs the task; the one that supervises it tells Airflow. `run` counts the runs that are at work,
    from the earliest on."""

    def runs_it(process: psutil.Process) -> bool:
        with suppress(psutil.Error):  # it has just ended
            return " ".join(process.cmdline()).strip() == f"airflow worker -- {number}"
        return False

    number = found(f"a task {task} to run", lambda: running_tasks(services, task))[run]
    found(f"the process of {task}", lambda: next(filter(runs_it, descendants(services)), None)).kill()


def kill_driver(services: Services, run: int = 0) -> None:
    def is_killed() -> bool:
        running = sorted(
            (process for process in descendants(services) if is_driver(process)),
            key=lambda process: float(process.create_time()),
        )
        with suppress(psutil.Error, IndexError):  # one of them has just ended
            running[run].kill()
            return True
        return False

    found("a driver to run", is_killed)


def is_driver(process: psutil.Process) -> bool:
    """The launcher, a JVM before it that lives for an instant, is none."""
    with suppress(psutil.Error):
        return str(process.name()) == "java" and "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
    return False


def found(what: str, find: Callable[[], Thing | None]) -> Thing:
    """The first thing that is neither None nor empty nor False."""
    waiting = Wait(WAIT_S, every_s=0.5)
    while waiting.pause(lambda: what):
        if thing := find():
            return thing
    raise Refused(f"waited {WAIT_S} s for {what}")


def running_tasks(services: Services, task: str) -> list[str]:
    """The ids of its running instances, that of the earliest run first."""
    query = (
        "SELECT t.id::text FROM task_instance t JOIN dag_run r USING (dag_id, run_id)"
        " WHERE dag_id = 'latency_capture' AND task_id = %s AND t.state = 'running' ORDER BY r.start_date"
    )
    with psycopg.connect(services.server.conninfo("airflow")) as connection:
        return [str(number) for (number,) in connection.execute(query, (task,))]


def descendants(services: Services) -> Iterator[psutil.Process]:
    """What Airflow's processes started; below a scheduler that was killed too."""
    sessions = {process.pid for process in services.processes}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if sessions & {os.getsid(each.pid) for each in (process, *process.parents())}:
                yield process


def kill_scheduler(services: Services, *, with_all_below: bool = False) -> None:
    scheduler = next(each for each in services.processes if each.name == "airflow-scheduler" and each.alive)
    below = psutil.Process(scheduler.pid).children(recursive=True) if with_all_below else []
    for pid in (scheduler.pid, *(process.pid for process in below)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(AWAY_S)
    env = services.environment()
    processes.spawn_airflow(services, ["scheduler", "--skip-serve-logs"], env, Path(env["AIRFLOW_HOME"]))


def kill_server(server: PostgresServer) -> None:
    """Its first process; the others end when they notice."""
    os.kill(int((server.data / "postmaster.pid").read_text().splitlines()[0]), signal.SIGKILL)
    time.sleep(AWAY_S)
    server.start()


def seconds_behind(kills: list[tuple[str, float]], moments: tuple[list[float], list[float]]) -> dict[str, list[float]]:
    """Kind -> for each kill the longest that a commit waited."""
    behind = defaultdict(list)
    ends = [at for _, at in kills[1:]] + [float("inf")]
    for (kind, at), end in zip(kills, ends, strict=True):
        waited = [read - when for when, read in zip(*moments, strict=True) if at <= when + BEFORE_S < end]
        behind[kind].append(max(waited))
    return dict(behind)


def check(source: str, lake: Path) -> None:
    """Raise where a table differs from its source, or `history` lacks a change or has one twice."""
    with warm_session() as spark:
        for number in range(FEW.tables):
            compared = compare(spark, source=source, lake=str(lake), pipeline=PIPELINE, table=f"public.m{number}")
            commits = compared.source_rows // FEW.inserted
            changes = commits * (FEW.inserted + FEW.updated) - FEW.updated  # the first commit finds nothing to change
            history = spark.read.format("delta").load(str(lake / PIPELINE / "history" / "public" / f"m{number}"))
            told: Any = history.select("_commit_lsn", "_ordinal")
            rows, different = told.count(), told.distinct().count()
            if not compared.equal or (rows, different) != (changes, changes):
                raise Refused(f"{compared}; history: {rows} rows, {different} different, {changes} changes")


BENCHMARKS = (
    Benchmark(
        name="killed",
        what="200 changes a second in 20 tables, every: 2s, the longest wait of a commit when anything is killed",
        beside="",
        goals=(Goal("seconds", 60),),
        unit="kills of each",
        sizes={"tiny": 1, "small": 1, "full": 5},
        pairs=partial(pairs, way=FOLLOWING, killing=killed),
    ),
    Benchmark(
        name="killed-at-handover",
        what="a run every two minutes, the longest wait of a commit when anything is killed while two runs are at work",
        beside="",
        goals=(Goal("seconds", 60),),
        unit="kills of each",
        sizes={"tiny": 1, "small": 1, "full": 1},
        pairs=partial(pairs, way=HANDING_OVER, killing=killed_at_handover),
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
