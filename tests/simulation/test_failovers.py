"""Random crashes and promotions of the source among everything that test_chunks_against_a_model plays: captures,
backfills, alterations, tasks that die. The same model judges, without Spark.

Every other seed promotes standbys without the slot too, and then every table is read again."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.conftest import create_database, drop_database
from tests.simulation.backfilling import HISTORY_ONLY, RULES
from tests.simulation.chunk_model import Model
from tests.simulation.failing_over import Chain, FailingOver, Loses
from tests.simulation.flow import Met
from tests.support import judge, stages
from tests.support.capture import Environment
from tests.support.hung_commit import SERVER_SETTINGS
from tests.support.pipeline import pipeline_config

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
ACTS = 11
# Behind these acts, whatever else happens.
FAIL_OVERS: dict[int, Loses] = {1: "what was staged", 4: "what was seen", 7: "nothing", 10: "what was staged"}
# What happens in some of so many plays, of those with gaps and of the others; what is met in one follows from the
# servers' pace, too.
ENOUGH = 5
HAPPENED = {
    True: {"SourceForked", "SourceReplaced", "tables that lost rows", "tables that lost all"},
    False: {
        "SourceForked",
        "tables that lost rows",
        "tables that lost all",
        "tables repaired by their keys",
        "tables that needed nothing",
        "followed",
        "chunks read again",
        "backfills begun anew",
        "joins judged anew",
    },
}

happened: dict[bool, list[set[str]]] = {True: [], False: []}  # in each play of this session
met = Met()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_is_lost_by_crashes_and_promotions(
    seed: int, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    settings = {"fsync": "off", **SERVER_SETTINGS}
    bounds = {"batch_rows": random.choice([5, 40, 1_000_000]), "lock_timeout_s": 1, "join_wait_s": 1}
    config = pipeline_config(f"failovers{seed}", tmp_path / "lake", RULES, bounds)
    ledger = create_database(postgres, "ledger")
    with ExitStack() as kept:
        kept.callback(drop_database, postgres, ledger)
        gaps = seed % 2 == 0
        primary = kept.enter_context(running(tmp_path / "primary", **settings))
        environment = Environment(config, create_database(primary, "source"), ledger, tmp_path, lambda: None)  # type: ignore[arg-type, return-value]
        kept.callback(environment.close)
        model = Model(environment)
        monkeypatch.setattr(os, "fsync", lambda _: None)
        monkeypatch.setattr(stages, "apply", lambda _, uri: model.apply(uri))
        play = FailingOver(environment, random, monkeypatch, at_the_same_time=True)
        play.gaps, play.wrongs = gaps, model.wrongs
        play.chain = Chain(environment, tmp_path, primary, settings, kept)
        try:
            play.begin()
            for number in range(ACTS):
                play.act()
                if number in FAIL_OVERS:
                    loses = FAIL_OVERS[number]
                    wanted = not gaps or number == 1
                    play.acts.append(play.fail_over(wanted=wanted, loses=loses, proves=loses == "what was staged"))
            # A lost insert of what has a history alone stays there.
            play.finish(lambda tables: model.wrongs([table for table in tables if table != HISTORY_ONLY]))
        finally:
            play.release()
        context = f"seed {seed}, acts {play.acts}, altered {play.altered.altered}, happened {play.happened}"
        happened[gaps].append({*+play.happened})
        assert "SourceForked" in play.happened, context
        # What nobody can tell apart cannot be read twice: behind a gap it stays marked.
        repaired = [table for table in judge.captured(environment) if table != HISTORY_ONLY]
        assert model.wrongs(repaired) == [], context
        again = play.once_more()
        assert model.wrongs(repaired) == [], context
        assert [name for name in play.names if model.would_change(name, again)] == [], context
        met.add(environment)


@pytest.mark.thorough
@pytest.mark.parametrize("gaps", [True, False])
def test_the_plays_before_met_everything(gaps: bool) -> None:
    those = set().union(*happened[gaps])
    assert those >= HAPPENED[gaps] or len(happened[gaps]) < ENOUGH, HAPPENED[gaps] - those
    assert met.missing() == {}
