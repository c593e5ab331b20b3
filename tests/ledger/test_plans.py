from __future__ import annotations

from typing import Any

import pytest

from tests.support.manifests import manifest_of, plan_of
from tidemark.errors import LeaseLost
from tidemark.formats.merge_result import PlanResult, TableResult
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


def test_how_a_table_was_merged_the_last_time_is_read_from_the_newest_result_that_says_so(
    ledger: str, book: Book, generation: Generation
) -> None:
    """A plan whose table was level already took no way."""

    def ingested(name: str, **fields: Any) -> None:
        plan = plan_of(name, manifest_of(100, 200, "s.a", "s.b"))
        with leases.hold(ledger, "shop", ["table:s.a", "table:s.b"], "merge/1") as lease:
            plans.record(book, lease, plan, run_id="run1", path=f"shop/plans/{name}/plan.json")
        tables = (TableResult("s.b", None, None), TableResult("s.a", Lsn(200), Lsn(200), **fields))
        assert plans.ingest(book, PlanResult(plan=name, pipeline="shop", generation=1, tables=tables))

    assert plans.last_merges(book, "s.a") == ()
    ingested("p1", way={"changes": "driver"}, why={"changes": "3 changes"}, rows={"history": 3}, seconds=1.5)
    ingested("p2", way={"changes": "spark"}, why={"changes": "not driver: ..."}, fall_backs=("changes: driver: E",))
    ingested("p3")
    second, first = plans.last_merges(book, "s.a")
    assert (second.way, second.why, second.fall_backs) == (
        {"changes": "spark"},
        {"changes": "not driver: ..."},
        ("changes: driver: E",),
    )
    assert (first.plan, first.planned_by, first.changes, first.seconds) == ("p1", "run1", 3, 1.5)
    assert plans.last_merges(book, "s.b") == ()


def test_what_all_tries_of_a_run_merged_is_summed_up(ledger: str, book: Book, generation: Generation) -> None:
    def planned(name: str, run_id: str, *tables: TableResult) -> None:
        plan = plan_of(name, manifest_of(100, 200, "s.a", "s.b"))
        with leases.hold(ledger, "shop", ["table:s.a", "table:s.b"], "merge/1") as lease:
            plans.record(book, lease, plan, run_id=run_id, path=f"{name}.json")
        if tables:
            assert plans.ingest(book, PlanResult(plan=name, pipeline="shop", generation=1, tables=tables))

    def merged(table: str, **rows: int) -> TableResult:
        return TableResult(table, Lsn(200), Lsn(200), rows=rows)

    planned("p1", "another", merged("s.a", history=1))
    planned("p2", "ours", merged("s.a", history=2, inserted=1))
    planned("p3", "ours", merged("s.b"), merged("s.a", history=4, deleted=3))
    planned("p4", "ours")
    assert plans.merged_by(book, "ours") == [
        plans.MergedTable("s.a", 1, "p2.json", {"history": 6, "inserted": 1, "deleted": 3}),
        plans.MergedTable("s.b", 1, "p3.json", {}),
    ]
