"""Random lists of changes, cut into transactions, batches and plans at random, against the model of "apply changes".

Every seed is a table of its own, and several tables are merged by one plan, as in a run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import failpoint_names
from tests.support.thorough import thorough
from tests.target.lake import TEXTS, Lake, StagedTable, every_way, table_schema
from tests.target.model import Change, Key, Row, apply, random_changes
from tidemark.formats.merge_result import TableResult
from tidemark.target.spark import spark_merge as target_changes

pytestmark = every_way

SEEDS = range(3)
PLANS = 3


@dataclass
class Played:
    """One table: what was staged, and what the model says of it."""

    table: StagedTable
    rng: random.Random
    state: dict[Key, Row] = field(default_factory=dict)
    history: list[tuple[str, Row]] = field(default_factory=list)

    def stage(self) -> None:
        """One to three batches of what a source could have done next."""
        for _ in range(self.rng.randint(1, 3)):
            listed = list(random_changes(self.rng, self.state, self.rng.randint(1, 14)))
            for change in listed:
                self.history += [(op, _full(row)) for op, row in apply(self.state, ("id",), change)]
            self.table.changes_a_file = (None, 2, 5)[len(self.table.batches) % 3]
            self.table.stage(*_transactions(self.rng, listed))

    def check(self, lake: Lake, result: TableResult) -> None:
        expected = [self.state[key] for key in sorted(self.state)]
        assert lake.current(self.table) == expected
        assert lake.history(self.table) == self.history
        assert {size.kind: size.rows for size in result.sizes} == {
            "history": len(self.history),
            "current": len(self.state),
        }


def _full(row: Row) -> Row:
    return {name: row.get(name) for name in TEXTS}


def _transactions(rng: random.Random, listed: list[Change]) -> list[list[Change]]:
    cut: list[list[Change]] = [[]]
    for change in listed:
        if cut[-1] and rng.random() < 0.4:
            cut.append([])
        cut[-1].append(change)
    return cut


def _played(lake: Lake, salt: int, seeds: range = SEEDS) -> list[Played]:
    return [Played(lake.table(table_schema(f"t{seed}", TEXTS)), random.Random(1000 * salt + seed)) for seed in seeds]


@pytest.mark.thorough
def test_every_plan_leaves_current_and_history_as_the_model_has_them(lake: Lake) -> None:
    tables = _played(lake, 1)
    merged = [0] * len(tables)
    for _ in range(PLANS):
        for played in tables:
            played.stage()
        results = lake.applied(*[p.table.planned(first) for p, first in zip(tables, merged, strict=True)])
        for played, result in zip(tables, results, strict=True):
            played.check(lake, result)
            assert result.holes is None
            assert result.history_lsn == result.current_lsn == played.table.batches[-1].end_lsn
        merged = [len(p.table.batches) for p in tables]


def test_a_plan_that_is_run_again_changes_nothing(lake: Lake) -> None:
    tables = _played(lake, 2, range(2))
    for played in tables:
        played.stage()
    planned = [p.table.planned() for p in tables]
    lake.applied(*planned)
    versions = [lake.version(step, p.table) for p in tables for step in ("history", "current")]
    again = lake.applied(*planned)
    assert [lake.version(step, p.table) for p in tables for step in ("history", "current")] == versions
    assert all(result.rows == {} for result in again)
    for played, result in zip(tables, again, strict=True):
        played.check(lake, result)


class Crash(Exception):
    """Stands for a driver that dies at a failpoint; tests/faults kills real ones."""


@pytest.mark.parametrize(
    "failpoint",
    [
        "merge.before_current",
        *thorough("merge.before_history", "merge.after_history", "merge.after_current"),
    ],
)
def test_a_crash_between_two_commits_is_made_good_by_the_next_plan(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    tables = _played(lake, 3 + failpoint_names.NAMES.index(failpoint), range(1))
    for played in tables:
        played.stage()
    first = [p.table.planned() for p in tables]
    lake.applied(*first)
    merged = [len(p.table.batches) for p in tables]
    for played in tables:
        played.stage()

    def crash(name: str) -> None:
        if name == failpoint:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(target_changes.failpoints, "reach", crash)
        crashed = lake.apply(*[p.table.planned(n) for p, n in zip(tables, merged, strict=True)])
    assert {t.error and t.error.kind for t in crashed.tables} == {"MergeBroken"}
    # The next plan holds more batches; the ledger may or may not have heard of the first ones.
    for played in tables:
        played.stage()
    later: list[Any] = [p.table.planned(n if i % 2 else 0) for i, (p, n) in enumerate(zip(tables, merged, strict=True))]
    for played, result in zip(tables, lake.applied(*later), strict=True):
        played.check(lake, result)
