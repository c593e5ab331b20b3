"""Random backfills beside random changes, up to the plan: reader, drain, claims and planner against real PostgreSQL.

Merges are deferred, made by hand, or spread over several applications at the same time, some of which die or find a
table taken; R3's minimum is worked out beside. In place of Spark `chunk_model` folds what was staged, by the rule of R7
in Python; so a seed takes seconds, and hundreds of them can be played: TIDEMARK_SIMULATION_SEEDS=n,
TIDEMARK_SIMULATION_FIRST=m. What is decided by the clock (how far the writers get while a chunk is read) differs from
time to time; everything else follows from the seed."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest

from tests.simulation.backfilling import Play
from tests.simulation.chunk_model import Model
from tests.simulation.flow import Met
from tests.support import stages
from tests.support.capture import Environment
from tests.support.thorough import thorough

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
ACTS = 15

met = Met()  # by the plays of this session


@pytest.mark.parametrize("alters", [False, *thorough(True)], ids=["", "altering"])
@pytest.mark.parametrize("seed", SEEDS)
def test_chunks_and_changes_come_to_the_source_whatever_happens(
    seed: int,
    alters: bool,
    new_backfilled: Callable[[str, dict[str, int]], Environment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(seed)
    environment = new_backfilled(
        f"chunks{seed}_{int(alters)}", {"batch_rows": random.choice([5, 40, 1_000_000, 1_000_000])}
    )
    model = Model(environment)
    environment.spark = lambda: None  # type: ignore[assignment, return-value]
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing here loses its power
    monkeypatch.setattr(stages, "apply", lambda _, uri: model.apply(uri))
    play = Play(environment, random, monkeypatch, at_the_same_time=True, alters=alters)
    last_confirmed = None
    try:
        play.begin()
        for _ in range(ACTS):
            play.act()
            confirmed = environment.report.confirmed
            if confirmed is not None and confirmed is not last_confirmed and confirmed.before < confirmed.after:
                assert confirmed.after <= model.confirmable(), f"seed {seed}, acts {play.acts}"
            last_confirmed = confirmed
        play.finish(model.wrongs)
    finally:
        play.release()
    context = f"seed {seed}, acts {play.acts}, altered {play.altered.altered}"
    assert model.wrongs() == [], context
    again = play.once_more()
    assert model.wrongs() == [], context
    assert [name for name in play.names if model.would_change(name, again)] == [], context
    met.add(environment)


@pytest.mark.thorough
def test_the_plays_before_brought_changes_of_every_kind() -> None:
    assert met.missing() == {}
