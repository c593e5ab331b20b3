"""A pipeline that is cleaned every day is as large after a month, and after a year, as after two weeks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.maintenance.world import World, world_of

STAGING_DAYS = 7


@pytest.mark.parametrize("days", [30, pytest.param(365, marks=pytest.mark.thorough)])
def test_a_pipeline_does_not_grow(days: int, ledger_database: str, tmp_path: Path) -> None:
    world = world_of(ledger_database, str(tmp_path / "lake"), seed=days)
    sizes = []
    for day in range(days):
        a_day(world, day)
        sizes.append(world.size())
    early, late = sizes[STAGING_DAYS + 2 : 2 * STAGING_DAYS], sizes[-STAGING_DAYS:]
    print({name: (max(size[name] for size in early), max(size[name] for size in late)) for name in late[0]})
    # Half as many again: how many tables a batch touches is drawn by lot, and so is what a backfill reads of them.
    grown = [name for name in late[0] if max(s[name] for s in late) > 1.5 * max(s[name] for s in early) + 5]
    assert grown == []


def a_day(world: World, day: int) -> None:
    """Two runs, and every other day a backfill beside them."""
    if day % 2:
        world.plan_backfill()
    for _ in range(2):
        for turn in (world.commit, world.read, world.stage, world.merge, world.confirm):
            turn()
    world.show()
    world.a_day_passes()
    world.clean(datetime.now(UTC) - timedelta(days=STAGING_DAYS))
