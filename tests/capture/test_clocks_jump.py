"""The clocks of Airflow's machine, the ledger's server and the source jump by a day, forward and back, in the middle of
every task: each task succeeds or its retry does, and every row is there once.

Everything plays in one process with a clock of its own, on two servers with clocks of theirs
(`tests.support.system_faults`). A clock may jump at each failpoint, and between two tasks. Where it jumps within a
drain or a reader, a rival of another run comes at once: a lease may have ended by the ledger's clock."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database
from tests.definitions.capturing import Capture
from tests.support import system_faults
from tests.support.pipeline import Pipeline, pipeline_config
from tests.support.system_faults import MovableClock, SystemFaults
from tidemark import failpoints
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.capture import drain
from tidemark.capture.confirm import confirm
from tidemark.capture.merge_planning import ingest
from tidemark.capture.waiting import changes_waiting
from tidemark.config import Maintenance, TableRule
from tidemark.errors import BackfillClosed, BackfillIsOpen, LeaseTaken, Move, TidemarkError
from tidemark.ledger.connection import open_ledger
from tidemark.maintenance.staging_cleanup import retire
from tidemark.observe import health
from tidemark.postgres.postgres_session import outages
from tidemark.run import utc_now

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "8")))
DAY = 86_400
MOST_TRIES = 12
CLOCKS = ("airflow", "ledger", "source")
TABLES = ("shop.keyed", "shop.keyless")
# How a task may end, besides with what its retry mends: a backfill that stood still is closed, and another is begun.
OF_A_BACKFILL = (BackfillClosed, BackfillIsOpen)


@dataclass(frozen=True, slots=True)
class World:
    """What the playing process is given."""

    source: str
    ledger: str
    lake: Path
    clocks: dict[str, MovableClock]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How often each clock jumped, by where; the errors of tasks; the verdicts on tables; what health says at the end
    of what is red."""

    jumps: Counter[str]
    errors: Counter[str]
    verdicts: dict[str, str]
    red: list[str]


class Clocks:
    """Moves the clocks by chance."""

    def __init__(self, clocks: dict[str, MovableClock], random: Random) -> None:
        self._clocks, self._random = clocks, random
        self.jumps: Counter[str] = Counter()
        self.rival: Callable[[], object] | None = None

    def may_jump(self, chance: float, place: str) -> None:
        if self._random.random() < chance:
            clock = self._random.choice(CLOCKS)
            self._clocks[clock].move(self._random.choice([-DAY, 0, DAY]))
            self.jumps[f"{clock} {place}"] += 1
            if place == "within":
                self._let_the_rival_come()

    def _let_the_rival_come(self) -> None:
        rival, self.rival = self.rival, None
        if rival is None:
            return
        try:
            rival()
            self.jumps["rivals that ended well"] += 1
        except TidemarkError as error:
            if error.move is not Move.RETRY and not isinstance(error, OF_A_BACKFILL):
                raise
            self.jumps[f"rivals told {type(error).__name__}"] += 1

    def set_right(self) -> None:
        for clock in self._clocks.values():
            clock.move(0)

    @contextmanager
    def jumping_at_failpoints(self) -> Iterator[None]:
        def chosen(variable: str, default: str) -> str:
            self.may_jump(0.15, "within")
            return default

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoints, "os", SimpleNamespace(environ=SimpleNamespace(get=chosen)))
            patch.setattr(drain, "SLOT_WAIT_S", 0.5)
            yield


class Tasks:
    """Runs tasks as Airflow does: each is tried again until it succeeds."""

    def __init__(self, pipeline: Pipeline, clocks: Clocks, random: Random) -> None:
        self.pipeline, self.clocks, self.random = pipeline, clocks, random
        self.capture = Capture(pipeline)
        self.errors: Counter[str] = Counter()

    def run(self, number: int) -> None:
        pipeline = self.pipeline
        self.attempt(lambda: pipeline.preflight().raise_for_errors())
        self.attempt(lambda: changes_waiting(pipeline.config, source=pipeline.source, ledger=pipeline.ledger))
        self.attempt(lambda: pipeline.drain(f"run-{number}"), lambda: pipeline.drain(f"rival-{number}"))
        self.attempt(self._merge)
        self.attempt(lambda: confirm(pipeline.task("confirm")))
        self.attempt(self._red)

    def backfill(self, number: int, tables: tuple[str, ...]) -> None:
        run_id = f"backfill-{number}"
        self.attempt(lambda: self.pipeline.plan(run_id, tables=tables, chunk_rows=40, replace=True))
        self.attempt(self.pipeline.read, lambda: self.pipeline.read(2))

    def clean_up(self) -> None:
        self.attempt(lambda: retire(self.pipeline.task("retire")))

    def _merge(self) -> None:
        ingest(self.pipeline.task())
        assert not self.capture.lake.merge()

    def _red(self) -> list[str]:
        with open_ledger(self.pipeline.ledger, self.pipeline.config.pipeline) as book:
            return [concern.message for concern in health.judge_by_ledger(book, self.pipeline.config).of("red")]

    def attempt(self, task: Callable[[], object], rival: Callable[[], object] | None = None) -> None:
        for _ in range(MOST_TRIES):
            self.clocks.rival = None
            self.clocks.may_jump(0.3, "between")
            self.clocks.rival = rival
            try:
                with outages():
                    task()
                return
            except OF_A_BACKFILL as error:
                self.errors[type(error).__name__] += 1
                return
            except TidemarkError as error:
                if error.move is not Move.RETRY:
                    raise
                self.errors[type(error).__name__] += 1
                if isinstance(error, LeaseTaken):
                    self._let_a_minute_pass()
        pytest.fail(f"{MOST_TRIES} tries were not enough: {dict(self.errors)}")

    def _let_a_minute_pass(self) -> None:
        with psycopg.connect(self.pipeline.ledger) as ledger:
            ledger.execute("UPDATE tidemark.leases SET expires_at = expires_at - interval '61 seconds'")


