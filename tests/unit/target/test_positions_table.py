"""What a merge says in `_positions` of how far tables are level."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.formats.merge_plan import MergePlan, StagedLevel
from tidemark.formats.merge_result import PlanResult, TableResult
from tidemark.lsn import Lsn
from tidemark.target.plans import positions_table


def test_nothing_is_said_of_a_table_that_has_no_name() -> None:
    """It ended, and what follows of its relation is another table's: level with what is staged it never is."""
    names: dict[str, str | None] = {"s.item": None, "s.item~2": None, "s.item~3": "s.item"}
    level = StagedLevel(1, Lsn(90), None, ("s.item~3", "s.item~2", "s.other"), (), names)
    plan = MergePlan("p", "shop", 1, "lake", 1, (), level)
    result = PlanResult("p", "shop", 1, (TableResult("s.item", Lsn(50), Lsn(50)),))
    rows = positions_table._rows(plan, level, result, datetime(2026, 1, 1, tzinfo=UTC))
    assert [(row["table_name"], row["source_name"], row["lsn"]) for row in rows] == [
        ("s.item~3", "s.item", 90),
        ("s.other", "s.other", 90),
    ]
