"""A run dies at one failpoint and the next run at another: each pair, in an order drawn by the seed, and without Spark.

Both runs are of the backfill DAG, which passes all failpoints of the library: plan, read, drain, merge and confirm.
Rows change before each, and a third run lives. `chunk_model` merges and judges; what it has no failpoint for, between
the two Delta tables of one table, is left to tests/faults. Each seed plays PAIRS of them: `make simulation` plays
enough seeds for all pairs, and says how many there are."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import pytest

from tests.simulation.backfilling import HISTORY_ONLY, TOLD, Died
from tests.simulation.chunk_model import Model
from tests.simulation.flow import Met
from tests.simulation.workload import TABLES, Workload, create_tables
from tests.support import failpoint_names, stages
from tests.support.capture import Environment
from tidemark import failpoints
from tidemark.backfill.backfill_requests import requested_tables

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
PAIRS = 9  # of one seed
WITH_SPARK = ("merge.before_history", "merge.after_history")
NAMES = tuple(name for name in failpoint_names.NAMES if name not in WITH_SPARK)
ALL = tuple(itertools.product(NAMES, repeat=2))

Pair = tuple[str, str]

met = Met()  # by the plays of this session
died: set[Pair] = set()  # pairs of which both runs died where they should


def pairs_of(seed: int) -> list[Pair]:
    """Seeds that follow one another play other pairs, until all were played."""
    order = Random(20).sample(ALL, len(ALL))
    return [order[n % len(order)] for n in range((seed - 1) * PAIRS, seed * PAIRS)]


class Deaths:
    """Whole runs of the backfill DAG on one pipeline."""

    def __init__(self, environment: Environment, random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environment, self.random, self.monkeypatch = environment, random, monkeypatch
        self.workload = Workload(environment, random)
        self.names = [rule.pattern for rule in TABLES if rule.pattern != HISTORY_ONLY]

    def run(self, *tables: str) -> None:
        self.environment.begin_backfill(*tables, chunk_rows=5, replace=True)
        self.environment.preflight()
        self.environment.plan()
        self.environment.read()
        self.environment.drain()
        self.environment.merge()
        self.environment.confirm()

    def dies(self, name: str) -> bool:
        """One run that is to die there, among changes; whether it did."""
        self.workload.some(4)
        self.workload.settle()
        self.environment.execute("INSERT INTO sim.log VALUES (1, 'a change at least')")
        self.environment.let_leases_end()

        def kill(pid: int, signal: int) -> None:
            raise Died(name)

        with self.monkeypatch.context() as patch:
            patch.setenv(failpoints.VARIABLE, name)
            patch.setattr(failpoints, "os", SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=kill))
            try:
                self.run(self.random.choice(self.names))
            except Died:
                return True
            except TOLD:
                return False
        return False

    def lives(self) -> None:
        """A run of the capture, and what is wanted or was begun is read to its end."""
        self.environment.let_leases_end()
        self.environment.run()
        for _ in range(3):
            if not requested_tables(self.environment.task()):
                return
            self.environment.backfill(chunk_rows=5)
            self.environment.run()
        raise AssertionError(f"still wanted: {requested_tables(self.environment.task())}")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_two_deaths_in_a_row_lose_and_double_nothing(
    seed: int, new_backfilled: Callable[[str, dict[str, int]], Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    environment = new_backfilled(f"deaths{seed}", {"batch_rows": random.choice([5, 40, 1_000_000])})
    model = Model(environment)
    environment.spark = lambda: None  # type: ignore[assignment, return-value]
    monkeypatch.setattr(stages, "apply", lambda _, uri: model.apply(uri))
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing here loses its power
    deaths = Deaths(environment, random, monkeypatch)
    create_tables(environment)
    environment.run()
    for first, second in pairs_of(seed):
        both = [deaths.dies(first), deaths.dies(second)]
        if all(both):
            died.add((first, second))
        deaths.lives()
        assert model.wrongs() == [], f"seed {seed}: {first}, then {second}; they died: {both}"
    met.add(environment)


@pytest.mark.thorough
def test_nearly_all_of_the_runs_before_died_where_they_should() -> None:
    played = {pair for seed in SEEDS for pair in pairs_of(seed)}
    exist = len(failpoint_names.NAMES) ** 2
    print(f"{len(died)} pairs of deaths of {len(played)} played; {len(ALL)} exist without Spark, {exist} with it")
    assert len(died) >= len(played) * 0.8, sorted(played - died)
    assert {first for first, _ in played} == {*NAMES} or len(played) < len(ALL)
    assert met.missing() == {}
