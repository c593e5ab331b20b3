from __future__ import annotations

import pytest

from tests.support.manifests import manifest_of, plan_of
from tidemark.errors import LeaseLost
from tidemark.formats.merge_result import PlanResult
from tidemark.ledger import leases
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import plans
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn

Book = Ledger
PLAN = plan_of("p1", manifest_of(100, 200, "s.a", "s.b"), manifest_of(200, 300, "s.b"))


def test_a_plan_waits_for_its_result_and_is_ingested_once(ledger: str, book: Book, generation: Generation) -> None:
    with leases.hold(ledger, "shop", ["table:s.a", "table:s.b"], "merge/1") as lease:
        plans.record(book, lease, PLAN, run_id="run1", path="shop/plans/p1/plan.json")
    (waiting,) = plans.not_ingested(book)
    assert (waiting.plan, waiting.tables) == ("p1", {"s.a": Lsn(200), "s.b": Lsn(300)})
    result = PlanResult(plan="p1", pipeline="shop", generation=1, tables=())
    assert plans.ingest(book, result)
    assert not plans.ingest(book, result)
    assert plans.not_ingested(book) == []


def test_a_plan_needs_the_lease_of_every_table_in_it(ledger: str, book: Book, generation: Generation) -> None:
    with leases.hold(ledger, "shop", "table:s.a", "merge/1") as lease, pytest.raises(LeaseLost, match=r"s\.b"):
        plans.record(book, lease, PLAN, run_id="run1", path="shop/plans/p1/plan.json")
    assert plans.not_ingested(book) == []


def test_an_abandoned_plan_is_not_looked_for_but_its_result_still_counts(
    ledger: str, book: Book, generation: Generation
) -> None:
    with leases.hold(ledger, "shop", ["table:s.a", "table:s.b"], "merge/1") as lease:
        plans.record(book, lease, PLAN, run_id="run1", path="shop/plans/p1/plan.json")
    plans.abandon(book, "p1")
    assert plans.not_ingested(book) == []
    assert plans.ingest(book, PlanResult(plan="p1", pipeline="shop", generation=1, tables=()))
