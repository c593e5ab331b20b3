"""Random backfills beside random changes, merged by Spark; seeded. However a seed plays out, the tables end equal to
their source, and reading everything once more changes nothing.

`make simulation` plays TIDEMARK_SIMULATION_SEEDS=n of them from TIDEMARK_SIMULATION_FIRST=m. The same acts without
Spark, of which a few seeds are part of every test run: test_chunks_against_a_model.py."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from random import Random

import psycopg
import pytest

from tests.simulation.backfilling import HISTORY_ONLY, Play
from tests.simulation.flow import Met
from tests.support import judge
from tests.support.capture import Environment

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "1")))
ACTS = 6

met = Met()  # by the plays of this session


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_the_tables_end_equal_to_their_source(
    seed: int, new_backfilled: Callable[[str, dict[str, int]], Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    bounds = {"batch_rows": random.choice([5, 40, 1_000_000])}
    environment = new_backfilled(f"backfills{seed}", bounds)
    play = Play(environment, random, monkeypatch, verifies=True)
    try:
        play.begin()
        for _ in range(ACTS):
            play.act()
        play.finish(lambda tables: judge.wrongs(environment, tables))
    finally:
        play.release()
    context = f"seed {seed}, bounds {bounds}, acts {play.acts}"
    assert judge.wrongs(environment) == [], context
    assert _history_of_what_has_no_current(environment) == _at_source(environment), context
    versions = judge.delta_versions(environment)
    for last in (lambda: play.verify(Fraction(1)), play.once_more):
        last()
        written = judge.data_written_since(environment, versions)
        # A table that was empty all along, and that nobody had to read, gets its Delta tables now.
        assert {table: what for table, what in written.items() if table in versions or "add" in what} == {}, context
    assert judge.wrongs(environment) == [], context
    met.add(environment)


@pytest.mark.thorough
def test_the_plays_before_brought_changes_of_every_kind() -> None:
    assert met.missing() == {}


def _history_of_what_has_no_current(environment: Environment) -> Counter[tuple[object, ...]]:
    """What history says of the table without identity: each row that was read or inserted, since the last truncate."""
    rows: Counter[tuple[object, ...]] = Counter()
    history = judge.read(environment, "history", HISTORY_ONLY)
    for change in judge.in_order([] if history is None else history.rows()):
        if change["_op"] == "truncate":
            rows.clear()
        else:
            rows[change["at"], change["what"]] += 1
    return rows


def _at_source(environment: Environment) -> Counter[tuple[object, ...]]:
    with psycopg.connect(environment.source) as connection:
        return Counter(connection.execute(f"SELECT at, what FROM {HISTORY_ONLY}".encode()).fetchall())
