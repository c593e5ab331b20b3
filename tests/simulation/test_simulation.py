"""Random changes, random stages, random deaths; seeded. However a seed plays out, the tables end equal to their source.

`make simulation` plays TIDEMARK_SIMULATION_SEEDS=n of them from TIDEMARK_SIMULATION_FIRST=m; `make test` plays those of
test_chunks_against_a_model, with captures and backfills, and without Spark. Here a stage dies by an exception that
nothing catches rather than by SIGKILL, since that costs no process: what a real kill leaves behind is tried by
tests/faults."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import pytest

from tests.simulation.flow import Met
from tests.simulation.workload import TABLES, Workload, create
from tests.support import failpoint_names, judge
from tests.support.capture import Environment
from tidemark import failpoints
from tidemark.errors import RetryError

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
ROUNDS = 8

met = Met()  # by the plays of this session


class Died(BaseException):
    """Stands for the death of a process; no handler of an Exception sees it."""


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_the_tables_end_equal_to_their_source(
    seed: int, new_environment: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    bounds = {"batch_rows": random.choice([1, 5, 40, 1_000_000])}
    environment = new_environment(f"simulation{seed}", TABLES, bounds)
    create(environment)
    workload = Workload(environment, random)
    acts: list[str] = []
    try:
        for _ in range(ROUNDS):
            workload.some(random.randint(3, 25))
            acts.append(_attempt(environment, random, monkeypatch))
    finally:
        workload.settle()  # an open transaction would hold up the slots of other tests
    environment.let_leases_end()
    environment.run()
    context = f"seed {seed}, bounds {bounds}, acts {acts}"
    assert judge.wrongs(environment) == [], context
    assert judge.second_run_changes_nothing(environment) == [], context
    met.add(environment)


@pytest.mark.thorough
def test_the_plays_before_brought_changes_of_every_kind() -> None:
    assert met.missing() == {}


def _attempt(environment: Environment, random: Random, monkeypatch: pytest.MonkeyPatch) -> str:
    """An act that ends with a RETRY is one that the next run makes up for: an open TRUNCATE locks its table, say."""
    try:
        return _act(environment, random, monkeypatch)
    except RetryError as retry:
        return f"was told {type(retry).__name__}"


def _act(environment: Environment, random: Random, monkeypatch: pytest.MonkeyPatch) -> str:
    """One thing that can happen to a pipeline; what it was."""
    act = random.choice(["run", "drain", "merge", "confirm", "late", "die", "die", "die", "cleared"])
    environment.let_leases_end()
    match act:
        case "die":
            name = random.choice(failpoint_names.OF_CAPTURE)
            _die_at(environment, name, monkeypatch)
            return f"died at {name}"
        case "late":
            environment.begin_run()
            environment.drain()
            environment.confirm()
        case "cleared":
            environment.run()
            environment.run(environment.report.run_id)
        case _:
            environment.step(act)
    return act


def _die_at(environment: Environment, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run in which the process dies at the failpoint, where the run gets there."""

    def kill(pid: int, signal: int) -> None:
        raise Died(name)

    with monkeypatch.context() as patch:
        patch.setenv(failpoints.VARIABLE, name)
        patch.setattr(failpoints, "os", SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=kill))
        environment.begin_run()
        try:
            for stage in ("drain", "merge", "confirm"):
                getattr(environment, stage)()
        except Died:
            pass
