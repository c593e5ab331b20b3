"""SIGKILL at every name of `failpoint_names.OF_CAPTURE`, in a process of its own: the task's retry, or the
next run, converges. `make test` kills the tasks of one pipeline at all names in turn, which is a scenario
(tests/scenarios/killed_at_every_step.sql); `make faults` also a run for every name alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.faults import workload
from tests.support import failpoint_names, judge, stages
from tests.support.capture import REPOSITORY, Environment
from tests.support.merge_ways import leave_to_spark, take_the_public_path

STAGES = ("drain", "merge", "confirm")


OF_A_MERGE = tuple(name for name in failpoint_names.OF_CAPTURE if name.startswith("merge."))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("merge.after_history", "spark"),
        *(pytest.param(name, "driver", marks=pytest.mark.thorough) for name in failpoint_names.OF_CAPTURE),
        *(
            pytest.param(name, "spark", marks=pytest.mark.thorough)
            for name in OF_A_MERGE
            if name != "merge.after_history"
        ),
        *(pytest.param(name, "public", marks=pytest.mark.thorough) for name in OF_A_MERGE),
    ],
)
def test_a_run_killed_here_is_finished_by_its_retry(
    name: str, way: str, shop: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few changes are folded by the driver, and all failpoints lie on that way; those of the merge on Spark's too, and
    where it has Delta's public API alone."""
    if way != "driver":
        monkeypatch.setenv(stages.FOLD_VARIABLE, way)
        leave_to_spark(monkeypatch)
    if way == "public":
        take_the_public_path(monkeypatch)
    workload.change(shop)
    _run_until(shop, name)
    for stage in STAGES[STAGES.index(_stage(name)) :]:
        getattr(shop, stage)()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()


@pytest.mark.thorough
@pytest.mark.parametrize("name", failpoint_names.OF_CAPTURE)
def test_a_run_killed_here_is_caught_up_by_the_next_run(name: str, shop: Environment) -> None:
    workload.change(shop)
    _run_until(shop, name)
    workload.change(shop)
    shop.let_leases_end()
    _converged(shop)


# What backfill and verify both do; what a merge does by Spark, and by the driver.
SEVERAL = {"plan.before_open": 2, "plan.after_open": 2} | {
    f"merge.{when}_{table}": 2 for when in ("before", "after") for table in ("history", "current")
}


def test_every_failpoint_is_reached_where_it_should_be() -> None:
    reached = [
        node.args[0].value
        for file in [*(REPOSITORY / "include" / "tidemark").rglob("*.py"), *(REPOSITORY / "spark_apps").glob("*.py")]
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("reach")
        and isinstance(node.args[0], ast.Constant)
    ]
    assert Counter(reached) == {name: SEVERAL.get(name, 1) for name in failpoint_names.ALL}


def _stage(failpoint: str) -> str:
    return failpoint.partition(".")[0]


def _run_until(environment: Environment, failpoint: str) -> None:
    """One run, killed at the failpoint."""
    stage = _stage(failpoint)
    environment.begin_run()
    for before in STAGES[: STAGES.index(stage)]:
        getattr(environment, before)()
    environment.crash(failpoint)


def _converged(environment: Environment) -> None:
    """The next run leaves every table equal to the source, and one more changes nothing."""
    environment.run()
    assert judge.wrongs(environment) == []
    assert judge.second_run_changes_nothing(environment) == []
    assert environment.confirmed_lsn() == environment.staged_lsn()
