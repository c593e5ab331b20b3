"""From a pipeline file to a first proof: what is done, and what is next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.capture.test_health import CONFIG, NOW, a_backfill, a_ledger, a_slot, a_table, kinds
from tidemark.ledger.observations.overview import PipelineStatus
from tidemark.observe.first_steps import next_step
from tidemark.observe.status import Status

UNFILLED = a_table("s.a", target="existing_rows", verified=None)
FILLED = a_table("s.b", verified=None)


def before_a_run(*tables: Any) -> PipelineStatus:
    ledger = a_ledger(*tables)
    return replace(ledger, generation=replace(ledger.generation, heartbeat_at=None))


def status(ledger: PipelineStatus | None, *, slot: bool = True, unseen: dict[str, str] | None = None) -> Status:
    return Status(CONFIG, ledger, a_slot() if slot else None, None, unseen or {}, NOW)


def test_a_pipeline_that_never_ran_is_new_and_nothing_about_it_is_red() -> None:
    new = status(None, slot=False)
    assert kinds(new.health) == [("new", "warning")]
    assert [step.is_done for step in new.health.first_steps] == [True, False, False, False, False]
    assert new.health.line.startswith("shop: it is new, and next is its slot. Un-pause shop_capture in Airflow, or: ")


@pytest.mark.parametrize(
    ("seen", "step", "others"),
    [
        (status(None, slot=False, unseen={"source": "no"}), "connections", [("cannot be seen", "red")]),
        (status(before_a_run()), "capture", []),
        (status(a_ledger(UNFILLED, FILLED)), "backfill", [("needs a backfill", "warning")]),
        (
            status(a_ledger(UNFILLED, backfills=(a_backfill("s.a", read_by="r"),))),
            "backfill",
            [("being backfilled", "warning")],
        ),
    ],
)
def test_the_next_step_is_the_first_that_is_not_done(seen: Status, step: str, others: list[tuple[str, str]]) -> None:
    found = next_step(seen.health.first_steps)
    assert found is not None
    assert found.name == step
    shown = [one for one in kinds(seen.health) if one[1] != "note"]
    assert sorted(shown) == sorted([("new", "warning"), *others])


def test_a_filled_pipeline_is_exact_and_its_checklist_ends_with_the_first_proof() -> None:
    filled = status(a_ledger(FILLED))
    assert [step.name for step in filled.health.first_steps if not step.is_done] == ["first proof"]
    assert kinds(filled.health) == [("unproven", "note")]
    assert status(a_ledger(FILLED, a_table("s.a"))).health.first_steps == ()


def test_a_pipeline_whose_ledger_is_away_is_not_called_new() -> None:
    assert status(None, slot=False, unseen={"ledger": "no"}).health.first_steps == ()


def test_a_new_generation_makes_no_pipeline_new() -> None:
    later = before_a_run(UNFILLED)
    later = replace(later, generation=replace(later.generation, number=2, opened_at=NOW.replace(day=1)))
    assert status(later).health.first_steps == ()
    assert ("no run", "red") in kinds(status(later).health)


def test_a_table_that_joins_later_makes_no_pipeline_new() -> None:
    assert status(a_ledger(UNFILLED, a_table("s.b"))).health.first_steps == ()


def test_a_new_pipeline_whose_capture_waits_to_be_started_is_not_red_the_next_day() -> None:
    waits = before_a_run(UNFILLED)
    old = replace(waits, generation=replace(waits.generation, opened_at=NOW.replace(day=1)))
    assert ("no run", "red") not in kinds(status(old).health)