def change_rows(pipeline: Pipeline, random: Random, number: int) -> None:
    first = number * 1000
    for table in TABLES:
        pipeline.execute(f"INSERT INTO {table} SELECT n, md5(n::text) FROM generate_series({first}, {first + 99}) n")
        for lot in random.sample(range(first + 100), 8):
            verb = random.choice([f"UPDATE {table} SET v = 'u{number}'", f"DELETE FROM {table}"])
            pipeline.execute(f"{verb} WHERE id = {lot}")


def play(world: World, seed: int, runs: int) -> Outcome:
    random = Random(seed)
    config = pipeline_config("jumping", world.lake, (TableRule("shop.*"),))
    pipeline = Pipeline(replace(config, maintenance=Maintenance(staging_days=1)), world.source, world.ledger)
    clocks = Clocks(world.clocks, random)
    with ExitStack() as stack:
        stack.callback(pipeline.close)
        pipeline.execute(
            "CREATE SCHEMA shop",
            "CREATE TABLE shop.keyed (id int PRIMARY KEY, v text)",
            "CREATE TABLE shop.keyless (id int, v text)",
            "ALTER TABLE shop.keyless REPLICA IDENTITY FULL",
            "INSERT INTO shop.keyed SELECT -n, 'old' FROM generate_series(1, 100) n",
        )
        tasks = Tasks(pipeline, clocks, random)
        with clocks.jumping_at_failpoints():
            for number in range(runs):
                change_rows(pipeline, random, number)
                tasks.run(number)
                tasks.backfill(number, TABLES[number % 2 :][:1])
                if number % 3 == 2:
                    tasks.clean_up()
        clocks.set_right()
        for number in range(runs, runs + 3):
            tasks.run(number)
            if tables := tuple(requested_tables(pipeline.task())):
                tasks.backfill(number, tables)
        known = tasks.capture.known({})
        verdicts = {table: str(tasks.capture.verdict(table, known)) for table in TABLES}
        return Outcome(clocks.jumps, tasks.errors, verdicts, tasks._red())


@contextmanager
def world_of(folder: Path, faults: dict[str, SystemFaults]) -> Iterator[World]:
    """Two servers, whose clocks are seen to move."""
    with ExitStack() as stack:
        databases = {}
        for name in ("ledger", "source"):
            settings = {"fsync": "off", "autovacuum": "off"}
            server = PostgresServer(folder / name, settings=settings, environment=faults[name].environment)
            stack.callback(server.remove)
            databases[name] = create_database(server.start(), name)
            faults[name].clock.move(DAY)
            with psycopg.connect(databases[name]) as connection:
                (ahead,) = connection.execute("SELECT clock_timestamp() - %s", (utc_now(),)).fetchone() or ()
            assert round(ahead.total_seconds() / 3600) == 24
            faults[name].clock.move(0)
        clocks = {clock: fault.clock for clock, fault in faults.items()}
        yield World(databases["source"], databases["ledger"], folder / "lake", clocks)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_that_jump_by_a_day_lose_and_double_nothing(seed: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        faults = {name: stack.enter_context(system_faults.for_any_user()) for name in CLOCKS}
        world = stack.enter_context(world_of(tmp_path, faults))
        pool = stack.enter_context(faults["airflow"].process())
        outcome = pool.submit(play, world, seed, 6).result()
    print(f"jumps {dict(outcome.jumps)}, errors {dict(outcome.errors)}")
    assert {word.split()[0] for word in outcome.jumps} >= {*CLOCKS, "rivals"}
    assert outcome.jumps.total() > 20
    assert outcome.verdicts == dict.fromkeys(TABLES, "equal")
    assert outcome.red == []
