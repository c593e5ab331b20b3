"""Whatever is staged, backfilled, merged, parked, cleaned up, killed and restored in any order: a merge finds what it
needs. The memory of `world` is the model, and it forgets nothing.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.maintenance.world import World, world_of
from tests.support import failpoint_names
from tidemark.capture import merge_planning
from tidemark.maintenance import staging_cleanup

STEPS = 90


class Killed(BaseException):
    pass


class Deaths:
    """Stands in for `failpoints.reach`: the n-th point that is reached from now on is a death."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, name: str) -> None:
        assert name in failpoint_names.OF_MAINTENANCE
        self.left -= 1
        if self.left == 0:
            raise Killed(name)


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Deaths:
    made = Deaths()
    monkeypatch.setattr(staging_cleanup, "reach", made)
    return made


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(3, 40))])
def test_a_merge_finds_all_that_it_needs_whatever_was_cleaned_up(
    seed: int, ledger_database: str, tmp_path: Path, deaths: Deaths
) -> None:
    world = world_of(ledger_database, str(tmp_path / "lake"), seed)
    for _ in range(STEPS):
        if not step(world, deaths):
            return  # its ledger ended below what was cleaned up: a gap, which `capture.continuity.generation` states
    finish(world)


def step(world: World, deaths: Deaths) -> bool:
    random = world.random
    passing = (world.show, world.stage, world.merge, world.confirm)
    weights = {
        "begin_transaction": 3,
        "commit": 12,
        "show": 3,
        "stage": 10,
        "die": 2,
        "close_backfill": 2,
        "merge": 10,
        "confirm": 6,
        "plan_backfill": 4,
        "raced": 2,
        "read": 8,
        "park": 2,
        "unpark": 2,
        "clean_if_level": 8,
        "killed": 4,
        "keep_copy": 3,
        "restore": 1,
        "lose": 0.5,
    }
    name = random.choices(list(weights), list(weights.values()))[0]
    if name == "killed":
        deaths.left = Random(random.random()).randint(1, 8)
        try:
            world.clean_if_level()
        except Killed:
            return True
        finally:
            deaths.left = 0
    elif name == "die":
        world.stage(dies=True)
    elif name == "raced":
        world.plan_backfill(between=lambda: [turn() for turn in (world.commit, *passing, world.clean_if_level)])
    elif name == "restore":
        return world.restore()
    elif name == "lose" and world.batches:
        world.lose()
    elif name != "lose":
        getattr(world, name)()
    return True


def finish(world: World) -> None:
    """All of it ends well, and then a clean-up leaves nothing but what says where the next plans begin."""
    world.show()
    world.unpark()
    for _ in range(60):
        for turn in (world.read, world.commit, world.stage, world.merge, world.confirm):
            turn()
        if world.is_at_rest():
            break
    else:
        raise AssertionError("it does not come to rest")
    merge_planning.ingest(world.task("merge"))  # gives up the plans of those who died
    world.open.clear()
    world.show()
    world.clean()
    folders, rows, chunks, plans = world.left()
    assert (folders, chunks, plans) == ([], [], [])
    assert rows <= 2 * 3
