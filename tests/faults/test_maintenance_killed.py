"""SIGKILL at every name of `failpoint_names.OF_MAINTENANCE`, in a process of its own: nothing that is needed is
gone, runs go on beside what is left, and the next maintenance removes it.
"""

from __future__ import annotations

import pytest

from tests.faults import workload
from tests.support import failpoint_names, judge
from tests.support.capture import Environment
from tests.support.thorough import thorough
from tidemark.formats import layout
from tidemark.staging.abandoned_folders import read_name

OF_STAGING = [name for name in failpoint_names.OF_MAINTENANCE if "optimize" not in name and "result" not in name]
OF_DELTA = ("maintain.after_optimize", "maintain.before_result")


def in_use(shop: Environment) -> None:
    """Small files in every table, old batches, plans, and the chunks of a backfill that is applied."""
    for _ in range(3):
        workload.change(shop)
        shop.run()
    shop.backfill("shop.item")
    shop.run()


@pytest.mark.parametrize("name", thorough(*OF_DELTA, *OF_STAGING))
def test_a_maintenance_killed_here_is_finished_by_the_next_and_loses_nothing(name: str, shop: Environment) -> None:
    in_use(shop)
    shop.begin_run()
    shop.crash(name)
    workload.change(shop)
    shop.let_leases_end()
    shop.run()
    assert judge.wrongs(shop) == []
    retired, figures = shop.maintain()
    assert figures["left"] == []
    assert name in OF_DELTA or retired.batches + retired.plans + retired.backfills > 0
    workload.change(shop)
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    again, figures = shop.maintain()
    assert (again.backfills, figures["left"]) == (0, [])
    assert staged(shop) == [], "all of it is applied, confirmed and a month old"


def staged(shop: Environment) -> list[str]:
    """The batches that still lie in staging, but for the newest, whose end is not below the confirmed position."""
    names = shop.store.list(layout.generation_folder(shop.config.pipeline, 1))
    return [name for name in names if read_name(name) is not None][:-1]
