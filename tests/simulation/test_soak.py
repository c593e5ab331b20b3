"""A pipeline at work for TIDEMARK_SOAK_MINUTES: pgbench, a neighbour that changes and alters tables, backfills, tasks
killed by SIGKILL at any moment, crashes of the source, two failovers. In the end every table equals its source.

Unlike the simulations nothing here stands still while a stage runs, and nothing follows from a seed alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg
import pytest
from pyspark.sql import SparkSession

from sandbox.services.postgres import PostgresServer, running
from tests.conftest import create_database, drop_database
from tests.simulation import altering
from tests.simulation.altering import Altered
from tests.simulation.backfilling import HISTORY_ONLY, RULES
from tests.simulation.failing_over import GAPS, Chain
from tests.simulation.flow import Met
from tests.simulation.workload import Workload, create_tables
from tests.support import judge
from tests.support.capture import Environment
from tests.support.pipeline import pipeline_config
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.config import TableRule
from tidemark.observe.table_commands import unpark

MINUTES = float(os.environ.get("TIDEMARK_SOAK_MINUTES", "20"))
SEED = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
TABLES = (*RULES, TableRule("public.pgbench_*"))
PGBENCH_S = 0.02  # what a transaction of it takes at most on an idle machine: fifty a second
PROGRAMS = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": "/"}


@dataclass
class Soak:
    """`done` counts what happened."""

    environment: Environment
    chain: Chain
    random: Random
    done: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)
    backfill_run: str | None = None
    unparked: set[str] = field(default_factory=set)  # to be backfilled

    def __post_init__(self) -> None:
        self.altered = Altered(self.environment, Random(SEED), only_told=True)

    # --- who writes -----------------------------------------------------------------------------------------------

    def pgbench(self, *options: str) -> subprocess.Popen[bytes]:
        server = self.chain.primary
        target = server.conninfo_for_programs(self.chain.database)
        command = [str(server.binary("pgbench")), *options, target]
        return subprocess.Popen(command, env=PROGRAMS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def bench(self) -> None:
        """Until it is told to stop, on whichever server is the primary."""
        while not self.stop.is_set():
            running_bench = self.pgbench("-n", "-c", "3", "-R", str(round(1 / PGBENCH_S)), "-T", "36000")
            while running_bench.poll() is None and not self.stop.wait(0.5):
                pass
            running_bench.kill()
            running_bench.wait()
            self.stop.wait(0.5)

    def neighbour(self) -> None:
        workload = Workload(self.environment, Random(SEED), "neighbour", self.altered, alterations=0.01)
        while not self.stop.wait(0.1):
            with suppress(psycopg.Error):  # the server is gone, or another one now
                workload.some(1)
                self.done["transactions of the neighbour"] += 1
        workload.settle()

    @contextmanager
    def writing(self) -> Iterator[None]:
        writers = [threading.Thread(target=self.bench), threading.Thread(target=self.neighbour)]
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            self.stop.set()
            for writer in writers:
                writer.join()

    # --- what happens ---------------------------------------------------------------------------------------------

    def happen(self) -> None:
        weighted: list[tuple[Callable[[], object], int]] = [
            (self.run, 6),
            (self.kill, 6),
            (self.plan, 2),
            (self.read, 3),
            (self.end, 2),
            (self.crash, 1),
            (self.unpark, 1),
        ]
        act = self.random.choice([act for act, weight in weighted for _ in range(weight)])
        self.attempt(act)

    def attempt(self, act: Callable[[], object]) -> bool:
        self.environment.let_leases_end()
        try:
            act()
        except GAPS as told:
            self.done[type(told).__name__] += 1
            return False
        self.done[act.__name__.replace("<lambda>", "last backfill")] += 1
        return True

    def run(self) -> None:
        self.environment.run()

    def kill(self) -> None:
        """A task of a process of its own, some time into it; in three of four the JVM goes on."""
        stage = self.random.choice(["drain", "merge", "merge", "read", "confirm"])
        self.environment.begin_run(self.backfill_run if stage == "read" else None)
        process = self.environment.start(stage, own_jvm=stage == "merge" and self.random.random() < 0.25)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=self.random.uniform(0.5, 8))
            self.done["ended before it was killed"] += 1
        process.kill()
        process.communicate()

    def plan(self) -> None:
        captured = sorted(judge.captured(self.environment))
        tables = tuple(t for t in self.random.sample(captured, 3) if t != HISTORY_ONLY)
        self.environment.begin_backfill(*tables, chunk_rows=self.random.choice([5, 20_000]), replace=True)
        self.backfill_run = self.environment.report.run_id
        self.environment.plan()

    def read(self) -> None:
        if self.backfill_run is None:
            self.plan()
        self.environment.begin_run(self.backfill_run)
        self.environment.read()

    def end(self) -> None:
        self.read()
        self.environment.end_backfill()

    def unpark(self) -> None:
        """What the remedy of a definition that is not followed says: a table with a key goes on, one without begins
        anew."""
        for table, row in self.environment.table_rows().items():
            if not row.life.is_parked:
                continue
            schema = judge.schema_of(self.environment, table)
            anew = schema is not None and not schema.key
            for kind in ("current", "history") if anew else ():
                shutil.rmtree(judge.table_path(self.environment, kind, table), ignore_errors=True)
            _, done = unpark(self.environment.config, table, ledger=self.environment.ledger, anew=anew)
            assert row.error is not None
            self.done[f"{row.error.kind} of {table}, {'anew' if anew else 'unparked'}"] += done
            self.unparked.add(table)

    def crash(self) -> None:
        self.environment.close()
        self.chain.primary.restart("immediate")

    def fail_over(self, loses: bool) -> None:
        self.chain.carry_over()
        if loses:
            self.chain.standby.fall_behind()
            self.attempt(self.run)
        self.chain.promote()
        self.chain.follow()

    # --- beginning and end ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The tables, captured and backfilled."""
        create_tables(self.environment)
        altering.create(self.environment)
        assert self.pgbench("-i", "-s", "1", "-q").wait() == 0
        self.environment.execute("ALTER TABLE public.pgbench_history REPLICA IDENTITY FULL")
        self.environment.run()
        self.environment.backfill()
        self.chain.carry_over()

    def judge(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Bring all to an end, and compare every table with its source."""
        self.finish()
        figures = self.figures()
        with capsys.disabled():
            print(f"\nsoak of {MINUTES:g} minutes, seed {SEED}: {figures}")
        assert self.done["failovers"] == 2, figures
        # What nobody can tell apart cannot be read twice: behind a gap it stays marked.
        repaired = [table for table in judge.captured(self.environment) if table != HISTORY_ONLY]
        assert judge.wrongs(self.environment, repaired) == [], figures
        assert judge.second_run_changes_nothing(self.environment) == [], figures
        Met().add(self.environment)

    def finish(self) -> None:
        """Runs until one of them has nothing to say, and backfills until nothing is wanted."""
        self.random.seed(SEED)
        for _ in range(10):
            self.altered.touch()
            if self.attempt(self.run) and self.attempt(self.run):
                break
        self.unpark()
        self.attempt(self.run)
        if self.unparked:
            self.attempt(lambda: self.environment.backfill(*self.unparked, replace=True))
        for _ in range(10):
            if not requested_tables(self.environment.task()):
                return
            self.attempt(lambda: self.environment.backfill())
            self.attempt(self.run)

    def figures(self) -> dict[str, int]:
        query = self.environment.ledger_query
        ((batches, changes),) = query(
            "SELECT count(DISTINCT (generation, end_lsn)), sum(changes) FROM tidemark.batch_tables"
        )
        ((chunks, generations),) = query(
            "SELECT (SELECT count(*) FROM tidemark.chunks), (SELECT max(number) FROM tidemark.generations)"
        )
        commits = sum(judge.delta_versions(self.environment).values())
        staged = {"batches": batches, "staged changes": int(changes), "chunks": chunks, "generations": generations}
        return {**self.done, **staged, "commits to Delta": commits, "alterations tried": len(self.altered.altered)}


@pytest.fixture
def soak(postgres: PostgresServer, spark: SparkSession, tmp_path: Path) -> Iterator[Soak]:
    bounds = {"lock_timeout_s": 1, "join_wait_s": 5, "batch_rows": 20_000}
    config = pipeline_config("soak", tmp_path / "lake", TABLES, bounds)
    ledger = create_database(postgres, "ledger")
    with ExitStack() as kept:
        kept.callback(drop_database, postgres, ledger)
        primary = kept.enter_context(running(tmp_path / "primary", 18, fsync="off"))
        environment = Environment(config, create_database(primary, "source"), ledger, tmp_path, lambda: spark)
        kept.callback(environment.close)
        chain = Chain(environment, tmp_path, primary, {"fsync": "off"}, kept)
        yield Soak(environment, chain, Random(SEED))


@pytest.mark.thorough
def test_a_pipeline_that_is_never_left_alone_ends_equal_to_its_source(
    soak: Soak, capsys: pytest.CaptureFixture[str]
) -> None:
    soak.begin()
    began = time.monotonic()
    failovers = [(0.4, True), (0.75, False)]
    with soak.writing():
        while (passed := (time.monotonic() - began) / (MINUTES * 60)) < 1 or failovers:
            if failovers and passed > failovers[0][0]:
                soak.fail_over(failovers.pop(0)[1])
                soak.done["failovers"] += 1
            soak.happen()
    soak.judge(capsys)
